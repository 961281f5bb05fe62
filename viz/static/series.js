// Frames as the rows of a chart: binned to what a screen can show. Pure: no DOM.

const BINS = 300;

/** The frames between two times, at most one (the last) for each of `BINS` equal stretches of time. */
export function thinned(frames, from, to, bins = BINS) {
  const width = Math.max((to - from) / bins, 1e-9);
  const kept = [];
  let bin = -1;
  for (const frame of frames) {
    const at = Math.floor((frame.t - from) / width);
    if (at === bin) kept[kept.length - 1] = frame;
    else kept.push(frame);
    bin = at;
  }
  return kept;
}

/** x and y of a line over `frames` that falls to zero where no step ran for a while. */
export function withPauses(frames, value, longest = 0.25) {
  const [x, y] = [[], []];
  frames.forEach((frame, i) => {
    const before = frames[i - 1];
    if (before && frame.t - before.end > longest) {
      x.push(before.end, frame.t);
      y.push(0, 0);
    }
    x.push(frame.t);
    y.push(value(frame));
  });
  return { x, y };
}

/** Frames whose time lies in [from, to]; one more on each side so that lines reach the edges. */
export function between(history, from, to) {
  if (!history.frames.length) return [];
  const first = Math.max(0, history.indexAt(from) - 1);
  const last = Math.min(history.frames.length - 1, history.indexAt(to) + 1);
  return history.frames.slice(first, last + 1);
}

/** The value below which `share` of the weight lies; `pairs` are [value, weight]. Null for nothing. */
export function percentile(pairs, share) {
  if (!pairs.length) return null;
  const sorted = [...pairs].sort((a, b) => a[0] - b[0]);
  const total = sorted.reduce((sum, [, weight]) => sum + weight, 0);
  let seen = 0;
  for (const [value, weight] of sorted) {
    seen += weight;
    if (seen >= share * total - 1e-9) return value;
  }
  return sorted[sorted.length - 1][0];
}

/** Gaps between tokens by stretch of time: {t, p50, p95, n}. */
export function gapsOverTime(frames, from, to, bins = 80) {
  const width = Math.max((to - from) / bins, 1e-9);
  const found = new Map();
  for (const frame of frames) {
    if (!frame.gaps.length) continue;
    const bin = Math.floor((frame.t - from) / width);
    found.set(bin, (found.get(bin) ?? []).concat(frame.gaps));
  }
  return [...found].map(([bin, pairs]) => ({
    t: from + (bin + 0.5) * width,
    p50: percentile(pairs, 0.5),
    p95: percentile(pairs, 0.95),
    n: pairs.reduce((sum, [, weight]) => sum + weight, 0),
  }));
}

/** A first token's time in its parts (s): waiting, reading the prompt, other. */
export function ttftParts(life) {
  const waiting = Math.min(life.queue ?? 0, life.ttft);
  const prefill = Math.min(life.prefillTime, Math.max(0, life.ttft - waiting));
  return { waiting, prefill, other: Math.max(0, life.ttft - waiting - prefill) };
}

/** Lives whose first token came in the stretch of time in sight, in order. */
export function firstTokens(view, range) {
  const [from, to] = range.now();
  const came = [...view.history.lives.all.values()].filter((life) => life.ttft !== null && life.firstTokenAt >= from && life.firstTokenAt <= to + 1e-6);
  return came.sort((a, b) => a.firstTokenAt - b.firstTokenAt);
}

/** Who still waits for a first token at the newest step, the longest first: {life, waited (s), isIn (holds memory)}. */
export function stillWaiting(history) {
  const { last } = history;
  if (!last) return [];
  const waiting = [];
  for (const id of last.pendingPrefill) {
    const life = history.lives.get(id);
    if (!life || life.ttft !== null || life.finished || life.numOutputs > 0) continue;
    const since = life.arrival ?? life.segments[0]?.from ?? last.t; // of who came before this page did, less is known
    waiting.push({ life, waited: last.end - since, isIn: last.tokens.has(id) || history.map.tables.has(id) });
  }
  return waiting.sort((a, b) => b.waited - a.waited);
}
