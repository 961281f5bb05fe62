// Mounts the panels into an element and keeps them up to date: canvases with every answer of the feed, charts once a
// second, nothing at all for what cannot be seen.

import { Cursor } from "./cursor.js";
import { el, tooltip } from "./dom.js";
import { TimeRange } from "./chart.js";
import { Anatomy } from "./panels/anatomy.js";
import { BlockTable } from "./panels/blocktable.js";
import { FirstToken } from "./panels/firsttoken.js";
import { Gantt } from "./panels/gantt.js";
import { Grid } from "./panels/grid.js";
import { Latency } from "./panels/latency.js";
import { Memory } from "./panels/memory.js";
import { Requests } from "./panels/requests.js";
import { Strip } from "./panels/strip.js";
import { Tiles } from "./panels/tiles.js";
import { Why } from "./panels/why.js";
import { LiveSource } from "./source.js";
import { readTheme } from "./theme.js";
import { TopBar } from "./topbar.js";
import { View } from "./view.js";

const CHARTS_MS = 1000;
const GLOW_MS = 120;

const shared = { cursor: new Cursor(), live: null, words: null, style: null };

async function loadWords(base) {
  shared.words ??= await (await fetch(new URL("ui/words.json", base))).json();
  return shared.words;
}

/** The style sheet, loaded once: canvases take their colours from it, so they are drawn after it has come. */
function loadStyle() {
  shared.style ??= new Promise((resolve) => {
    const href = new URL("./panels.css", import.meta.url).href;
    document.head.append(el("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
  });
  return shared.style;
}

/** All panels of one source, in one element. */
export class Dashboard {
  constructor(element, source, words, { cursor = shared.cursor, range = new TimeRange() } = {}) {
    this.view = new View(source, cursor, words);
    this.element = element;
    const view = this.view;
    this.top = new TopBar(view);
    this.fast = [this.top, new Tiles(view), new Requests(view), new Strip(view), new Why(view), new Grid(view), new BlockTable(view)];
    this.slow = [new Memory(view, range), new Latency(view, range), new Gantt(view, range), new FirstToken(view, range), new Anatomy(view, range)];
    this.root = el("div", { class: "ep-dashboard", role: "region", "aria-label": "Live view of the engine", onkeydown: (event) => this.key(event) });
    this.root.append(...[...this.fast, ...this.slow].map((panel) => panel.root));
    element.replaceChildren(this.root);
    this.listen(source, cursor);
    this.readTheme();
    this.draw();
  }

  listen(source, cursor) {
    this.stops = [source.subscribe(() => this.soon()), cursor.subscribe(() => this.soon(true))];
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

  readTheme() {
    this.view.theme = readTheme(this.root);
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
    return panel.root.offsetParent !== null && (this.seen.has(panel.root) || this.seen.size === 0);
  }

  draw() {
    if (!this.element.isConnected) return this.end();
    if (this.root.offsetParent === null) return;
    for (const panel of this.fast) if (panel === this.top || this.isSeen(panel)) panel.draw();
    if (this.wantsCharts) this.drawCharts();
    this.keepGlowing();
  }

  drawCharts() {
    this.wantsCharts = false;
    for (const chart of this.slow) if (this.isSeen(chart)) chart.draw();
  }

  tick() {
    if (!this.element.isConnected) return this.end();
    if (document.hidden || this.root.offsetParent === null) return;
    const newest = this.view.history.newest;
    if (newest !== this.charted) this.drawCharts();
    this.charted = newest;
    for (const { panel } of [...this.fast, ...this.slow]) panel?.drawTable();
  }

  /** Let the glow of changed blocks fade even when no step follows. */
  keepGlowing() {
    const grid = this.fast.find((panel) => panel instanceof Grid);
    if (!grid.glow.size || this.glowing) return;
    this.glowing = setTimeout(() => {
      this.glowing = null;
      if (this.isSeen(grid)) grid.draw();
      this.keepGlowing();
    }, GLOW_MS);
  }

  key(event) {
    if (event.target.closest("input, textarea, select, .ep-table-box") || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.top.move(-1),
      ArrowRight: () => this.top.move(1),
      Home: () => this.top.goTo(this.view.history.oldest),
      End: () => this.view.cursor.set({ time: null }),
      Escape: () => this.view.cursor.set({ selected: null }),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  end() {
    clearInterval(this.timer);
    clearTimeout(this.glowing);
    for (const stop of this.stops) stop();
    for (const observer of [this.sight, this.size, this.themes]) observer.disconnect();
    tooltip.hide();
  }
}

/** A click on anything that names a request (`data-request`, or a link to `#request-12`) selects it everywhere. */
function listenForSelection(cursor) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#request-"]');
    if (!link) return;
    event.preventDefault();
    cursor.toggle(Number(link.getAttribute("href").slice("#request-".length)));
  });
  cursor.subscribe(() => {
    for (const link of document.querySelectorAll('a[href^="#request-"]')) {
      link.classList.toggle("ep-selected", link.getAttribute("href") === `#request-${cursor.selected}`);
    }
  });
}

/** Draw the panels into `element`; answers with the dashboard. */
export async function mount(element, { kind = "live", base = document.baseURI } = {}) {
  const [words] = await Promise.all([loadWords(base), loadStyle()]);
  if (!shared.live) {
    shared.live = new LiveSource(base);
    listenForSelection(shared.cursor);
  }
  const dashboard = new Dashboard(element, shared.live, words);
  element.dashboard = dashboard;
  return dashboard;
}
