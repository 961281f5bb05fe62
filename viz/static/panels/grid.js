// The block grid: every physical block of the pool, whose it is and how full. Where blocks outnumber what can be
// drawn, one cell stands for several; zooming in opens them.

import { el, legend, Panel, setText, tooltip } from "../dom.js";
import { hatch, inkOn, penFor, requestPattern, withAlpha } from "../theme.js";
import { count, label, number, percent } from "../words.js";

const LEGEND = [
  ["filled", null, "stored tokens"],
  ["reserved", null, "reserved, unused"],
  ["shared", null, "shared (by how many)"],
  ["cachedblock", null, "cached: nobody's, can be found again"],
  ["freeblock", null, "free"],
];
const MIN_CELL = 7;
const MAX_CELL = 26;
const MAX_HEIGHT = 420;
const GLOW_MS = 900;

export class Grid {
  constructor(view) {
    this.view = view;
    this.window = null; // [first block, count], null is the whole pool
    this.glow = new Map(); // block → when its change was first seen (ms)
    this.seenStep = null;
    this.panel = new Panel("grid", "KV blocks", "Whose is which block?");
    this.root = this.panel.root;
    this.canvas = el("canvas", { role: "img", "aria-label": "Grid of KV blocks" });
    this.out = el("button", { type: "button", class: "ep-link", hidden: true, onclick: () => this.zoomTo(null) }, "whole pool");
    const button = (text, name, action) => el("button", { type: "button", class: "ep-icon", "aria-label": name, onclick: action }, text);
    this.panel.button.before(this.out, button("−", "Zoom out of the block grid", () => this.zoom(2)), button("+", "Zoom into the block grid", () => this.zoom(0.5)));
    this.panel.body.append(this.canvas, legend(LEGEND));
    this.panel.getTable = () => this.table();
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => tooltip.hide());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** Cells for the blocks in sight: how many columns and rows, and how many blocks each stands for. */
  layOut(width) {
    const [first, length] = this.window ?? [0, this.view.map.numBlocks];
    const most = Math.floor(width / MIN_CELL) * Math.floor(MAX_HEIGHT / MIN_CELL);
    const each = Math.max(1, 2 ** Math.ceil(Math.log2(length / most)));
    const cells = Math.ceil(length / each);
    let columns = Math.min(cells, Math.floor(width / MIN_CELL));
    for (const wanted of [16, 32, 64, 128]) {
      const size = width / wanted; // round numbers of columns, so that a block's id can be read off its place
      if (size <= MAX_CELL && size >= MIN_CELL && Math.floor(size) * Math.ceil(cells / wanted) <= MAX_HEIGHT) {
        columns = wanted;
        break;
      }
    }
    const size = Math.min(MAX_CELL, Math.floor(width / columns));
    return { first, length, each, cells, columns, size, rows: Math.ceil(cells / columns) };
  }

  draw(now = performance.now()) {
    const { frame, map } = this.view;
    const width = this.panel.body.clientWidth;
    if (!frame || !width || !map.numBlocks) return;
    if (this.window && this.window[0] + this.window[1] > map.numBlocks) this.window = null;
    this.noteChanges(frame, map, now);
    const lay = this.layOut(width);
    this.lay = lay;
    const ctx = penFor(this.canvas, lay.columns * lay.size, lay.rows * lay.size);
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (let cell = 0; cell < lay.cells; cell++) {
      const x = (cell % lay.columns) * lay.size;
      const y = Math.floor(cell / lay.columns) * lay.size;
      if (lay.each === 1) this.drawBlock(ctx, map, lay.first + cell, x, y, lay.size);
      else this.drawMany(ctx, map, lay.first + cell * lay.each, lay, x, y);
    }
    this.drawGlow(ctx, now);
    this.sayWhere();
    this.say();
  }

  noteChanges(frame, map, now) {
    if (this.seenStep !== null && frame.step > this.seenStep && frame.step - this.seenStep < 500) {
      for (let n = this.seenStep + 1; n <= frame.step; n++) {
        const changes = this.view.history.frame(n)?.blocks;
        if (!changes) continue;
        for (const [, , ids] of changes.tables) for (const block of ids) this.glow.set(block, now);
      }
    }
    this.seenStep = frame.step;
    for (const [block, at] of this.glow) if (now - at > GLOW_MS || block >= map.numBlocks) this.glow.delete(block);
  }

