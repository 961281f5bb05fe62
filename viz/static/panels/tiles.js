// The figures of the moment, one glance: each with the word of the field and what it means.

import { el, setText } from "../dom.js";
import { number, percent } from "../words.js";

const TILES = [
  ["running", "Running", "requests that were in this step"],
  ["waiting", "Waiting", "requests that were there but not in this step"],
  ["speed", "Tokens/s", "tokens written for all requests, over the last two seconds"],
  ["memory", "KV in use", "share of the KV blocks that belong to a request"],
  ["wasted", "Wasted slots", "slot-steps: static batching only: slots held by ended requests, and padding, since the start"],
  ["preemptions", "Preemptions", "requests thrown out of memory and computed again, since the start"],
  ["hits", "Prefix hits", "share of prompt tokens that were found in memory instead of computed"],
];

export class Tiles {
  constructor(view) {
    this.view = view;
    this.values = {};
    this.notes = {};
    this.root = el("dl", { class: "ep-tiles" });
    for (const [name, title, meaning] of TILES) {
      this.values[name] = el("dd", { class: "ep-tile-value" }, "–");
      this.notes[name] = el("dd", { class: "ep-tile-note" });
      this.root.append(el("div", { class: `ep-tile ep-tile-${name}`, title: meaning }, el("dt", {}, title), this.values[name], this.notes[name]));
    }
  }

  draw() {
    const frame = this.view.frame;
    if (!frame) return;
    const { isIdle } = this.view;
    const running = isIdle ? 0 : frame.tokens.size;
    const there = new Set([...frame.pendingPrefill, ...frame.pendingDecode]);
    const waiting = isIdle ? 0 : [...there].filter((id) => !frame.tokens.has(id)).length;
    const used = frame.memory.active / Math.max(1, frame.numBlocks);
    const { wasted, preemptions, queried, hit, evictions } = frame.counters;
    this.set("running", number(running), `of ${number(frame.slots)} slots`);
    this.set("waiting", number(waiting), this.waitNote(frame, waiting));
    const speed = isIdle ? 0 : this.view.history.tokensPerSecond(frame);
    this.set("speed", number(speed), isIdle ? "idle" : `${number(frame.duration * 1000)} ms a step`);
    this.set("memory", percent(used), `${number(frame.memory.active)} of ${number(frame.numBlocks)} blocks`);
    this.set("wasted", number(wasted), frame.policy === "static" ? "and counting" : "static only");
    this.set("preemptions", number(preemptions), evictions ? `${number(evictions)} evictions` : "");
    this.set("hits", queried ? percent(hit / queried) : "–", queried ? `${number(hit)} of ${number(queried)} tokens` : "");
    this.root.style.setProperty("--share", used);
  }

  waitNote(frame, waiting) {
    if (!waiting) return "nobody";
    const reasons = new Map();
    for (const wait of frame.waiting.values()) reasons.set(wait.reason, (reasons.get(wait.reason) ?? 0) + 1);
    if (frame.waitDefault) {
      const rest = waiting - frame.waiting.size;
      if (rest > 0) reasons.set(frame.waitDefault.reason, (reasons.get(frame.waitDefault.reason) ?? 0) + rest);
    }
    if (reasons.size > 1) reasons.delete("behind"); // what the first waits for, the others wait for too
    const [top] = [...reasons].sort((a, b) => b[1] - a[1]);
    return top ? this.view.waitShort(top[0]) : "";
  }

  set(name, value, note) {
    setText(this.values[name], value);
    setText(this.notes[name], note);
  }
}
