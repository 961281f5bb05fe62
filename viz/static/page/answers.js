// Draws one answer of the model, in a conversation or on the wall of many at once. What people or the model wrote is
// only ever set as text; nothing here builds HTML from strings.

import { el, setText } from "../dom.js";
import { requestColor } from "../theme.js";
import { label, seconds } from "../words.js";

const ENDED = {
  stop: "finished by itself",
  length: "cut at the token limit",
  abort: "stopped",
  error: "failed",
};

export function button(className, text, title, onclick) {
  return el("button", { type: "button", class: className, title: title || null, onclick }, text);
}

/** The letter of a request in its colour; the panels select the request when such a link is followed. */
function requestChip(id) {
  const title = `Request ${label(id)}: show it in the panels`;
  return el("a", { class: "pg-chip", href: `#request-${id}`, title, "aria-label": title }, label(id));
}

function metric(title, ...parts) {
  return el("span", { class: "pg-metric", title }, ...parts);
}

const time = (value) => el("b", {}, value === null || value === undefined ? "–" : seconds(value));
const figure = (value) => el("b", {}, String(value));

function metricsLine(m) {
  const rate = m.tokens_per_s ? m.tokens_per_s.toFixed(1) : "–";
  const line = el(
    "div",
    { class: "pg-metrics" },
    metric("From sending until the request was first part of a step", "queued ", time(m.queue_s)),
    metric("TTFT: from sending to the first token, waiting included", "first token ", time(m.ttft_s)),
    metric("Tokens of the answer", figure(m.num_output_tokens), m.num_output_tokens === 1 ? " token" : " tokens"),
    metric("Tokens a second once the first was out", figure(rate), " tokens/s"),
    metric(
      "Prompt tokens whose keys and values were found in the prefix cache, of all prompt tokens",
      "cached ",
      figure(`${m.num_cached_tokens} of ${m.num_prompt_tokens}`),
    ),
  );
  if (m.num_preemptions) {
    const why = "Its memory was given to another request; what was lost was computed again";
    line.append(metric(why, "preempted ", figure(`${m.num_preemptions}×`)));
  }
  line.append(el("span", { class: `pg-ended pg-ended-${m.finish_reason}` }, ENDED[m.finish_reason] || m.finish_reason));
  return line;
}

/** Bring `box` up to date with one answer; touches only what changed, so that text marked by a reader stays marked. */
export function drawAnswer(box, answer) {
  if (!box.parts) {
    box.parts = { head: el("div", { class: "pg-answer-head" }), text: el("div", { class: "pg-text" }), foot: el("div", { class: "pg-foot" }) };
    if (box.classList.contains("pg-card")) box.parts.text.tabIndex = 0; // it scrolls: arrow keys must reach it
    box.prepend(box.parts.head);
    box.append(box.parts.text, box.parts.foot);
    box.seen = {};
  }
  const { parts, seen } = box;
  if (answer.request && seen.request !== answer.request) {
    seen.request = answer.request;
    box.dataset.answer = answer.request;
    colour(box);
    parts.head.querySelector(".pg-chip")?.remove();
    parts.head.prepend(requestChip(answer.request));
  }
  if (seen.text !== answer.text) {
    seen.text = answer.text;
    growText(parts.text, answer.text);
  }
  const foot = JSON.stringify([answer.phase, answer.note, answer.error, answer.metrics]);
  if (seen.foot !== foot) {
    seen.foot = foot;
    drawFoot(parts.foot, answer);
  }
}

function drawFoot(foot, answer) {
  const parts = [];
  if (answer.phase === "waiting") {
    parts.push(el("div", { class: "pg-wait" }, el("span", { class: "pg-spinner", "aria-hidden": "true" }), el("span", {}, answer.note || "waiting")));
  }
  if (answer.error) parts.push(el("div", { class: "pg-error" }, answer.error));
  if (answer.metrics) parts.push(metricsLine(answer.metrics));
  foot.replaceChildren(...parts);
}

/** A growing text keeps its node. */
function growText(node, text) {
  const sticks = node.scrollHeight - node.scrollTop - node.clientHeight < 24;
  const last = node.firstChild;
  const grows = last && node.childNodes.length === 1 && last.nodeType === Node.TEXT_NODE && text.startsWith(last.data);
  if (grows) last.appendData(text.slice(last.data.length));
  else setText(node, text);
  if (sticks) node.scrollTop = node.scrollHeight;
}

function colour(box) {
  box.style.setProperty("--request-color", requestColor(Number(box.dataset.answer)));
}

/** Dark and light have colours of their own. */
export function followTheme(root) {
  new MutationObserver(() => root.querySelectorAll("[data-answer]").forEach(colour)).observe(document.body, {
    attributeFilter: ["class"],
  });
}

/** The wall: the component's value is {run, cards}. */
export function mountWall(root, props, watch) {
  const wall = el("div", { class: "pg-wall" });
  const said = el("div", { class: "pg-sr", role: "status" });
  const empty = el("p", { class: "pg-hint" }, "Different prompts, sent in the same moment: their answers grow side by side here, and the panels show who shares each step.");
  root.append(empty, wall, said);

  function draw() {
    const { run = 0, cards = [] } = props.value || {};
    empty.hidden = cards.length > 0;
    if (wall.run !== run) {
      wall.run = run;
      wall.replaceChildren(...cards.map((card) => el("article", { class: "pg-card" }, el("div", { class: "pg-ask" }, card.prompt))));
    }
    cards.forEach((card, i) => wall.children[i] && drawAnswer(wall.children[i], card));
    const done = cards.length > 0 && cards.every((card) => card.phase === "done");
    setText(said, done ? `All ${cards.length} answers are complete.` : "");
  }
  followTheme(wall);
  watch("value", draw);
  draw();
}
