// Above the panels: is the picture live, what runs, and the time control that moves every panel to one step.

import { el, setText } from "./dom.js";
import { number, seconds } from "./words.js";

export class TopBar {
  constructor(view, { what = null } = {}) {
    this.view = view;
    this.whatElse = what;
    this.status = el("span", { class: "ep-status", role: "status" });
    this.what = el("span", { class: "ep-what" });
    const button = (text, name, action) => el("button", { type: "button", class: "ep-icon", "aria-label": name, title: name, onclick: action }, text);
    this.slider = el("input", { type: "range", class: "ep-slider", "aria-label": "Step shown by all panels", min: "1", max: "1", step: "1", oninput: () => this.goTo(Number(this.slider.value)) });
    this.where = el("output", { class: "ep-where" });
    this.live = el("button", { type: "button", class: "ep-live", onclick: () => view.cursor.set({ time: null }) }, view.source.isRun ? "End" : "Live");
    this.skippedWords = el("span", { class: "ep-note-words" });
    const dismiss = () => {
      view.history.skipped = null;
      this.draw();
    };
    this.skipped = el("p", { class: "ep-note", hidden: true }, this.skippedWords, " ", el("button", { type: "button", class: "ep-link", onclick: dismiss }, "OK"));
    const time = el("div", { class: "ep-time", role: "group", "aria-label": "Time" }, button("◀", "One step back (left arrow)", () => this.move(-1)), this.slider, button("▶", "One step forward (right arrow)", () => this.move(1)), this.where, this.live);
    this.root = el("div", { class: "ep-top" }, el("div", { class: "ep-top-line" }, this.status, this.what), time, this.skipped);
  }

  goTo(step) {
    const { history, cursor } = this.view;
    const wanted = Math.max(history.oldest, Math.min(history.newest, step));
    const frame = history.frame(wanted);
    if (frame) cursor.set({ time: wanted >= history.newest ? null : frame.t });
  }

  move(by) {
    if (this.view.frame) this.goTo(this.view.frame.step + by);
  }

  draw() {
    const { history, cursor, frame, source } = this.view;
    const [kind, words] = statusOf(source, history.state, cursor);
    this.status.className = `ep-status ep-status-${kind}`;
    setText(this.status, words);
    if (this.view.isRecorded) setText(this.live, "Newest");
    this.live.setAttribute("aria-pressed", String(cursor.isLive));
    this.skipped.hidden = !history.skipped;
    if (history.skipped) setText(this.skippedWords, `This page was away for long: steps ${history.skipped.map(number).join("–")} are not shown.`);
    if (!frame) {
      setText(this.where, "no step yet");
      return;
    }
    setText(this.what, this.whatElse ?? this.whatWords(frame));
    this.slider.min = history.oldest;
    this.slider.max = history.newest;
    this.slider.value = frame.step;
    this.slider.setAttribute("aria-valuetext", `step ${frame.step}, ${seconds(frame.t)}`);
    setText(this.where, `step ${number(frame.step)} · ${frame.t.toFixed(2)} s`);
  }

  whatWords(frame) {
    const { words, map } = this.view;
    const name = (group, key) => (words[group][key] ?? [key])[0];
    const sharing = frame.layout === "contiguous" ? "no sharing" : map.sharing === null ? null : map.sharing ? "sharing on" : "sharing off";
    return [this.view.source.title, name("policy", frame.policy), name("layout", frame.layout), sharing, `${number(frame.numBlocks)} blocks × ${number(frame.blockSize)} tokens`].filter(Boolean).join(" · ");
  }
}

function statusOf(source, state, cursor) {
  if (source.isRun) return ["run", "Finished run"];
  if (source.status === "lost") return ["lost", "Connection lost, trying again"];
  if (source.status === "connecting") return ["lost", "Connecting"];
  if (!cursor.isLive) return ["past", "Looking at the past"];
  if (state.draining && (state.draining === true || Object.keys(state.draining).length)) return ["draining", "Draining: new settings wait for the pool to empty"];
  if (state.paused) return ["paused", state.replay ? "Stopped" : "Engine paused"];
  return ["live", state.replay ? "Playing" : "Live"];
}
