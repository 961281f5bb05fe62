// One Plotly figure that is updated in place: its node is never replaced, a person's zoom stays, all charts of a view
// share one time axis. Never knows what is in the figure.

import { withAlpha } from "./theme.js";

const FOLLOW_S = 60; // how much of the past the time axis shows while it follows

let loading = null;

/** Plotly itself, loaded once from this server when the first chart is drawn. */
export function loadPlotly(base = document.baseURI) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("ui/plotly.min.js", base);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the charts' library could not be loaded"));
    document.head.append(script);
  });
  return loading;
}

/** The stretch of time that all charts of the page show; null follows the newest step. */
export class TimeRange {
  constructor(views) {
    this.views = views;
    this.zoomed = null;
    this.version = 0; // charts take the shared range over their own when this changes
    this.listeners = new Set();
  }

  set(range) {
    this.zoomed = range;
    this.version += 1;
    for (const listener of this.listeners) listener();
  }

  /** [from, to] in seconds: all of a run (the longest one), the last minute of a live engine. */
  now() {
    if (this.zoomed) return this.zoomed;
    const histories = this.views.map(({ history }) => history).filter(({ last }) => last);
    if (!histories.length) return [0, 1];
    const to = Math.max(...histories.map(({ last }) => last.end));
    const from = Math.min(...histories.map(({ frames }) => frames[0].t));
    return [this.views[0].source.isRun ? from : Math.max(from, to - FOLLOW_S), to];
  }
}

export class Chart {
  constructor(view, range, element, { height = 220, hasTime = true } = {}) {
    Object.assign(this, { view, range, element, height, hasTime });
    element.style.minHeight = `${height}px`; // what is not yet drawn already takes its place
    this.plotly = null;
    this.numUpdates = 0; // for tests
    range.listeners.add(() => this.onRange?.());
  }

  /** Draw `traces`; `layout` is laid over the common one. While one drawing is under way the newest one waits. */
  async react(traces, layout) {
    this.next = [traces, layout];
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      this.plotly ??= await loadPlotly();
      while (this.next) {
        const [newest, itsLayout] = this.next;
        this.next = null;
        await this.drawOnce(newest, itsLayout);
      }
    } finally {
      this.isBusy = false;
    }
  }

  async drawOnce(traces, layout) {
    const width = this.element.clientWidth;
    if (!width || !this.element.isConnected) return;
    await this.plotly.react(this.element, traces, this.layout(layout, width), this.config(width));
    this.numUpdates += 1;
    if (this.numUpdates === 1) this.listen();
  }

  config(width) {
    return {
      responsive: false,
      displaylogo: false,
      showSendToCloud: false,
      doubleClick: false,
      scrollZoom: false,
      displayModeBar: width < 600 ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
    };
  }

  axis(more = {}) {
    const { theme } = this.view;
    const line = { gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.line, fixedrange: true };
    return { ...line, tickfont: { size: 11 }, uirevision: "keep", ...more };
  }

  layout(layout, width) {
    const { theme, cursor } = this.view;
    const time = this.axis({ fixedrange: false, uirevision: this.range.version, range: this.range.now(), ticksuffix: " s" });
    const { xaxis, yaxis, shapes = [], ...rest } = layout;
    const frame = this.view.frame;
    const line = frame && this.hasTime && !cursor.isLive ? [this.line(frame.t + frame.duration / 2, withAlpha(theme.accent, 0.9))] : [];
    return {
      width,
      height: this.height,
      margin: { l: 44, r: 12, t: 8, b: 28 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: theme.font, size: 12, color: theme.text },
      hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.text, family: theme.font } },
      hovermode: "x unified",
      showlegend: false, // each panel has its own, in the page's type
      uirevision: "keep",
      xaxis: this.hasTime ? { ...time, ...xaxis } : this.axis(xaxis),
      yaxis: this.axis(yaxis),
      shapes: [...shapes, ...line],
      ...rest,
    };
  }

  line(x, color) {
    return { type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color, width: 1.5, dash: "dot" } };
  }

  listen() {
    if (!this.hasTime) return;
    this.element.on("plotly_relayout", (change) => {
      const [from, to] = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (typeof from === "number" && typeof to === "number") this.range.set([from, to]);
    });
    this.element.on("plotly_doubleclick", () => this.range.set(null));
    this.element.on("plotly_click", ({ points }) => {
      const [point] = points;
      if (!point) return;
      const request = point.data.meta?.requests?.[point.pointIndex];
      if (request !== undefined) this.view.cursor.set({ selected: request });
      else if (typeof point.x === "number") this.view.cursor.set({ time: point.x });
    });
  }
}
