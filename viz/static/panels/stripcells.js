// How one cell and one bar of the batch strip look. A pen is {ctx, theme, cell (width), rowHeight}.

import { hatch, inkOn, withAlpha } from "../theme.js";

/** What one request did in one step, with its left upper corner at (x, y). */
export function drawCell(pen, what, x, y, color) {
  const gap = pen.cell > 5 ? 1 : 0;
  const box = { left: x + gap / 2, top: y + 2, width: pen.cell - gap, height: pen.rowHeight - 5 };
  if (what.kind === "prefill") drawPrefill(pen, what, box, color);
  else if (what.kind === "decode") drawDecode(pen, what, box, color);
  else if (what.kind === "inactive") shade(pen, "cross", pen.theme.dim, box.left, box.top + box.height * 0.2, box.width, box.height * 0.6);
  else drawWait(pen, what, box, x, y, color);
  if (what.preempted) drawPreempted(pen, x + pen.cell / 2, y + pen.rowHeight / 2);
}

function drawPrefill(pen, what, box, color) {
  const { ctx, theme, cell } = pen;
  const rows = what.tokens + what.padding + what.cached;
  ctx.fillStyle = color;
  ctx.fillRect(box.left, box.top, box.width, box.height);
  if (what.cached) {
    const part = (box.height * what.cached) / rows;
    shade(pen, "stripes", withAlpha(theme.card, 0.75), box.left, box.top + box.height - part, box.width, part);
  }
  drawPadding(pen, what, rows, box);
  if (cell >= 12 && what.padding < rows / 2) drawNumber(pen, what.tokens, box, inkOn(color));
}

function drawDecode(pen, what, box, color) {
  const { ctx } = pen;
  ctx.fillStyle = withAlpha(color, 0.3);
  ctx.fillRect(box.left, box.top + box.height * 0.2, box.width, box.height * 0.6);
  ctx.fillStyle = color;
  ctx.fillRect(box.left, box.top + box.height * 0.38, box.width, Math.max(3, box.height * 0.24));
  drawPadding(pen, what, what.tokens + what.padding, box);
}

function drawWait(pen, what, box, x, y, color) {
  const { ctx, cell, rowHeight } = pen;
  ctx.strokeStyle = withAlpha(color, 0.9);
  ctx.setLineDash([2, 2]);
  ctx.beginPath();
  ctx.moveTo(x, y + rowHeight / 2);
  ctx.lineTo(x + cell, y + rowHeight / 2);
  ctx.stroke();
  ctx.setLineDash([]);
  drawPadding(pen, what, what.padding, box);
}

/** Rows that are computed and thrown away, as a hatched part of the cell. */
function drawPadding(pen, what, rows, box) {
  if (!what.padding) return;
  const part = (box.height * what.padding) / rows;
  pen.ctx.fillStyle = pen.theme.sunken;
  pen.ctx.fillRect(box.left, box.top, box.width, part);
  shade(pen, "stripes", pen.theme.dim, box.left, box.top, box.width, part);
}

/** How many tokens, upright where it fits, else turned. */
function drawNumber(pen, n, box, color) {
  const { ctx, cell, theme } = pen;
  const text = n >= 10_000 ? `${Math.round(n / 1000)}k` : String(n);
  ctx.save();
  ctx.translate(box.left + box.width / 2, box.top + box.height / 2);
  ctx.textAlign = "center";
  if (cell < 6 * text.length + 2) ctx.rotate(-Math.PI / 2);
  ctx.font = `600 ${Math.min(9.5, (box.height * 1.7) / text.length)}px ${theme.font}`;
  ctx.fillStyle = color;
  ctx.fillText(text, 0, 0.5);
  ctx.restore();
}

function drawPreempted({ ctx, theme }, x, y) {
  for (const [width, color] of [[5, theme.card], [2.5, theme.bad]]) {
    ctx.strokeStyle = color;
    ctx.lineWidth = width;
    ctx.beginPath();
    ctx.moveTo(x - 5, y - 5);
    ctx.lineTo(x + 5, y + 5);
    ctx.moveTo(x + 5, y - 5);
    ctx.lineTo(x - 5, y + 5);
    ctx.stroke();
  }
  ctx.lineWidth = 1;
}

function shade({ ctx }, kind, color, x, y, width, height) {
  ctx.fillStyle = hatch(ctx, kind, color);
  ctx.fillRect(x, y, width, height);
}

/** One step's rows by kind, stacked upwards from `bottom`. */
export function drawBar(pen, rows, x, bottom, scale) {
  const { ctx, theme, cell } = pen;
  const width = cell - (cell > 5 ? 1 : 0);
  let y = bottom;
  const looks = [
    [rows.decode, withAlpha(theme.accent, 0.45)],
    [rows.prefill, theme.accent],
    [rows.inactive, hatch(ctx, "cross", theme.dim)],
    [rows.padding, hatch(ctx, "stripes", theme.dim)],
  ];
  for (const [n, paint] of looks) {
    if (!n) continue;
    const height = Math.max(1, n * scale);
    y -= height;
    ctx.fillStyle = paint;
    ctx.fillRect(x, y, width, height);
  }
}
