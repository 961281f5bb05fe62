// How far the running workload has come. Reads the state that the head of the page asks for anyway.

import { el } from "../dom.js";
import { seconds } from "../words.js";
import { button } from "./answers.js";
import { onState } from "./status.js";

export function mountLoad(root, { halt }) {
  const words = el("div", { class: "pg-load-words", role: "status" });
  const done = el("div", { class: "pg-track-done" });
  const under = el("div", { class: "pg-track-under" });
  const stop = button("pg-stop", "Stop it", "Send nothing more, and abort what is under way", halt);
  root.append(words, el("div", { class: "pg-track", "aria-hidden": "true" }, done, under), stop);
  const idle = () => {
    root.classList.add("pg-load-idle"); // it keeps its room, so that nothing jumps when a workload starts
    words.replaceChildren("How far a workload has come is shown here.");
  };
  idle();
  onState(root, (state) => draw(state.load));

  function draw(load) {
    if (!load || !load.total) return idle();
    root.classList.remove("pg-load-idle");
    const ended = load.finished + load.refused + load.failed + load.stopped;
    const underWay = load.sent - load.finished - load.failed - load.stopped;
    const counts = [["refused", load.refused], ["failed", load.failed], ["stopped", load.stopped]];
    const parts = [
      `${load.finished} of ${load.total} finished`,
      ...(load.is_running ? [`${underWay} under way`] : []),
      ...counts.filter(([, n]) => n).map(([word, n]) => `${n} ${word}`),
      `${load.num_output_tokens.toLocaleString("en-US")} tokens in ${seconds(load.elapsed_s)}`,
    ];
    words.replaceChildren(el("b", {}, load.name + (load.is_running ? "" : ", ended")), ` ${parts.join(" · ")}`);
    if (load.last_error) words.append(el("div", { class: "pg-error" }, load.last_error));
    done.style.width = `${(100 * ended) / load.total}%`;
    under.style.width = `${(100 * underWay) / load.total}%`;
    stop.hidden = !load.is_running;
  }
}
