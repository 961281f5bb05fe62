// Latency: how long each person waited for the first token (and for what), and the gaps between tokens.

import { Chart } from "../chart.js";
import { el, legend, Panel, setText } from "../dom.js";
import { between, firstTokens, gapsOverTime, percentile, stillWaiting, ttftParts } from "../series.js";
import { requestColor } from "../theme.js";
import { label, seconds } from "../words.js";

const LEGEND = [
  ["mark", "text", "TTFT of a request"],
  ["mark-open", "text", "its queue time"],
  ["line", "accent", "gap between tokens (ITL), median"],
  ["line-dot", "bad", "ITL, 95th percentile"],
];

export class Latency {
  constructor(view, range) {
    this.view = view;
    this.range = range;
    this.panel = new Panel("latency", "Latency", "How long do people wait?");
    this.root = this.panel.root;
    this.figures = el("dl", { class: "ep-figures" });
    this.box = el("div", { class: "ep-chart", role: "figure", "aria-label": "Latency over time" });
    this.panel.body.append(this.figures, this.box, legend(LEGEND));
    this.chart = new Chart(view, range, this.box, { height: 230 });
    this.chart.onRange = () => this.draw();
    this.panel.getTable = () => this.table();
  }

  draw() {
    if (!this.view.frame) return null;
    const { theme } = this.view;
    const [from, to] = this.range.now();
    const frames = between(this.view.history, from, to);
    const lives = firstTokens(this.view, this.range);
    const gaps = gapsOverTime(frames, from, to);
    this.describe(lives, frames);
    const traces = [this.points("TTFT", lives, (l) => l.ttft, "circle", theme), this.points("queue time", lives, (l) => l.queue, "circle-open", theme), ...this.gapLines(gaps, theme)];
    return this.chart.react(traces, {
      yaxis: { type: "log", title: { text: "seconds", font: { size: 11 } }, dtick: 1, exponentformat: "SI" },
      hovermode: "closest",
    });
  }

  points(name, lives, value, symbol, theme) {
    const shown = lives.filter((life) => value(life) > 0);
    const fade = (life) => (this.view.isFaded(life.id) ? 0.25 : 1);
    return {
      type: "scatter", mode: symbol === "circle" && shown.length <= 24 ? "markers+text" : "markers", name,
      x: shown.map((l) => l.firstTokenAt), y: shown.map(value),
      text: shown.map((l) => label(l.id)), textposition: "top center", textfont: { size: 10 },
      marker: { symbol, size: symbol === "circle" ? 9 : 7, color: shown.map((l) => requestColor(l.id, theme.dark)), opacity: shown.map(fade) },
      customdata: shown.map((l) => [label(l.id), seconds(value(l))]),
      meta: { requests: shown.map((l) => l.id) },
      hovertemplate: `%{customdata[0]}: ${name} %{customdata[1]}<extra></extra>`,
    };
  }

  gapLines(gaps, theme) {
    const line = (name, key, dash, color) => ({
      type: "scatter", mode: "lines", name, x: gaps.map((g) => g.t), y: gaps.map((g) => Math.max(g[key], 1e-4)),
      line: { color, dash, width: 1.6 }, hovertemplate: `${name} %{y:.3s}s<extra></extra>`,
    });
    return [line("ITL median", "p50", "solid", theme.accent), line("ITL p95", "p95", "dot", theme.bad)];
  }

  say() {
    if (this.view.frame) this.describe(firstTokens(this.view, this.range), between(this.view.history, ...this.range.now()));
  }

  describe(lives, frames) {
    const gaps = frames.flatMap((f) => f.gaps);
    const rows = [
      ["TTFT", lives.map((l) => [l.ttft, 1])],
      ["queue", lives.filter((l) => l.queue !== null).map((l) => [l.queue, 1])],
      ["ITL", gaps],
    ];
    const items = rows.map(([name, pairs]) => [name, ...[0.5, 0.95, 0.99].map((share) => percentile(pairs, share))]);
    const say = (value) => (value === null ? "–" : seconds(value));
    const text = items.map(([name, p50, p95, p99]) => `${name}: median ${say(p50)}, p95 ${say(p95)}, p99 ${say(p99)}`).join(". ");
    if (text !== this.text) {
      this.text = text;
      const cell = ([name, p50, p95, p99]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("strong", {}, say(p50)), " median"), el("dd", {}, `p95 ${say(p95)} · p99 ${say(p99)}`));
      this.figures.replaceChildren(...items.map(cell));
      this.box.setAttribute("aria-label", `Latency over time. ${text}`);
    }
    setText(this.panel.headline, this.words(lives));
  }

  words(lives) {
    const slow = lives.reduce((a, b) => (!a || b.ttft > a.ttft ? b : a), null);
    const [still] = stillWaiting(this.view.history);
    if (still && still.waited > (slow?.ttft ?? 0)) {
      const came = slow ? `; the longest wait that has ended: ${label(slow.id)}, ${seconds(slow.ttft)}` : "";
      return `${label(still.life.id)} still waits for its first token, ${seconds(still.waited)} so far${came}.`;
    }
    if (!slow) return "No first token in this stretch of time.";
    const queued = ttftParts(slow).waiting;
    const where = queued < 0.001 ? "none of it" : `of which ${seconds(queued)}`;
    return `Longest wait for a first token: ${label(slow.id)}, ${seconds(slow.ttft)}, ${where} in the queue.`;
  }

  table() {
    const rows = firstTokens(this.view, this.range).map((life) => {
      const parts = ttftParts(life);
      return [label(life.id), ...[life.ttft, parts.waiting, parts.prefill, parts.other].map(seconds)];
    });
    return { head: ["Request", "TTFT", "Waiting", "Prefill", "Other"], rows };
  }
}
