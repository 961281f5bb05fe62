// At the foot of a narrow screen: one tap to any part of a long page, and whose story Why? tells now.

import { el, setText } from "./dom.js";

export class JumpBar {
  /** `parts` are the panels that can be jumped to. */
  constructor(view, { top, why, strip, grid, gantt }) {
    this.view = view;
    this.why = el("button", { type: "button", onclick: () => jump(why.root) }, "Why?");
    const to = (name, target) => el("button", { type: "button", onclick: () => jump(target()) }, name);
    const ask = document.querySelector("#left") ? [to("Ask", () => document.querySelector("#left"))] : [];
    const parts = [...ask, to("Now", () => top.root), this.why, to("Steps", () => strip.root), to("Blocks", () => grid.root), to("Times", () => gantt.root)];
    this.root = el("nav", { class: "ep-jump", "aria-label": "Parts of the page" }, ...parts);
    view.cursor.subscribe(() => this.draw());
  }

  draw() {
    const { selected } = this.view.cursor;
    setText(this.why, selected === null ? "Why?" : `Why ${this.view.label(selected)}?`);
  }
}

function jump(target) {
  target.tabIndex = -1; // so that the keyboard goes on from there
  target.focus({ preventScroll: true });
  target.scrollIntoView({ block: "start" });
}
