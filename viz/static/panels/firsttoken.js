// What each first token waited for: its TTFT in parts.

import { Chart } from "../chart.js";
import { el, legend, Panel, setText } from "../dom.js";
import { firstTokens, ttftParts } from "../series.js";
import { label, percent, seconds } from "../words.js";

const MOST = 16;
const PARTS = [
  ["waiting", "waiting in the queue", "reserved", "/"],
  ["prefill", "reading the prompt (prefill)", "stored", ""],
  ["other", "other: between chunks, or thrown out", "free", ""],
];

export class FirstToken {
  constructor(view, range) {
    this.view = view;
    this.range = range;
    this.panel = new Panel("firsttoken", "Time to first token", "What was it spent on?");
    this.root = this.panel.root;
    this.box = el("div", { class: "ep-chart", role: "figure", "aria-label": "Parts of each time to first token" });
    const keys = PARTS.map(([key, words, color]) => [key === "waiting" ? "fill-reserved" : "fill", color, words]);
    this.panel.body.append(this.box, legend(keys));
    this.chart = new Chart(view, range, this.box, { height: 230, hasTime: false });
    this.chart.onRange = () => this.draw();
    this.panel.getTable = () => this.table();
  }

  draw() {
    if (!this.view.frame) return null;
    const { theme } = this.view;
    const all = firstTokens(this.view, this.range);
    this.say(all);
    const lives = all.slice(-MOST);
    const names = lives.map((life) => label(life.id));
    const parts = lives.map(ttftParts);
    const traces = PARTS.map(([key, words, color, shape]) => ({
      type: "bar", name: words, x: names, y: parts.map((p) => p[key]), meta: { requests: lives.map((life) => life.id) },
      marker: {
        color: theme[color],
        opacity: lives.map((life) => (this.view.isFaded(life.id) ? 0.3 : 1)),
        ...(shape && { pattern: { shape, size: 6, solidity: 0.35, fgcolor: theme.card, fillmode: "overlay" } }),
      },
      hovertemplate: "%{y:.3s}s",
    }));
    return this.chart.react(traces, { barmode: "stack", bargap: 0.35, xaxis: { type: "category" }, yaxis: { ticksuffix: " s", rangemode: "tozero" } });
  }

  say(lives = firstTokens(this.view, this.range)) {
    if (!this.view.frame) return;
    const sum = { waiting: 0, prefill: 0, other: 0 };
    for (const life of lives) for (const [key, s] of Object.entries(ttftParts(life))) sum[key] += s;
    const total = sum.waiting + sum.prefill + sum.other;
    setText(this.panel.headline, total ? `Of all the time people waited for a first token, ${percent(sum.waiting / total)} went by in the queue and ${percent(sum.prefill / total)} while prompts were read.` : "No first token in this stretch of time.");
  }

  table() {
    const rows = firstTokens(this.view, this.range).map((life) => {
      const parts = ttftParts(life);
      return [label(life.id), ...[life.ttft, parts.waiting, parts.prefill, parts.other].map(seconds)];
    });
    return { head: ["Request", "TTFT", "Waiting", "Prefill", "Other"], rows };
  }
}
