// Colours and patterns. A request keeps one colour everywhere; it is never the only sign: its letter stands beside it,
// and after eight requests the colours come round again with another pattern. The hues were searched for, not picked: any
// two differ also for eyes without red, green or blue cones, and each stands out from the card behind it (a test computes it).

import { TIMES } from "./wire.js";

export const LIGHT = ["#1d72af", "#fc5d6f", "#08a68f", "#b63c78", "#af7708", "#948cd6", "#59640a", "#5a2787"];
export const DARK = ["#687cbd", "#f98326", "#13aa86", "#e091cd", "#f8ca22", "#93dcfd", "#a07503", "#9c4ff3"];
const PATTERNS = ["plain", "stripes", "dots"];

export function isDark() {
  return document.body.classList.contains("dark");
}

export function requestColor(id, dark = isDark()) {
  const hues = dark ? DARK : LIGHT;
  return hues[(((id - 1) % hues.length) + hues.length) % hues.length];
}

export function requestPattern(id) {
  return PATTERNS[Math.floor(Math.max(0, id - 1) / LIGHT.length) % PATTERNS.length];
}

/** Black or white, whichever stands out more from `color` (#rrggbb); 4.5 to 1 at least, whatever the colour. */
export function inkOn(color) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16) / 255);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) + 0.05;
  return light / 0.05 > 1.05 / light ? "#000000" : "#ffffff";
}

export function withAlpha(color, alpha) {
  return color + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

/** The page's own colours, from the style sheet's custom properties on `element`. */
export function readTheme(element) {
  const style = getComputedStyle(element);
  const get = (name) => style.getPropertyValue(`--ep-${name}`).trim();
  return {
    dark: isDark(),
    text: get("text"),
    dim: get("dim"),
    line: get("line"),
    card: get("card"),
    sunken: get("sunken"),
    accent: get("accent"),
    bad: get("bad"),
    stored: get("stored"),
    reserved: get("reserved"),
    cached: get("cached"),
    free: get("free"),
    times: Object.fromEntries(TIMES.map((name) => [name, get(`time-${name}`)])),
    font: style.fontFamily,
  };
}

const tiles = new Map();

/** A repeating canvas pattern: "stripes", "dots" or "cross" in `color` on nothing. */
export function hatch(ctx, kind, color, scale = 1) {
  const key = `${kind} ${color} ${scale}`;
  let tile = tiles.get(key);
  if (!tile) {
    const size = Math.round(6 * scale);
    tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = Math.max(1, scale * 1.1);
    pen.beginPath();
    if (kind === "dots") pen.arc(size / 2, size / 2, size / 5, 0, 7);
    for (const shift of kind === "dots" ? [] : [-size, 0, size]) {
      pen.moveTo(shift, size);
      pen.lineTo(shift + size, 0);
      if (kind === "cross") {
        pen.moveTo(shift, 0);
        pen.lineTo(shift + size, size);
      }
    }
    if (kind === "dots") pen.fill();
    else pen.stroke();
    if (tiles.size > 200) tiles.clear();
    tiles.set(key, tile);
  }
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / (window.devicePixelRatio || 1)));
  return pattern;
}

/** Give `canvas` a size in CSS pixels and return its pen, scaled for the screen. */
export function penFor(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return ctx;
}
