// The Gantt chart: each request's life on the clock.

import { Chart } from "../chart.js";
import { el, legend, Panel, setText } from "../dom.js";
import { stillWaiting } from "../series.js";
import { requestColor, withAlpha } from "../theme.js";
import { count, label, seconds } from "../words.js";

const MOST = 24;
const NOTICED_S = 0.001; // who waited less did not wait
const LEGEND = [
  ["bar-queue", null, "waits in the queue"],
  ["prefill", null, "prompt is read (prefill)"],
  ["bar-decode", null, "answer is written (decode)"],
  ["bar-stall", null, "in memory, not in the step"],
  ["preempted", null, "thrown out, waits again"],
];
const KINDS = {
  queue: { name: "queue", shape: "", alpha: 0.1, outline: true },
  prefill: { name: "prefill", shape: "", alpha: 1 },
  decode: { name: "decode", shape: "", alpha: 0.5 },
  stall: { name: "in memory, not in the step", shape: ".", alpha: 0.25 },
  preempted: { name: "preempted, waits again", shape: "x", alpha: 0.25 },
};

export class Gantt {
  constructor(view, range) {
    this.view = view;
    this.range = range;
    this.panel = new Panel("gantt", "Timeline of each request", "Who waited, who worked, when?");
    this.root = this.panel.root;
    this.box = el("div", { class: "ep-chart", role: "figure", "aria-label": "Timeline of each request" });
    this.panel.body.append(this.box, legend(LEGEND));
    this.chart = new Chart(view, range, this.box);
    this.chart.onRange = () => this.draw();
    this.panel.getTable = () => this.table();
  }

  lives() {
    const [from, to] = this.range.now();
    const seen = [...this.view.history.lives.all.values()].filter((life) => {
      const last = life.segments[life.segments.length - 1];
      return last && last.to >= from && life.segments[0].from <= to;
    });
    const kept = seen.sort((a, b) => a.id - b.id).slice(-MOST);
    const selected = seen.find((life) => life.id === this.view.cursor.selected);
    return selected && !kept.includes(selected) ? [selected, ...kept.slice(1)] : kept;
  }

  draw() {
    if (!this.view.frame) return null;
    const lives = this.lives();
    const [from, to] = this.range.now();
    const letters = lives.map((life) => label(life.id));
    this.chart.height = 44 + Math.max(6, lives.length) * 17;
    this.say(lives);
    const traces = Object.entries(KINDS).map(([kind, look]) => this.bars(kind, look, lives, from, to)).filter((t, i) => t.x.length || i < 3);
    return this.chart.react([...traces, ...this.ends(lives)], {
      barmode: "overlay",
      bargap: 0.25,
      hovermode: "closest",
      yaxis: { type: "category", categoryorder: "array", categoryarray: letters, autorange: "reversed", tickfont: { size: 11 }, showgrid: false },
    });
  }

  bars(kind, look, lives, from, to) {
    const { theme } = this.view;
    const found = [];
    for (const life of lives) {
      for (const segment of life.segments) if (segment.kind === kind && segment.to >= from && segment.from <= to) found.push([life, segment]);
    }
    const color = (life) => withAlpha(requestColor(life.id, theme.dark), look.alpha * (this.view.isFaded(life.id) ? 0.3 : 1));
    return {
      type: "bar", orientation: "h", name: look.name, base: found.map(([, s]) => s.from), x: found.map(([, s]) => s.to - s.from), y: found.map(([life]) => label(life.id)),
      meta: { requests: found.map(([life]) => life.id) },
      marker: {
        color: found.map(([life]) => color(life)),
        ...(look.shape && { pattern: { shape: look.shape, size: 5, solidity: 0.4, fgcolor: theme.text } }),
        line: look.outline ? { width: 1, color: found.map(([life]) => withAlpha(requestColor(life.id, theme.dark), this.view.isFaded(life.id) ? 0.3 : 0.9)) } : { width: 0 },
      },
      customdata: found.map(([life, s]) => [label(life.id), this.segmentWords(s)]),
      hovertemplate: "%{customdata[0]}: %{customdata[1]}<extra></extra>",
    };
  }

  segmentWords(segment) {
    const time = seconds(segment.to - segment.from);
    if (segment.kind === "prefill") return `reads ${count(segment.tokens, "token")} in step ${segment.step}, ${time}`;
    if (segment.kind === "decode") return `writes, steps ${segment.step}–${segment.lastStep}, ${time}`;
    return `waits (${this.view.waitShort(segment.reason)}), ${time}`;
  }

  ends(lives) {
    const { theme } = this.view;
    const ended = lives.filter((life) => life.finished);
    const out = lives.flatMap((life) => life.events.filter((e) => e.type === "preempted").map((e) => [life, e]));
    const mark = (name, symbol, color, x, y, size) => ({ type: "scatter", mode: "markers", name, x, y, marker: { symbol, size, color, line: { width: 1, color: theme.card } }, hovertemplate: `${name}<extra></extra>` });
    return [
      mark("ended", "line-ns-open", theme.text, ended.map((l) => l.lastTokenAt ?? l.finished.t), ended.map((l) => label(l.id)), 9),
      mark("thrown out", "x", theme.bad, out.map(([, e]) => e.t), out.map(([l]) => label(l.id)), 9),
    ].filter((trace) => trace.x.length);
  }

  say(lives = this.lives()) {
    if (this.view.frame) setText(this.panel.headline, this.words(lives));
  }

  words(lives) {
    const [letIn] = lives.filter((life) => life.queue !== null).sort((a, b) => b.queue - a.queue);
    const [outside] = stillWaiting(this.view.history).filter(({ life, isIn }) => life.queue === null && !isIn);
    if (outside && outside.waited >= Math.max(NOTICED_S, letIn?.queue ?? 0)) {
      return `${label(outside.life.id)} waits longest: ${seconds(outside.waited)} so far, and it is not let in yet.`;
    }
    if (!letIn) return "Nobody has been let in yet.";
    if (letIn.queue < NOTICED_S) return "Nobody had to wait to be let in.";
    return `${label(letIn.id)} waited longest before it was let in: ${seconds(letIn.queue)}.`;
  }

  table() {
    const rows = this.lives().map((life) => [label(life.id), life.arrival.toFixed(2), life.queue === null ? "waits" : seconds(life.queue), life.ttft === null ? "–" : seconds(life.ttft), life.numOutputs, life.finished ? life.finished.reason : "not yet"]);
    return { head: ["Request", "Arrived (s)", "Queue", "TTFT", "Tokens written", "Ended"], rows };
  }
}
