// One button per request: the selection, by keyboard or pointer, with its state in a word.

import { activity } from "../activity.js";
import { el, setText } from "../dom.js";
import { inkOn, requestPattern } from "../theme.js";
import { label, number } from "../words.js";

const MOST = 40;
const LINGER_S = 4; // how long an ended request keeps its button
const CROWD = 16; // when there are more, those that have ended go at once

export class Requests {
  constructor(view) {
    this.view = view;
    this.buttons = new Map();
    this.list = el("div", { class: "ep-chips", role: "group", "aria-label": "Requests" });
    this.none = el("span", { class: "ep-dim" }, "No request yet. Send a prompt, or start a workload.");
    this.more = el("span", { class: "ep-dim" });
    this.root = el("div", { class: "ep-requests" }, this.none, this.list, this.more);
  }

  ids(frame) {
    const ids = new Set(this.view.requestsAt(frame));
    for (const life of this.view.history.lives.all.values()) {
      if (life.finished && life.finished.t <= frame.t && frame.t - life.finished.t < LINGER_S && life.step <= frame.step) ids.add(life.id);
    }
    if (this.view.cursor.selected !== null && this.view.history.lives.get(this.view.cursor.selected)) ids.add(this.view.cursor.selected);
    const all = [...ids].sort((a, b) => a - b);
    const isWanted = (id) => id === this.view.cursor.selected || !this.hasEnded(id, frame);
    return all.length > CROWD ? all.filter(isWanted) : all;
  }

  hasEnded(id, frame) {
    const end = this.view.history.lives.get(id)?.finished;
    return Boolean(end) && end.step <= frame.step;
  }

  draw() {
    const { frame, cursor } = this.view;
    if (!frame) return;
    const all = this.ids(frame);
    const ids = all.slice(0, MOST);
    for (const [id, button] of this.buttons) {
      if (!ids.includes(id)) {
        button.remove();
        this.buttons.delete(id);
      }
    }
    ids.forEach((id, place) => {
      const button = this.buttons.get(id) ?? this.make(id);
      if (this.list.children[place] !== button) this.list.insertBefore(button, this.list.children[place] ?? null);
      const color = this.view.color(id);
      button.style.setProperty("--rq", color);
      button.style.setProperty("--rq-ink", inkOn(color));
      setText(button.lastChild, this.state(id, frame));
      button.setAttribute("aria-pressed", String(cursor.selected === id));
      button.classList.toggle("ep-faded", this.view.isFaded(id));
    });
    this.none.hidden = all.length > 0;
    if (this.view.isRecorded) setText(this.none, "Nobody is there in this step.");
    setText(this.more, all.length > MOST ? `and ${number(all.length - MOST)} more` : "");
  }

  make(id) {
    const letter = el("span", { class: `ep-letter ep-pattern-${requestPattern(id)}` }, label(id));
    const button = el("button", { type: "button", class: "ep-chip", "data-request": id, onclick: () => this.view.cursor.toggle(id) }, letter, el("span", {}));
    this.buttons.set(id, button);
    return button;
  }

  state(id, frame) {
    const what = activity(this.view.history, frame, id);
    const life = this.view.history.lives.get(id);
    if (this.hasEnded(id, frame)) return what?.kind === "inactive" ? "slot held" : "done";
    if (!what) return "–";
    if (what.kind === "prefill") return "reads";
    if (what.kind === "decode") return `${number(this.view.map.outputs.get(id) ?? life?.numOutputs ?? 0)}`;
    return what.wait ? this.view.waitShort(what.wait.reason) : "waits";
  }
}
