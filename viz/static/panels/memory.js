// Memory over time: every token place of the pool is stored, reserved but unused, cached or free, at every moment.

import { Chart } from "../chart.js";
import { el, legend, Panel, setText } from "../dom.js";
import { between, thinned } from "../series.js";
import { withAlpha } from "../theme.js";
import { number, percent } from "../words.js";

const BANDS = [
  ["stored", "stored tokens", (f) => f.memory.stored],
  ["reserved", "reserved, unused", (f) => f.memory.active * f.blockSize - f.memory.stored],
  ["cached", "cached", (f) => f.memory.cached * f.blockSize],
  ["free", "free", (f) => f.memory.free * f.blockSize],
];

const LEGEND = [
  ["fill", "stored", "stored tokens"],
  ["fill-reserved", "reserved", "reserved, unused"],
  ["fill", "cached", "cached"],
  ["fill", "free", "free"],
  ["line", "bad", "internal fragmentation"],
  ["line-dash", "text", "external fragmentation"],
  ["line-dot", "accent", "prefix hit rate"],
  ["preempted", null, "preemption"],
  ["mark-down", "cached", "eviction"],
];

export class Memory {
  constructor(view, range) {
    this.view = view;
    this.range = range;
    this.panel = new Panel("memory", "Memory over time", "How much of the pool is wasted?");
    this.root = this.panel.root;
    this.box = el("div", { class: "ep-chart", role: "figure", "aria-label": "Memory over time" });
    this.panel.body.append(this.box, legend(LEGEND));
    this.chart = new Chart(view, range, this.box, { height: 260 });
    this.chart.onRange = () => this.draw();
    this.panel.getTable = () => this.table();
  }

  traces() {
    const { theme, history } = this.view;
    const [from, to] = this.range.now();
    const all = between(history, from, to);
    const frames = thinned(all, from, to);
    const x = frames.map((f) => f.t);
    const bands = BANDS.map(([name, title, value]) => ({
      type: "scatter", mode: "lines", name: title, x, y: frames.map(value), stackgroup: "memory",
      line: { shape: "hv", width: name === "free" ? 0 : 1, color: theme[name] },
      fillcolor: withAlpha(theme[name], name === "free" ? 0.25 : 0.75),
      ...(name === "reserved" && { fillpattern: { shape: "/", size: 6, solidity: 0.35, fgcolor: theme.card, fillmode: "overlay" } }),
      hovertemplate: "%{y:,} tokens",
    }));
    const percentLine = (name, value, dash, color) => ({
      type: "scatter", mode: "lines", name, x, y: frames.map(value), yaxis: "y2", hovertemplate: "%{y:.0%}",
      line: { shape: "hv", width: 1.6, dash, color },
    });
    const lines = [
      percentLine("internal fragmentation", (f) => f.memory.internal, "solid", theme.bad),
      percentLine("external fragmentation", (f) => f.memory.external, "dash", theme.text),
      percentLine("prefix hit rate", (f) => f.counters.hit / Math.max(1, f.counters.queried), "dot", theme.accent),
    ];
    return [...bands, ...lines, ...this.marks(all, from)];
  }

  marks(frames) {
    const { theme } = this.view;
    const mark = (name, symbol, color, found) => ({
      type: "scatter", mode: "markers", name, x: found.map((f) => f.t), y: found.map(() => 1), yaxis: "y2", cliponaxis: false,
      marker: { symbol, size: 9, color, line: { width: 1, color: theme.card } }, hovertemplate: name,
    });
    return [
      mark("preemption", "x", theme.bad, frames.filter((f) => f.events.some((e) => e.type === "preempted"))),
      mark("eviction", "triangle-down", theme.cached, frames.filter((f) => f.evicted.length)),
    ].filter((trace) => trace.x.length);
  }

  draw() {
    const { frame } = this.view;
    if (!frame) return null;
    this.say();
    return this.chart.react(this.traces(), {
      yaxis: { title: { text: "tokens", font: { size: 11 } }, range: [0, this.top(frame)], tickformat: "~s" },
      yaxis2: this.chart.axis({ overlaying: "y", side: "right", range: [0, 1], tickformat: ".0%", showgrid: false, tickmode: "array", tickvals: [0, 0.25, 0.5, 0.75, 1] }),
      margin: { l: 48, r: 44, t: 8, b: 28 },
    });
  }

  /** How high the picture goes: the whole pool, or a half, a quarter … of it where most of a big pool stays free. */
  top(frame) {
    const [from, to] = this.range.now();
    const used = this.range.views.flatMap((view) => between(view.history, from, to).map((f) => (f.memory.active + f.memory.cached) / f.numBlocks));
    const most = Math.max(0.02, ...used);
    const share = [1, 2, 4, 8, 16, 32].findLast((part) => most < 0.8 / part || part === 1);
    return (frame.numBlocks * frame.blockSize) / share;
  }

  say() {
    const { frame } = this.view;
    if (!frame) return;
    const places = frame.numBlocks * frame.blockSize;
    const reserved = frame.memory.active * frame.blockSize - frame.memory.stored;
    const owned = frame.memory.active * frame.blockSize;
    const text = owned
      ? `Of ${number(places)} token places, ${number(owned)} are owned and ${number(frame.memory.stored)} hold a token: ${percent(reserved / owned)} of what is owned is wasted (internal fragmentation)${frame.memory.external > 0.005 ? `; ${percent(frame.memory.external)} of the free blocks lie outside the longest free run (external)` : ""}.`
      : `None of the ${number(places)} token places is owned now.`;
    setText(this.panel.headline, text);
    this.box.setAttribute("aria-label", `Memory over time. ${text}`);
  }

  table() {
    const [from, to] = this.range.now();
    const rows = thinned(between(this.view.history, from, to), from, to, 20).map((f) => [
      f.step, f.t.toFixed(2), ...BANDS.map(([, , value]) => value(f)), percent(f.memory.internal), percent(f.memory.external),
    ]);
    return { head: ["Step", "Time (s)", "Stored", "Reserved, unused", "Cached", "Free", "Internal frag.", "External frag."], rows };
  }
}
