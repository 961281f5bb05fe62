// From the feed's deltas to whole frames: what viz/encoding.py writes, this reads. Pure: no DOM, no clock.
//
// A frame is one step as a person would describe it:
//   step, t, end (s), duration (s), policy, layout, budget, slots, numBlocks, blockSize,
//   pendingPrefill, pendingDecode, activePrefill, activeDecode (ids; unchanged lists are shared between frames),
//   tokens, padding, computed, outputs (Map id → number; what changed), inactive,
//   waiting (Map id → wait), waitDefault, memory {free, cached, active, stored, internal, external},
//   counters {preemptions, evictions, queried, hit, wasted}, events, evicted, times (s, in TIMES' order),
//   blocks {tables: [[id, start, ids]], released, cached: [[block, head]], uncached}

export const TIMES = ["schedule", "batch", "forward", "sample", "commit", "publish"];

const EMPTY = Object.freeze([]);
const NOTHING = new Map();

function list(delta, before) {
  if (!delta) return before ?? EMPTY;
  if (delta["="]) return delta["="];
  let ids = before;
  if (delta["-"]) {
    const gone = new Set(delta["-"]);
    ids = ids.filter((id) => !gone.has(id));
  }
  return delta["+"] ? ids.concat(delta["+"]) : ids;
}

function entries(object) {
  return object ? Object.entries(object).map(([id, value]) => [Number(id), value]) : [];
}

/** `Wait` of engine/telemetry/record.py, field by field. */
const WAIT = ["reason", "needed_blocks", "available_blocks", "behind", "free_blocks", "cached_blocks", "promised_blocks", "own_prefix_blocks"];

function toWait(values) {
  return Object.fromEntries(WAIT.map((name, i) => [name, values[i] ?? undefined]));
}

function waits(raw, before) {
  if (!raw.w && !raw.wx) return raw.k ? NOTHING : before.waiting;
  const waiting = new Map(raw.k ? [] : before.waiting);
  for (const id of raw.wx ?? []) waiting.delete(id);
  for (const [id, wait] of entries(raw.w)) waiting.set(id, toWait(wait));
  return waiting;
}

function except(expected, exceptions) {
  for (const [id, value] of entries(exceptions)) {
    if (value === null) expected.delete(id);
    else expected.set(id, value);
  }
  return expected;
}

function work(raw, activeDecode) {
  const tokens = new Map();
  const flat = raw.ap ?? EMPTY;
  for (let i = 0; i < flat.length; i += 2) tokens.set(flat[i], flat[i + 1]);
  for (const id of activeDecode) tokens.set(id, 1);
  return except(tokens, raw.nt);
}

function changes(raw, tokens, activeDecode, map) {
  if (raw.k) return [except(new Map(), raw.c), except(new Map(), raw.o)];
  const computed = new Map();
  for (const [id, n] of tokens) computed.set(id, (map.computed.get(id) ?? 0) + n);
  const outputs = new Map();
  for (const id of activeDecode) outputs.set(id, (map.outputs.get(id) ?? 0) + 1);
  return [except(computed, raw.c), except(outputs, raw.o)];
}

/** One frame from one encoded step, the frame before it (null when `raw.k`) and the block map just before it. */
export function expand(raw, before, map) {
  const b = before ?? {};
  const [policy, layout, budget, slots, numBlocks, blockSize] =
    raw.cfg ?? [b.policy, b.layout, b.budget, b.slots, b.numBlocks, b.blockSize];
  const activeDecode = list(raw.ad, b.activeDecode);
  const activePrefill = raw.ap ? raw.ap.filter((_, i) => i % 2 === 0) : EMPTY;
  const tokens = work(raw, activeDecode);
  const [computed, outputs] = changes(raw, tokens, activeDecode, map);
  const [free, cached, active, stored, internal, external] = raw.m ?? [];
  const [preemptions, evictions, queried, hit, wasted] = raw.n ?? [];
  return {
    step: raw.s,
    t: raw.t,
    duration: raw.d / 1e6,
    end: raw.t + raw.d / 1e6,
    policy, layout, budget, slots, numBlocks, blockSize,
    pendingPrefill: list(raw.pp, b.pendingPrefill),
    pendingDecode: list(raw.pd, b.pendingDecode),
    activePrefill,
    activeDecode,
    tokens,
    padding: raw.pad ? new Map(entries(raw.pad)) : NOTHING,
    inactive: raw.ina ?? 0,
    computed,
    outputs,
    waiting: waits(raw, b),
    waitDefault: raw.wd === undefined ? (b.waitDefault ?? null) : raw.wd && toWait(raw.wd),
    memory: raw.m
      ? { free, cached, active, stored, internal: internal / 1e4, external: external / 1e4 }
      : b.memory,
    counters: raw.n ? { preemptions, evictions, queried, hit, wasted } : b.counters,
    events: raw.e ?? EMPTY,
    evicted: raw.ev ?? EMPTY,
    times: (raw.x ?? []).map((us) => us / 1e6),
    blocks: {
      tables: entries(raw.bt).map(([id, [start, ids]]) => [id, start, ids]),
      released: raw.rel ?? EMPTY,
      cached: raw.ca ?? EMPTY,
      uncached: raw.un ?? EMPTY,
    },
  };
}

/** Reasons that everybody in the queue shares; all others are those of the first, and the rest stands behind it. */
const FOR_ALL = new Set(["behind", "batch_closed", "cohort_forming", "draining", "paused"]);

/**
 * Why `id` waited in `frame`, or null if it ran, or was not there. A record gives the whole queue the reason of the first
 * (no slot, say) until there is room and the first lacks memory: then that is its own. Whoever stands behind it stands in
 * line all the while.
 */
export function waitOf(frame, id) {
  if (frame.tokens.has(id)) return null;
  const own = frame.waiting.get(id);
  if (own) return own;
  if (!frame.pendingPrefill.includes(id)) return null;
  if (!frame.waitDefault || FOR_ALL.has(frame.waitDefault.reason)) return frame.waitDefault;
  const first = frame.pendingPrefill.find((other) => !frame.tokens.has(other) && !frame.waiting.has(other));
  return id === first ? frame.waitDefault : { reason: "behind", behind: first };
}