  drawBlock(ctx, map, block, x, y, size) {
    const { theme } = this.view;
    const [left, top, side] = [x + 0.5, y + 0.5, size - 2];
    const owner = map.owner[block];
    if (owner < 0) {
      if (map.cached.has(block)) {
        ctx.fillStyle = withAlpha(theme.cached, 0.22);
        ctx.fillRect(left, top, side, side);
        ctx.fillStyle = theme.cached;
        const dot = Math.max(2, side / 4);
        ctx.fillRect(left + (side - dot) / 2, top + (side - dot) / 2, dot, dot);
      } else {
        ctx.fillStyle = theme.sunken;
        ctx.fillRect(left, top, side, side);
      }
      return;
    }
    const shared = map.refs[block] > 1;
    const faded = this.isFaded(map, block, owner);
    const color = this.view.color(owner);
    ctx.globalAlpha = faded ? 0.22 : 1;
    const share = map.fill(block) / map.blockSize;
    if (share < 1) {
      ctx.fillStyle = withAlpha(color, 0.14);
      ctx.fillRect(left, top, side, side);
      ctx.fillStyle = hatch(ctx, "stripes", withAlpha(color, 0.6));
      ctx.fillRect(left, top, side, side);
    }
    ctx.fillStyle = color;
    ctx.fillRect(left, top, side * share, side);
    const pattern = requestPattern(owner);
    if (pattern !== "plain" && share > 0 && side >= 9) {
      ctx.fillStyle = hatch(ctx, pattern, withAlpha(inkOn(color), 0.35));
      ctx.fillRect(left, top, side * share, side);
    }
    if (shared) this.drawShared(ctx, map.refs[block], left, top, side, color);
    else if (side >= 13) this.drawLetter(ctx, label(owner), left, top, side, share > 0.5 ? inkOn(color) : theme.text);
    if (this.view.cursor.selected !== null && !faded) {
      ctx.strokeStyle = theme.text;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(left + 0.5, top + 0.5, side - 1, side - 1);
    }
    ctx.globalAlpha = 1;
  }

  drawLetter(ctx, text, left, top, side, color) {
    ctx.font = `600 ${Math.min(12, side * 0.62)}px ${this.view.theme.font}`;
    ctx.fillStyle = color;
    if (text.length * side * 0.4 <= side) ctx.fillText(text, left + side / 2, top + side / 2 + 0.5);
  }

  /** A block of several owners: a white frame, and their number where it can be read. */
  drawShared(ctx, refs, left, top, side, color) {
    ctx.strokeStyle = this.view.theme.card;
    ctx.lineWidth = Math.max(1, side / 10);
    ctx.strokeRect(left + side * 0.18, top + side * 0.18, side * 0.64, side * 0.64);
    if (side >= 13) this.drawLetter(ctx, String(refs), left, top, side, inkOn(color));
  }

  isFaded(map, block, owner) {
    const { selected } = this.view.cursor;
    if (selected === null || owner === selected) return false;
    return map.refs[block] < 2 || !map.tables.get(selected)?.includes(block);
  }

  /** A cell of several blocks: stored, reserved and cached parts stacked from below, in the owner's colour if it is one. */
  drawMany(ctx, map, from, lay, x, y) {
    const { theme } = this.view;
    const to = Math.min(from + lay.each, lay.first + lay.length);
    const side = lay.size - 1;
    let [stored, owned, cached, owner] = [0, 0, 0, null];
    for (let block = from; block < to; block++) {
      if (map.refs[block] > 0) {
        owned += 1;
        stored += map.fill(block) / map.blockSize;
        owner = owner === null || owner === map.owner[block] ? map.owner[block] : -1;
      } else if (map.cached.has(block)) cached += 1;
    }
    const scale = side / (to - from);
    ctx.fillStyle = theme.sunken;
    ctx.fillRect(x, y, side, side);
    ctx.globalAlpha = owner !== null && owner >= 0 && this.view.isFaded(owner) ? 0.25 : 1;
    const color = owner !== null && owner >= 0 ? this.view.color(owner) : theme.stored;
    let bottom = y + side;
    for (const [n, paint] of [[stored, color], [owned - stored, hatch(ctx, "stripes", withAlpha(color, 0.7))], [cached, withAlpha(theme.cached, 0.5)]]) {
      ctx.fillStyle = paint;
      ctx.fillRect(x, bottom - n * scale, side, n * scale);
      bottom -= n * scale;
    }
    ctx.globalAlpha = 1;
  }

  drawGlow(ctx, now) {
    const { lay } = this;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.glow.clear();
    for (const [block, at] of this.glow) {
      const cell = Math.floor((block - lay.first) / lay.each);
      if (cell < 0 || cell >= lay.cells) continue;
      const strength = 1 - (now - at) / GLOW_MS;
      ctx.strokeStyle = withAlpha(this.view.theme.accent, Math.max(0, strength));
      ctx.lineWidth = 2;
      ctx.strokeRect((cell % lay.columns) * lay.size, Math.floor(cell / lay.columns) * lay.size, lay.size - 1, lay.size - 1);
    }
  }

