// A request's block table: its logical blocks in order, and where each one lies in the pool.

import { el, Panel, setText, tooltip } from "../dom.js";
import { hatch, inkOn, penFor, withAlpha } from "../theme.js";
import { count, label, number } from "../words.js";
import { runs } from "./grid.js";

const ROW = 26;
const GAP = 96;

export class BlockTable {
  constructor(view) {
    this.view = view;
    this.panel = new Panel("blocktable", "Block table", "Where does its memory lie?");
    this.root = this.panel.root;
    this.canvas = el("canvas", { role: "img", "aria-label": "Block table" });
    this.panel.body.append(this.canvas);
    this.panel.getTable = () => this.table();
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tooltip.hide());
  }

  /** The selected request, else the newest one that owns blocks. */
  get id() {
    const { cursor, map } = this.view;
    if (cursor.selected !== null) return cursor.selected;
    return map.tables.size ? Math.max(...map.tables.keys()) : null;
  }

  draw() {
    const { frame, map, theme } = this.view;
    const width = this.panel.body.clientWidth;
    if (!frame || !width) return;
    const id = this.id;
    const table = (id !== null && map.tables.get(id)) || [];
    const ctx = penFor(this.canvas, width, ROW * 2 + GAP + 36);
    this.geometry = { width, table, cell: Math.min(34, Math.max(2, (width - 2) / Math.max(1, table.length))), id };
    this.drawPool(ctx, map, theme, width, id);
    if (table.length) this.drawTable(ctx, map, theme, id, table);
    this.say();
  }

  drawPool(ctx, map, theme, width, id) {
    const y = 16 + ROW + GAP;
    const scale = width / map.numBlocks;
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(0, y, width, ROW);
    for (const [other, blocks] of map.tables) {
      ctx.fillStyle = withAlpha(this.view.color(other), other === id ? 1 : 0.28);
      for (const block of blocks) ctx.fillRect(block * scale, y, Math.max(1, scale - (scale > 4 ? 1 : 0)), ROW);
    }
    ctx.font = `11px ${theme.font}`;
    ctx.fillStyle = theme.dim;
    ctx.textBaseline = "top";
    ctx.fillText("0", 0, y + ROW + 4);
    ctx.textAlign = "right";
    ctx.fillText(`physical block ${number(map.numBlocks - 1)}`, width, y + ROW + 4);
    ctx.textAlign = "left";
    ctx.fillText("logical blocks, in the order of the text", 0, 0);
  }

  drawTable(ctx, map, theme, id, table) {
    const { width, cell } = this.geometry;
    const color = this.view.color(id);
    const scale = width / map.numBlocks;
    const [top, bottom] = [16 + ROW, 16 + ROW + GAP];
    const stored = map.computed.get(id) ?? 0;
    table.forEach((block, index) => {
      const x = index * cell;
      const share = Math.max(0, Math.min(1, (stored - index * map.blockSize) / map.blockSize));
      ctx.fillStyle = withAlpha(color, 0.15);
      ctx.fillRect(x, 16, cell - (cell > 4 ? 1 : 0), ROW);
      ctx.fillStyle = hatch(ctx, "stripes", withAlpha(color, 0.6));
      ctx.fillRect(x, 16, cell - (cell > 4 ? 1 : 0), ROW);
      ctx.fillStyle = color;
      ctx.fillRect(x, 16, (cell - (cell > 4 ? 1 : 0)) * share, ROW);
      if (cell >= 16) {
        ctx.fillStyle = share > 0.5 ? inkOn(color) : theme.text;
        ctx.font = `11px ${theme.font}`;
        ctx.textAlign = "center";
        ctx.textBaseline = "middle";
        ctx.fillText(String(index), x + cell / 2, 16 + ROW / 2);
        ctx.textAlign = "left";
      }
      this.drawArrow(ctx, x + cell / 2, top, (block + 0.5) * scale, bottom, color, map.refs[block] > 1, table.length);
    });
  }

  drawArrow(ctx, x1, y1, x2, y2, color, isShared, n) {
    ctx.strokeStyle = withAlpha(color, n > 60 ? 0.45 : 0.8);
    ctx.fillStyle = color;
    ctx.lineWidth = n > 60 ? 0.7 : 1.3;
    ctx.setLineDash(isShared ? [3, 3] : []);
    ctx.beginPath();
    ctx.moveTo(x1, y1 + 1);
    ctx.bezierCurveTo(x1, y1 + GAP * 0.45, x2, y2 - GAP * 0.45, x2, y2 - 4);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(x2, y2);
    ctx.lineTo(x2 - 3, y2 - 6);
    ctx.lineTo(x2 + 3, y2 - 6);
    ctx.fill();
  }

  say() {
    const { frame, map } = this.view;
    if (!frame) return;
    const { id } = this;
    const table = (id !== null && map.tables.get(id)) || [];
    let text = "Nobody owns a block now.";
    if (id !== null && !table.length) text = `${label(id)} owns no block in this step.`;
    if (table.length) {
      const pieces = runs(table).split(", ").length;
      const shared = table.filter((block) => map.refs[block] > 1).length;
      text = `${label(id)} owns ${count(table.length, "block")} in ${pieces === 1 ? "one unbroken run" : `${number(pieces)} places`}${shared ? `; ${number(shared)} shared with others (dashed)` : ""}.`;
    }
    setText(this.panel.headline, text);
    this.canvas.setAttribute("aria-label", `Block table. ${text}`);
  }

  hover(event) {
    const { geometry } = this;
    if (!geometry?.table.length) return;
    const box = this.canvas.getBoundingClientRect();
    const index = Math.floor((event.clientX - box.left) / geometry.cell);
    if (event.clientY - box.top > 16 + ROW || index >= geometry.table.length) return tooltip.hide();
    const block = geometry.table[index];
    tooltip.show(event, [`Logical block ${number(index)} of ${label(geometry.id)}`, `lies in physical block ${number(block)}`, `tokens ${number(index * this.view.map.blockSize)}–${number((index + 1) * this.view.map.blockSize - 1)}`]);
  }

  table() {
    const { map } = this.view;
    const id = this.id;
    const table = (id !== null && map.tables.get(id)) || [];
    const stored = map.computed.get(id) ?? 0;
    const rows = table.map((block, index) => [index, block, Math.max(0, Math.min(map.blockSize, stored - index * map.blockSize)), map.refs[block]]);
    return { head: ["Logical block", "Physical block", "Tokens stored", "Held by"], rows };
  }
}
