// Step anatomy: where the time of a step goes.

import { Chart } from "../chart.js";
import { el, legend, Panel, setText } from "../dom.js";
import { between, thinned, withPauses } from "../series.js";
import { withAlpha } from "../theme.js";
import { percent, seconds } from "../words.js";
import { TIMES } from "../wire.js";

const NAMES = { schedule: "scheduling", batch: "building the batch", forward: "forward pass", sample: "sampling", commit: "committing", publish: "publishing" };
const ORDER = ["forward", "sample", "batch", "schedule", "commit", "publish"];
const SHAPES = { schedule: "/", batch: "\\", forward: "", sample: ".", commit: "x", publish: "-" };

export class Anatomy {
  constructor(view, range) {
    this.view = view;
    this.range = range;
    this.panel = new Panel("anatomy", "Step anatomy", "Where does a step's time go?");
    this.root = this.panel.root;
    this.box = el("div", { class: "ep-chart", role: "figure", "aria-label": "Step anatomy" });
    this.panel.body.append(this.box, legend(ORDER.map((name) => ["fill", `time-${name}`, NAMES[name]])));
    this.chart = new Chart(view, range, this.box, { height: 200 });
    this.chart.onRange = () => this.draw();
    this.panel.getTable = () => this.table();
  }

  draw() {
    const { theme, history } = this.view;
    if (!this.view.frame) return null;
    const [from, to] = this.range.now();
    const frames = thinned(between(history, from, to), from, to, 240);
    const traces = ORDER.map((name) => ({
      type: "scatter", mode: "lines", name: NAMES[name], ...withPauses(frames, (f) => (f.times[TIMES.indexOf(name)] ?? 0) * 1000), stackgroup: "step",
      line: { width: 0.8, color: theme.times[name] }, fillcolor: withAlpha(theme.times[name], 0.6),
      ...(SHAPES[name] && { fillpattern: { shape: SHAPES[name], size: 5, solidity: 0.3, fgcolor: theme.card, fillmode: "overlay" } }),
      hovertemplate: "%{y:.2f} ms",
    }));
    this.say();
    return this.chart.react(traces, { yaxis: { ticksuffix: " ms", rangemode: "tozero" } });
  }

  say() {
    const { frame } = this.view;
    if (!frame) return;
    const sum = frame.times.reduce((a, b) => a + b, 0);
    const forward = frame.times[TIMES.indexOf("forward")] ?? 0;
    const parts = TIMES.map((name, i) => `${NAMES[name]} ${seconds(frame.times[i] ?? 0)}`).join(", ");
    setText(this.panel.headline, sum ? `Step ${frame.step} took ${seconds(frame.duration)}, ${percent(forward / Math.max(sum, 1e-9))} of it in the model: ${parts}.` : `Step ${frame.step} took ${seconds(frame.duration)}.`);
  }

  table() {
    const [from, to] = this.range.now();
    const rows = thinned(between(this.view.history, from, to), from, to, 20).map((f) => [f.step, ...TIMES.map((_, i) => seconds(f.times[i] ?? 0)), seconds(f.duration)]);
    return { head: ["Step", ...TIMES.map((name) => NAMES[name]), "Whole step"], rows };
  }
}
