// Above the panels: is the picture live, what runs, and the time control that moves every panel to one step, or plays.

import { el, setText } from "./dom.js";
import { Player, SPEEDS } from "./player.js";
import { number, seconds } from "./words.js";

const SPEED_WORDS = { 0.5: "½ ×" };

export class TopBar {
  /** `views` are all that the time control moves. */
  constructor(view, { what = null, views = [view] } = {}) {
    this.view = view;
    this.player = new Player(view, views);
    this.whatElse = what;
    this.status = el("span", { class: "ep-status", role: "status" });
    this.what = el("span", { class: "ep-what" });
    this.slider = el("input", { type: "range", class: "ep-slider", "aria-label": "Step shown by all panels", min: "1", max: "1", step: "1", oninput: () => this.goTo(Number(this.slider.value)) });
    this.where = el("output", { class: "ep-where" });
    this.live = el("button", { type: "button", class: "ep-live", onclick: () => view.cursor.set({ time: null }) }, view.source.isRun ? "End" : "Live");
    this.skippedWords = el("span", { class: "ep-note-words" });
    const dismiss = () => {
      view.history.skipped = null;
      this.draw();
    };
    this.skipped = el("p", { class: "ep-note", hidden: true }, this.skippedWords, " ", el("button", { type: "button", class: "ep-link", onclick: dismiss }, "OK"));
    this.root = el("div", { class: "ep-top" }, el("div", { class: "ep-top-line" }, this.status, this.what), this.timeControl(), this.skipped);
  }

  timeControl() {
    const button = (words, name, action) => el("button", { type: "button", class: "ep-icon", "aria-label": name, title: name, onclick: action }, words);
    this.play = el("button", { type: "button", class: "ep-play", onclick: () => this.player.toggle() }, "Play");
    const speeds = SPEEDS.map((speed) => el("option", { value: speed, selected: speed === this.player.speed }, SPEED_WORDS[speed] ?? `${speed} ×`));
    const choose = () => {
      this.player.speed = Number(this.speed.value);
    };
    this.speed = el("select", { class: "ep-speed", "aria-label": "Speed of playing", title: "Speed of playing", onchange: choose }, ...speeds);
    const step = () => el("span", { class: "ep-wide" }, " Step ");
    const first = button("Start", "Start: the first step (Home)", () => this.goTo(this.view.history.oldest));
    const [back, on] = [button(el("span", {}, "‹", step()), "‹ Step: one back (left arrow)", () => this.move(-1)), button(el("span", {}, step(), "›"), "Step ›: one on (right arrow)", () => this.move(1))];
    const scrub = el("div", { class: "ep-scrub" }, this.slider, this.where);
    return el("div", { class: "ep-time", role: "group", "aria-label": "Time" }, this.play, this.speed, first, back, on, this.live, scrub);
  }

  goTo(step) {
    const { history, cursor } = this.view;
    const wanted = Math.max(history.oldest, Math.min(history.newest, step));
    const frame = history.frame(wanted);
    if (frame) cursor.set({ time: wanted >= history.newest ? null : frame.t });
  }

  /** Stand at the first step, and let the space bar play, unless somebody is typing elsewhere. */
  readyToPlay() {
    this.goTo(this.view.history.oldest);
    if (!document.activeElement?.matches("input, textarea, select")) this.play.focus({ preventScroll: true });
  }

  move(by) {
    this.player.pause();
    if (this.view.frame) this.goTo(this.view.frame.step + by);
  }

  draw() {
    const { history, cursor, frame, source } = this.view;
    const [kind, words] = statusOf(source, history, cursor, this.player.isPlaying);
    this.drawPlay();
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

  /** The button says what it would do. A recording behind the page has its own for everybody who looks (replay_bar.py). */
  drawPlay() {
    const { isPlaying, isFollowing } = this.player;
    const isRun = this.view.source.isRun;
    const words = !isPlaying && !isFollowing ? "Play" : isRun ? "Pause" : "Hold";
    setText(this.play, words);
    this.play.classList.toggle("ep-playing", words !== "Play");
    this.play.title = { Play: "Play from here (space)", Pause: "Pause (space)", Hold: "Hold the picture here; the engine goes on (space)" }[words];
    this.play.hidden = this.speed.hidden = this.view.isRecorded;
  }

  whatWords(frame) {
    const { words, map } = this.view;
    const name = (group, key) => (words[group][key] ?? [key])[0];
    const sharing = frame.layout === "contiguous" ? "no sharing" : map.sharing === null ? null : map.sharing ? "sharing on" : "sharing off";
    return [this.view.source.title, name("policy", frame.policy), name("layout", frame.layout), sharing, `${number(frame.numBlocks)} blocks × ${number(frame.blockSize)} tokens`].filter(Boolean).join(" · ");
  }
}

function statusOf(source, history, cursor, isPlaying) {
  const { state } = history;
  if (source.isRun && isPlaying) return ["live", "Playing"];
  if (source.isRun) return ["run", cursor.isLive ? "At the end" : cursor.time <= history.frames[0].t ? "At the start" : "Stopped"];
  if (source.status === "lost") return ["lost", "Connection lost, trying again"];
  if (source.status === "connecting") return ["lost", "Connecting"];
  if (!cursor.isLive) return ["past", isPlaying ? "Playing the past" : "Looking at the past"];
  if (state.draining && (state.draining === true || Object.keys(state.draining).length)) return ["draining", "Draining: new settings wait for the pool to empty"];
  if (state.paused) return ["paused", state.replay ? "Stopped" : "Engine paused"];
  return ["live", state.replay ? "Playing" : "Live"];
}
