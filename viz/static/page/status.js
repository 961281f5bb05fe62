// The head of the page: what runs now. Asks for the state once a second while the page is looked at, hands it to
// whoever wants it, and says so ("sync") when settings are not what they were, whoever changed them.

import { el, setText } from "../dom.js";

const EVERY_MS = 1000;
const SOON_MS = 150;
const BATCHING = {
  static: "static",
  mixed: "continuous",
  decode_first: "continuous, decode first",
  prefill_first: "continuous, prefill first",
};
const SETTINGS = [
  "policy", "decode_selection", "kv_layout", "prefix_caching", "block_size", "num_blocks", "max_num_seqs",
  "max_num_batched_tokens", "paused", "step_delay_s", "draining_for",
]; // prettier-ignore
const NAMES = { kv_layout: "KV memory", num_blocks: "pool", block_size: "block size", prefix_caching: "sharing" };

const listeners = new Set();
let newest = null;

/** Call `listener` with every new state as long as `root` is on the page. */
export function onState(root, listener) {
  const entry = (state) => {
    if (root.isConnected) listener(state);
    else listeners.delete(entry);
  };
  listeners.add(entry);
  if (newest) entry(newest);
}

export function mountStatus(root, props, { sync }) {
  const facts = el("div", { class: "pg-facts" });
  const words = el("span", {});
  const restart = el("button", { type: "button", class: "pg-restart", hidden: true }, "Start the engine again");
  const notice = el("div", { class: "pg-notice", role: "status", hidden: true }, words, restart);
  restart.addEventListener("click", async () => {
    restart.disabled = true;
    try {
      const answer = await fetch(new URL("ui/restart", document.baseURI), { method: "POST" });
      const state = await answer.json();
      if (answer.ok) take(state);
      else say(state.error.message);
    } finally {
      restart.disabled = false;
    }
  });
  const title = el(
    "div",
    { class: "pg-title" },
    el("span", { class: "pg-logo", "aria-hidden": "true" }),
    el("h1", {}, "tiny-vllm playground"),
  );
  const [first, last] = props.value?.replay
    ? ["Play the run, or move the time.", "Pick a request and read its story."]
    : ["Send several prompts at once.", "Flip a switch and send them again."];
  const howto = el(
    "p",
    { class: "pg-howto" },
    el("b", {}, "1"), ` ${first} `,
    el("b", {}, "2"), " Watch who shares each step, who waits and why, and whose memory is where. ",
    el("b", {}, "3"), ` ${last}`,
  ); // prettier-ignore
  root.append(title, facts, howto, notice);
  let settings = null;

  function take(state) {
    newest = state;
    drawFacts(facts, state);
    say(noticeWords(state));
    markSharing(state);
    restart.hidden = !(state.down && state.can_restart);
    for (const listener of [...listeners]) listener(state);
    const now = JSON.stringify(SETTINGS.map((name) => state[name]));
    if (settings !== null && now !== settings) sync();
    settings = now;
  }

  function say(text) {
    setText(words, text);
    notice.hidden = !text;
  }

  async function ask() {
    if (!root.isConnected) return;
    if (!document.hidden) {
      try {
        const answer = await fetch(new URL("ui/state", document.baseURI), { cache: "no-store" });
        if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
        take(await answer.json());
      } catch {
        say("The server does not answer. This page goes on by itself when it is back.");
      }
    }
    timer = setTimeout(ask, EVERY_MS);
  }
  let timer = null;
  if (props.value && props.value.policy) take(props.value);
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, SOON_MS);
  };
  document.addEventListener("click", soon); // whatever was pressed may have changed something
  document.addEventListener("visibilitychange", soon);
  ask();
}

function fact(name, value, title) {
  return el("span", { class: "pg-fact", title }, el("span", { class: "pg-fact-name" }, name), el("span", { class: "pg-fact-value" }, value));
}

function drawFacts(facts, state) {
  const mood = moodOf(state);
  const where = [state.device, state.dtype, state.quantization !== "none" && state.quantization].filter(Boolean).join(" · ");
  const shape = JSON.stringify([mood, where, state.model, SETTINGS.map((name) => state[name])]);
  if (facts.shape === shape) return;
  facts.shape = shape;
  const sharing = state.kv_layout === "contiguous" ? "never (contiguous)" : state.prefix_caching ? "on" : "off";
  const about = [
    el("span", { class: `pg-mood pg-${mood}` }, mood),
    fact("model", state.model || "?", "The model that answers"),
    fact("on", where, "Where it is computed, and in which number format"),
  ];
  if (state.replay) return facts.replaceChildren(...about); // the rest stands above the panels, for the step they show
  facts.replaceChildren(
    ...about,
    fact("batching", BATCHING[state.policy] || state.policy, "Who is part of a step, and when that may change"),
    fact("KV memory", state.kv_layout, "How the keys and values of requests are kept"),
    fact("sharing", sharing, "Whether equal beginnings of prompts share their blocks"),
  );
}

function moodOf(state) {
  if (state.replay) return "recorded";
  if (state.down) return "down";
  if (state.draining) return "draining";
  if (state.paused) return "paused";
  return state.num_running ? "running" : state.num_waiting ? "waiting" : "ready";
}

/** Contiguous memory shares nothing, whatever the switch says: it is grey then, and tells why. */
function markSharing(state) {
  const sharing = document.querySelector("#switch-sharing");
  if (!sharing) return;
  const isOff = (state.draining_for?.kv_layout ?? state.kv_layout) === "contiguous";
  sharing.toggleAttribute("data-off", isOff);
  sharing.title = isOff ? "Contiguous memory never shares: sharing needs blocks, so choose paged memory first" : "";
}

function noticeWords(state) {
  if (state.replay) return "";
  if (state.down) return `The engine is down: ${state.down}`;
  if (state.draining) {
    const changes = Object.entries(state.draining_for || {});
    const words = changes.map(([name, value]) => `${NAMES[name] || name} → ${value}`).join(", ");
    const ends = state.num_running === 1 ? "when the running request has ended"
      : state.num_running ? `when the ${state.num_running} running requests have ended` : "at once";
    return `Draining: ${words || "a change of settings"} takes effect ${ends}; what waits stays in the queue.`;
  }
  if (state.paused) return "Paused: nothing is computed. “One step” computes a single step, “Go on” resumes.";
  if (state.step_delay_s > 0) return `Slow motion: the engine rests ${state.step_delay_s} s after each step.`;
  return "";
}
