// The batch strip: requests × steps. What each request did in each step, and how full each step was.

import { activity, rowsOf, total } from "../activity.js";
import { el, legend, Panel, setText, tooltip } from "../dom.js";
import { inkOn, penFor, withAlpha } from "../theme.js";
import { count, label, number, seconds } from "../words.js";
import { drawBar, drawCell } from "./stripcells.js";

const LEGEND = [
  ["prefill", null, "reads its prompt (prefill)"],
  ["cached", null, "part found in the prefix cache"],
  ["decode", null, "writes one token (decode)"],
  ["wait", null, "waits, and why"],
  ["inactive", null, "ended, but holds its slot"],
  ["padding", null, "padding"],
  ["preempted", null, "thrown out (preempted)"],
];
const MAX_ROWS = 14;
const BARS = 46;
const TICKS = 16;
const SHRINK_MS = 8000; // rows that are no longer needed stay this long: what jumps cannot be read
const SIZES = [4, 6, 9, 14, 22, 32];

export class Strip {
  /** `steps`: choose the width of a step so that that many fit, for runs that are compared. */
  constructor(view, { steps = null } = {}) {
    this.view = view;
    this.cell = 14;
    this.stepsToFit = steps;
    this.panel = new Panel("strip", "Batch strip", "Who shared which step?");
    this.root = this.panel.root;
    this.canvas = el("canvas", { role: "img", "aria-label": "Batch strip: requests by steps" });
    const zoom = (by) => el("button", { type: "button", class: "ep-icon", "aria-label": by > 0 ? "Wider steps" : "Narrower steps", onclick: () => this.zoom(by) }, by > 0 ? "+" : "−");
    this.panel.body.append(this.canvas, legend(LEGEND));
    this.panel.button.before(zoom(-1), zoom(1));
    this.panel.getTable = () => this.table();
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tooltip.hide());
    this.canvas.addEventListener("click", (event) => this.click(event));
  }

  zoom(by) {
    this.stepsToFit = null;
    const at = SIZES.findIndex((size) => size >= this.cell);
    this.cell = SIZES[Math.max(0, Math.min(SIZES.length - 1, at + by))];
    this.draw();
  }

  /** The steps in sight: the newest ones, or those around the time cursor. */
  span(width) {
    const { history, cursor, frame } = this.view;
    const columns = Math.max(4, Math.floor(width / this.cell));
    if (cursor.isLive || this.end === undefined) this.end = history.newest;
    if (frame.step > this.end || frame.step <= this.end - columns) this.end = frame.step + Math.floor(columns / 2);
    this.end = Math.min(Math.max(this.end, history.oldest + columns - 1), history.newest); // nor is room left empty
    const first = Math.max(history.oldest, this.end - columns + 1);
    return [first, Math.max(this.end, first)];
  }

  /** Requests that were there in the steps in sight; when too many, those that ran and the first that wait. */
  rows(first, last) {
    const ran = new Set();
    const waited = new Set();
    for (let n = first; n <= last; n++) {
      const f = this.view.history.frame(n);
      for (const id of f.tokens.keys()) ran.add(id);
      for (const id of f.inactiveIds) ran.add(id);
      for (const id of f.pendingDecode) ran.add(id);
      for (const id of f.pendingPrefill) waited.add(id);
    }
    if (this.view.cursor.selected !== null && waited.has(this.view.cursor.selected)) ran.add(this.view.cursor.selected);
    for (const id of ran) waited.delete(id);
    const busy = [...ran].sort((a, b) => a - b).slice(-MAX_ROWS + (waited.size ? 1 : 0));
    const idle = [...waited].sort((a, b) => a - b);
    const shown = idle.slice(0, Math.max(0, MAX_ROWS - busy.length));
    return { ids: [...busy, ...shown].sort((a, b) => a - b), hidden: idle.length - shown.length + ran.size - busy.length };
  }

  draw() {
    const { frame, history } = this.view;
    const width = this.panel.body.clientWidth;
    if (!frame || !width) return;
    this.labels = width < 480 ? 30 : 118;
    if (this.stepsToFit) this.cell = SIZES.findLast((size) => size * this.stepsToFit <= width - this.labels) ?? SIZES[0];
    const [first, last] = this.span(width - this.labels);
    const { ids, hidden } = this.rows(first, last);
    this.rowHeight = 20;
    const rowsEnd = this.roomFor(ids.length + (hidden ? 1 : 0)) * this.rowHeight;
    const height = rowsEnd + BARS + TICKS + 8;
    Object.assign(this, { first, last, ids, width, height, rowsEnd });
    const ctx = penFor(this.canvas, width, height);
    ctx.textBaseline = "middle";
    this.drawCursor(ctx, frame);
    ids.forEach((id, row) => this.drawRow(ctx, id, row, frame, history));
    if (hidden) this.text(ctx, `… and ${number(hidden)} more`, 2, (ids.length + 0.5) * this.rowHeight, this.view.theme.dim);
    this.drawBars(ctx, width, frame);
    this.say();
  }

  /** Rows to make room for: grows at once, shrinks when they have not been needed for a while. */
  roomFor(rows, now = performance.now()) {
    const needed = Math.max(4, rows);
    if (needed >= (this.room ?? 0)) this.neededAt = now;
    if (this.room === undefined || needed > this.room || now - this.neededAt > SHRINK_MS) {
      this.room = needed;
      this.neededAt = now;
    }
    return this.room;
  }

  x(step) {
    return this.labels + (step - this.first) * this.cell;
  }

  text(ctx, text, x, y, color, size = 11, weight = "") {
    ctx.font = `${weight} ${size}px ${this.view.theme.font}`;
    ctx.fillStyle = color;
    ctx.fillText(text, x, y);
  }

  drawCursor(ctx, frame) {
    const { theme } = this.view;
    if (this.view.cursor.isLive) return;
    ctx.fillStyle = withAlpha(theme.accent, 0.16);
    ctx.fillRect(this.x(frame.step), 0, this.cell, this.height);
  }

  drawRow(ctx, id, row, frame, history) {
    const { view, cell, rowHeight } = this;
    const { theme } = view;
    const y = row * rowHeight;
    ctx.globalAlpha = view.isFaded(id) ? 0.25 : 1;
    const color = view.color(id);
    const size = Math.min(18, rowHeight - 4);
    ctx.fillStyle = color;
    ctx.beginPath();
    ctx.roundRect(2, y + (rowHeight - size) / 2, Math.max(size, 9 + 8 * label(id).length), size, 4);
    ctx.fill();
    ctx.textAlign = "center";
    this.text(ctx, label(id), 2 + Math.max(size, 9 + 8 * label(id).length) / 2, y + rowHeight / 2 + 0.5, inkOn(color), 11, "600");
    ctx.textAlign = "left";
    const now = activity(history, frame, id);
    if (this.labels > 60 && now) this.text(ctx, this.nowWords(now), 28 + 8 * (label(id).length - 1), y + rowHeight / 2 + 0.5, theme.dim);
    ctx.strokeStyle = theme.line;
    ctx.lineWidth = 1;
    ctx.strokeRect(this.labels, y + rowHeight - 0.5, (this.last - this.first + 1) * cell, 0);
    const pen = { ctx, theme, cell, rowHeight };
    let stretch = null;
    for (let n = this.first; n <= this.last; n++) {
      const what = activity(history, history.frame(n), id);
      if (what) drawCell(pen, what, this.x(n), y, color);
      const word = !what || what.preempted ? null : what.kind === "wait" ? (what.wait ? view.waitShort(what.wait.reason) : "") : what.kind === "inactive" ? "slot held" : null;
      if (stretch && stretch.word !== word) this.drawStretch(ctx, stretch, n, y);
      if (!stretch || stretch.word !== word) stretch = word ? { word, from: n } : null;
    }
    if (stretch) this.drawStretch(ctx, stretch, this.last + 1, y);
    ctx.globalAlpha = 1;
  }

  nowWords(what) {
    if (what.kind === "prefill") return `reads ${number(what.tokens)}`;
    if (what.kind === "decode") return "writes";
    if (what.kind === "inactive") return "slot held";
    return what.wait ? this.view.waitShort(what.wait.reason) : "waits";
  }

  /** The reason, written over a stretch of waiting that is long enough to hold it. */
  drawStretch(ctx, stretch, end, y) {
    const { theme } = this.view;
    ctx.font = `10px ${theme.font}`;
    const width = ctx.measureText(stretch.word).width + 8;
    const room = (end - stretch.from) * this.cell;
    if (!stretch.word || room < width) return;
    const x = this.x(stretch.from) + Math.min(6, (room - width) / 2);
    ctx.fillStyle = theme.card;
    ctx.fillRect(x, y + this.rowHeight / 2 - 7, width, 14);
    this.text(ctx, stretch.word, x + 4, y + this.rowHeight / 2 + 0.5, theme.dim, 10);
  }

  /** How many rows each step computed, against its token budget. */
  drawBars(ctx, width, frame) {
    const { history, theme } = this.view;
    const top = this.rowsEnd + 8;
    const full = BARS - 8;
    let most = 1;
    for (let n = this.first; n <= this.last; n++) most = Math.max(most, total(rowsOf(history.frame(n))));
    const budget = frame.budget;
    const scale = Math.max(most, budget <= most * 2.5 ? budget : most * 1.15);
    const pen = { ctx, theme, cell: this.cell, rowHeight: this.rowHeight };
    for (let n = this.first; n <= this.last; n++) drawBar(pen, rowsOf(history.frame(n)), this.x(n), top + full, full / scale);
    ctx.strokeStyle = theme.line;
    ctx.strokeRect(this.labels, top + full + 0.5, (this.last - this.first + 1) * this.cell, 0);
    const y = top + full - (budget * full) / scale;
    if (y >= top - 1) {
      ctx.strokeStyle = theme.bad;
      ctx.setLineDash([4, 3]);
      ctx.strokeRect(this.labels, y, (this.last - this.first + 1) * this.cell, 0);
      ctx.setLineDash([]);
    }
    this.drawTicks(ctx, top + full + TICKS / 2 + 2);
    if (this.labels > 60) {
      this.text(ctx, "tokens a step", 2, top + 10, theme.dim);
      this.text(ctx, y >= top - 1 ? `budget ${number(budget)}` : `budget ${number(budget)} ↑`, 2, top + 24, theme.dim);
    }
  }

  /** Step numbers under the columns. */
  drawTicks(ctx, y) {
    const every = [5, 10, 20, 50, 100].find((n) => n * this.cell >= 56) ?? 100;
    ctx.textAlign = "center";
    for (let n = Math.ceil(this.first / every) * every; n <= this.last; n += every) {
      const text = n % (every * 2) ? number(n) : `step ${number(n)}`;
      const x = Math.min(this.x(n) + this.cell / 2, this.width - 3 * text.length);
      if (x > this.labels + 8) this.text(ctx, text, x, y, this.view.theme.dim, 10);
    }
    ctx.textAlign = "left";
  }

  say() {
    const { frame } = this.view;
    if (!frame) return;
    const rows = rowsOf(frame);
    const parts = [
      rows.prefill && `${number(rows.prefill)} of prompts (${count(frame.activePrefill.length, "request")})`,
      rows.decode && `${number(rows.decode)} decoding`,
      rows.padding && `${number(rows.padding)} padding`,
      rows.inactive && `${number(rows.inactive)} for ended requests`,
    ].filter(Boolean);
    const text = `Step ${number(frame.step)} computed ${number(total(rows))} of at most ${number(frame.budget)} tokens in ${seconds(frame.duration)}${parts.length ? `: ${parts.join(", ")}` : ""}.`;
    setText(this.panel.headline, text);
    this.canvas.setAttribute("aria-label", `Batch strip${this.ids ? `, steps ${this.first} to ${this.last}` : ""}. ${text}`);
  }

  /** What lies under the pointer: the step and the request (null below the rows). */
  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const step = Math.floor((x - this.labels) / this.cell) + this.first;
    const id = y < this.ids.length * this.rowHeight ? this.ids[Math.floor(y / this.rowHeight)] : null;
    return { frame: x >= this.labels && step <= this.last ? this.view.history.frame(step) : null, id };
  }

  hover(event) {
    if (!this.ids) return;
    const { frame, id } = this.hit(event);
    if (!frame) return tooltip.hide();
    const what = id === null ? null : activity(this.view.history, frame, id);
    if (!what) {
      const rows = rowsOf(frame);
      return tooltip.show(event, [`Step ${number(frame.step)}`, `${number(total(rows))} tokens of a budget of ${number(frame.budget)}`, `${number(rows.prefill)} prefill, ${number(rows.decode)} decode`, rows.padding + rows.inactive > 0 && `${number(rows.padding)} padding, ${number(rows.inactive)} inactive`]);
    }
    tooltip.show(event, [`${label(id)} in step ${number(frame.step)}`, ...this.details(what, frame, id)]);
  }

  details(what, frame, id) {
    const lines = [];
    if (what.kind === "prefill") lines.push(`reads ${count(what.tokens, "token")} of its prompt`);
    if (what.cached) lines.push(`${count(what.cached, "token")} came from the prefix cache`);
    if (what.kind === "decode") lines.push(`writes token ${number(frame.outputs.get(id) ?? 0)} of its answer`);
    if (what.kind === "inactive") lines.push("has ended, but its slot computes on until the batch ends");
    if (what.kind === "wait") lines.push(what.wait ? `waits: ${this.view.waitWords(what.wait)}` : "waits");
    if (what.padding) lines.push(`${count(what.padding, "padded row")} computed for nothing`);
    if (what.preempted) lines.push(this.view.eventWords(what.preempted));
    return lines;
  }

  click(event) {
    const { frame, id } = this.hit(event);
    if (id !== null && !frame) return this.view.cursor.toggle(id);
    if (frame) this.view.cursor.set({ selected: id ?? this.view.cursor.selected, time: frame.t });
  }

  table() {
    const { history, frame } = this.view;
    const rows = this.ids.map((id) => {
      const what = activity(history, frame, id);
      return [label(id), what ? what.kind : "–", what ? this.details(what, frame, id).join("; ") : "not there in this step"];
    });
    return { head: ["Request", `Step ${frame.step}`, "In words"], rows };
  }
}