  say() {
    const { frame, map } = this.view;
    if (!frame) return;
    const { active, stored, free, cached } = frame.memory;
    const slots = active * frame.blockSize;
    const unused = slots - stored;
    const why = frame.layout === "contiguous" ? "contiguous memory reserves room for the longest answer" : "only the last block of each request is not full";
    const text = active
      ? `${count(active, "block")} owned, ${percent(stored / slots)} of them filled: ${number(unused)} of ${number(slots)} token places are reserved but unused (${percent(unused / slots)}; ${why}). ${number(free)} free${cached ? `, ${number(cached)} cached` : ""}.`
      : `All ${count(map.numBlocks, "block")} of ${count(map.blockSize, "token")} are unowned${cached ? `; ${number(cached)} are cached` : ""}.`;
    setText(this.panel.headline, text);
    this.canvas.setAttribute("aria-label", `Grid of ${map.numBlocks} KV blocks at step ${frame.step}. ${text}`);
  }

  /** Which part of the pool is in sight. */
  sayWhere() {
    this.out.hidden = !this.window;
    const { first, length, each } = this.lay;
    setText(this.out, this.window ? `blocks ${number(first)}–${number(first + length - 1)}: show all` : "");
    this.panel.root.classList.toggle("ep-many", each > 1);
  }

  zoomTo(window) {
    this.window = window;
    this.draw();
  }

  /** Show `factor` times as many blocks around `center`. */
  zoom(factor, center = null) {
    const total = this.view.map.numBlocks;
    const [first, length] = this.window ?? [0, total];
    const wanted = Math.max(Math.min(64, total), Math.round(length * factor));
    if (wanted >= total) return this.zoomTo(null);
    const middle = center ?? first + length / 2;
    const start = Math.round(middle - (wanted * (middle - first)) / length);
    this.zoomTo([Math.max(0, Math.min(total - wanted, start)), wanted]);
  }

  wheel(event) {
    const block = this.blockAt(event);
    if (!(event.ctrlKey || event.metaKey) || block === null) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 0.5 : 2, block);
  }

  blockAt(event) {
    if (!this.lay) return null;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.lay.size);
    const cell = Math.floor((event.clientY - box.top) / this.lay.size) * this.lay.columns + column;
    if (column < 0 || column >= this.lay.columns || cell < 0 || cell >= this.lay.cells) return null;
    return this.lay.first + cell * this.lay.each;
  }

  hover(event) {
    const block = this.blockAt(event);
    if (block === null) return tooltip.hide();
    tooltip.show(event, this.lay.each === 1 ? this.blockWords(block) : this.manyWords(block));
  }

  blockWords(block) {
    const { map } = this.view;
    const owners = map.owners(block).map(([id, index]) => `${label(id)} (its block ${index})`);
    const head = map.cached.get(block);
    const used = map.touched[block];
    return [
      `Block ${number(block)}: ${map.kind(block)}`,
      owners.length ? `owner${owners.length > 1 ? "s" : ""}: ${owners.join(", ")}` : null,
      `${map.fill(block)} of ${count(map.blockSize, "token")} stored`,
      head ? `can be found by its prefix, ${head}…` : null,
      used >= 0 ? `last changed hands in step ${number(used)}` : null,
    ];
  }

  manyWords(from) {
    const { map } = this.view;
    const to = Math.min(from + this.lay.each, map.numBlocks);
    const counts = { active: 0, shared: 0, cached: 0, free: 0 };
    for (let block = from; block < to; block++) counts[map.kind(block)] += 1;
    return [`Blocks ${number(from)}–${number(to - 1)}`, ...Object.entries(counts).filter(([, n]) => n).map(([kind, n]) => `${number(n)} ${kind}`), "Click to open"];
  }

  click(event) {
    const block = this.blockAt(event);
    if (block === null) return;
    if (this.lay.each > 1) return this.zoom(Math.min(0.25, 1 / this.lay.each), block);
    const owner = this.view.map.owner[block];
    if (owner >= 0) this.view.cursor.toggle(owner);
  }

  table() {
    const { map } = this.view;
    const rows = [...map.tables].sort((a, b) => a[0] - b[0]).map(([id, table]) => {
      const stored = map.computed.get(id) ?? 0;
      const shared = table.filter((block) => map.refs[block] > 1).length;
      return [label(id), table.length, stored, table.length * map.blockSize - stored, shared, runs(table)];
    });
    return { head: ["Request", "Blocks", "Tokens stored", "Reserved, unused", "Shared blocks", "Physical blocks"], rows };
  }
}

/** Block ids in words: "4–9, 12, 20–21". */
export function runs(ids) {
  const parts = [];
  for (let i = 0; i < ids.length; ) {
    let j = i;
    while (j + 1 < ids.length && ids[j + 1] === ids[j] + 1) j++;
    parts.push(i === j ? String(ids[i]) : `${ids[i]}–${ids[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}
