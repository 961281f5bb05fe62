// Panels in one element, kept up to date: canvases with every answer of the feed, charts once a second. Of what is out of
// sight no picture is drawn, only its words are kept true, once a second.

import { el, tooltip } from "./dom.js";
import { readTheme } from "./theme.js";

const CHARTS_MS = 1000;
const GLOW_MS = 120;
/** Where the space bar types, presses or scrolls already. */
const HAS_ITS_OWN_SPACE = "button, a[href], summary, select, textarea, input:not([type=range]), [contenteditable], .ep-table-box";

/** `fast` panels draw with every news, `slow` ones (charts) once a second; `views` are what they look at. */
export class Board {
  constructor(element, { views, top, fast, slow, name, children, look = "", arrange = null }) {
    Object.assign(this, { element, views, top, fast, slow, arrange });
    [this.view] = views;
    this.root = el("div", { class: `ep-dashboard ${look}`, role: "region", "aria-label": name, onkeydown: (event) => this.key(event) });
    this.root.append(...(children ?? [...fast, ...slow].map((panel) => panel.root)));
    element.replaceChildren(this.root);
    this.root.addEventListener("ep-unfold", () => this.soon(true));
    this.arrange?.(this.root.clientWidth);
    this.listen();
    this.readTheme();
    this.draw();
  }

  listen() {
    const sources = this.views.map(({ source }) => source.subscribe(() => this.soon()));
    const { player } = this.top;
    // While it plays charts only move their line: once a second, as with news.
    const cursor = this.view.cursor.subscribe(() => this.soon(!player.isPlaying));
    this.stops = [...sources, cursor, player.subscribe(() => this.soon(true)), this.listenForSpace()];
    this.seen = new Set();
    this.sight = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) this.seen.add(entry.target);
        else this.seen.delete(entry.target);
      }
      this.soon(true);
    }, { rootMargin: "100px" });
    for (const panel of [...this.fast, ...this.slow]) this.sight.observe(panel.root);
    let width = 0;
    this.size = new ResizeObserver(() => {
      if (this.root.clientWidth === width) return; // heights change by drawing: that would never end
      width = this.root.clientWidth;
      this.arrange?.(width);
      this.soon(true);
    });
    this.size.observe(this.root);
    this.themes = new MutationObserver(() => {
      this.readTheme();
      this.soon(true);
    });
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.timer = setInterval(() => this.tick(), CHARTS_MS);
  }

  /** The space bar plays and pauses: a run wherever the page is, the live engine's picture only within its panels. */
  listenForSpace() {
    const pressed = (event) => {
      if (event.key !== " " || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
      if (this.root.offsetParent === null || !(this.view.source.isRun || this.root.contains(event.target))) return;
      if (this.view.isRecorded || event.target.closest(HAS_ITS_OWN_SPACE)) return;
      event.preventDefault();
      if (!event.repeat) this.top.player.toggle();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }

  readTheme() {
    const theme = readTheme(this.root);
    for (const view of this.views) view.theme = theme;
  }

  /** Draw at the next frame of the screen, once however many asked. */
  soon(withCharts = false) {
    this.wantsCharts ||= withCharts;
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      this.draw();
    });
  }

  isSeen(panel) {
    return panel.root.offsetParent !== null && this.seen.has(panel.root);
  }

  draw() {
    if (!this.element.isConnected) return this.end();
    if (this.root.offsetParent === null) return;
    for (const panel of this.fast) if (!panel.panel || this.isSeen(panel)) panel.draw();
    if (this.wantsCharts || !this.hasSpoken) this.drawCharts();
    this.keepGlowing();
  }

  drawCharts() {
    this.wantsCharts = false;
    for (const chart of this.slow) if (this.isSeen(chart)) chart.draw();
    for (const panel of [...this.fast, ...this.slow]) if (panel.panel && !this.isSeen(panel)) panel.say();
    this.hasSpoken = Boolean(this.view.frame);
  }

  tick() {
    if (!this.element.isConnected) return this.end();
    if (this.root.offsetParent === null) return this.top.player.pause();
    if (document.hidden) return;
    const now = `${this.view.history.newest} ${this.top.player.isPlaying && this.view.frame.step}`;
    if (now !== this.charted) this.drawCharts();
    this.charted = now;
    for (const { panel } of [...this.fast, ...this.slow]) panel?.drawTable();
  }

  /** Let the glow of changed blocks fade even when no step follows. */
  keepGlowing() {
    const grids = this.fast.filter((panel) => panel.glow?.size);
    if (!grids.length || this.glowing) return;
    this.glowing = setTimeout(() => {
      this.glowing = null;
      for (const grid of grids) if (this.isSeen(grid)) grid.draw();
      this.keepGlowing();
    }, GLOW_MS);
  }

  key(event) {
    if (event.target.closest("input, textarea, select, .ep-table-box") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { history, cursor } = this.top.view;
    const actions = {
      ArrowLeft: () => this.top.move(-1),
      ArrowRight: () => this.top.move(1),
      Home: () => this.top.goTo(history.oldest),
      End: () => cursor.set({ time: null }),
      Escape: () => cursor.set({ selected: null }),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  end() {
    this.top.player.pause();
    clearInterval(this.timer);
    clearTimeout(this.glowing);
    for (const stop of this.stops) stop();
    for (const observer of [this.sight, this.size, this.themes]) observer.disconnect();
    tooltip.hide();
  }
}
