// The curves of two runs: which share of the requests had its first token after how long.

import { Chart } from "../chart.js";
import { el, legend, Panel, setText } from "../dom.js";
import { percentile } from "../series.js";
import { percent, seconds } from "../words.js";

const LOOKS = [
  ["stored", "solid", "line"],
  ["bad", "dash", "line-dash"],
];

export class TtftCurves {
  constructor(views, range) {
    this.views = views;
    this.view = views[0];
    this.panel = new Panel("curves", "Time to first token, all requests", "What share had its first token after how long?");
    this.root = this.panel.root;
    this.box = el("div", { class: "ep-chart", role: "figure", "aria-label": "Time to first token of both runs" });
    this.panel.body.append(this.box, legend(views.map((view, i) => [LOOKS[i][2], LOOKS[i][0], view.source.title])));
    this.chart = new Chart(this.view, range, this.box, { height: 240, hasTime: false });
    this.panel.getTable = () => this.table();
  }

  /** A run's times to first token, sorted. */
  times(view) {
    const known = [...view.history.lives.all.values()].filter((life) => life.ttft !== null);
    return known.map((life) => life.ttft).sort((a, b) => a - b);
  }

  draw() {
    const traces = this.views.map((view, i) => {
      const times = this.times(view);
      const [color, dash] = LOOKS[i];
      return {
        type: "scatter", mode: "lines", name: view.source.title, x: [0, ...times], y: [0, ...times.map((_, n) => (n + 1) / times.length)],
        line: { shape: "hv", dash, width: 2, color: this.view.theme[color] }, hovertemplate: "%{y:.0%} within %{x:.3s}s",
      };
    });
    this.say();
    return this.chart.react(traces, { hovermode: "closest", xaxis: { ticksuffix: " s", rangemode: "tozero" }, yaxis: { range: [0, 1.02], tickformat: ".0%" } });
  }

  say() {
    const words = this.views.map((view) => {
      const times = this.times(view);
      if (!times.length) return `${view.source.title}: no first token`;
      const mean = times.reduce((sum, t) => sum + t, 0) / times.length;
      return `${view.source.title}: ${seconds(mean)} on average, ${seconds(times[times.length - 1])} at most`;
    });
    const text = words.join("; ");
    setText(this.panel.headline, `${text}.`);
    this.box.setAttribute("aria-label", `Time to first token of both runs. ${text}`);
  }

  table() {
    const shares = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1];
    const all = this.views.map((view) => this.times(view).map((t) => [t, 1]));
    const say = (value) => (value === null ? "–" : seconds(value));
    return { head: ["Share of requests", ...this.views.map((view) => view.source.title)], rows: shares.map((share) => [percent(share), ...all.map((times) => say(percentile(times, share)))]) };
  }
}
