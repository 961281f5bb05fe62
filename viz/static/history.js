// The last few thousand steps as a page knows them: frames, the block map at any of them, and each request's life.
// Pure: no DOM, no clock, no network; fed with the feed's answers (viz/feed.py).

import { BlockMap } from "./blockmap.js";
import { Lives } from "./lives.js";
import { expand } from "./wire.js";

const KEYFRAMES = 16; // block maps kept for scrubbing back; fewer where the pool is huge
const HUGE_POOL = 50_000;

export class History {
  constructor() {
    this.epoch = null;
    this.state = {}; // what people set: policy, sizes, paused, draining, …
    this.skipped = null; // [from, to] of steps this page was not sent, if it had to skip some
    this.clear(new BlockMap(), null, {});
  }

  clear(map, previous, requests) {
    this.frames = [];
    this.previous = previous; // the frame before the next one
    this.map = map; // just after the newest frame
    this.keyframes = [map.clone()]; // the first one is from before the oldest frame
    this.scrubbed = null;
    this.lives = new Lives(requests);
  }

  get oldest() {
    return this.frames.length ? this.frames[0].step : this.map.step + 1;
  }

  get newest() {
    return this.frames.length ? this.frames[this.frames.length - 1].step : this.map.step;
  }

  get last() {
    return this.frames[this.frames.length - 1] ?? null;
  }

  /** Whether everybody who was in the newest step has ended in it: no step follows until somebody comes. */
  get isIdle() {
    const { last } = this;
    if (!last) return true;
    const ended = new Set(last.events.filter((e) => e.type === "finished").map((e) => e.request_id));
    const there = [...last.pendingPrefill, ...last.pendingDecode, ...last.tokens.keys()];
    return there.every((id) => ended.has(id));
  }

  /** Take in one answer of the feed; returns how many frames are new. */
  ingest(answer) {
    if (answer.state) this.state = answer.state;
    if (answer.base) {
      const map = BlockMap.fromBase(answer.base);
      const previous = answer.base.prev ? expand(answer.base.prev, null, map) : null;
      this.clear(map, previous, answer.base.requests);
      this.skipped = answer.skipped ?? null;
      this.epoch = answer.epoch;
    } else if (answer.epoch !== this.epoch) {
      throw new Error("an answer of another epoch came without a base");
    }
    let added = 0;
    for (const raw of answer.steps) {
      if (raw.s <= this.newest) continue;
      if (raw.s !== this.newest + 1) throw new Error(`step ${raw.s} came after ${this.newest}`);
      this.push(expand(raw, this.previous, this.map));
      added += 1;
    }
    if (added) this.forget(answer.oldest);
    return added;
  }

  push(frame) {
    this.map.apply(frame);
    this.lives.observe(frame);
    this.frames.push(frame);
    this.previous = frame;
    const kept = this.map.numBlocks > HUGE_POOL ? KEYFRAMES / 4 : KEYFRAMES;
    const every = Math.ceil(4096 / kept);
    if (frame.step % every === 0) this.keyframes.push(this.map.clone());
  }

  /** Drop frames before step `oldest`. */
  forget(oldest) {
    const drop = Math.min(oldest - this.oldest, this.frames.length - 1);
    if (drop <= 0) return;
    const gone = this.frames.splice(0, drop);
    const start = this.keyframes[0];
    for (const frame of gone) start.apply(frame);
    this.keyframes = [start, ...this.keyframes.slice(1).filter((map) => map.step > start.step)];
    this.lives.forget(this.frames[0]);
  }

  frame(step) {
    return this.frames[step - this.oldest] ?? null;
  }

  /** The last frame that began at `time` or before; the oldest one for an earlier time. */
  at(time) {
    return this.frames[this.indexAt(time)] ?? null;
  }

  indexAt(time) {
    let low = 0;
    let high = this.frames.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.frames[middle].t <= time) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The block map just after `step`; not to be changed, and valid until the next call. */
  mapAt(step) {
    if (step >= this.newest) return this.map;
    let start = this.keyframes[0];
    for (const map of this.keyframes) if (map.step <= step && map.step > start.step) start = map;
    if (!this.scrubbed || this.scrubbed.step > step || this.scrubbed.step < start.step) this.scrubbed = start.clone();
    for (let n = Math.max(this.scrubbed.step + 1, this.oldest); n <= step; n++) this.scrubbed.apply(this.frame(n));
    return this.scrubbed;
  }

  /** Tokens put out per second in the `window` seconds up to the end of `frame`. */
  tokensPerSecond(frame, window = 2) {
    let n = 0;
    let from = frame.t;
    for (let i = frame.step - this.oldest; i >= 0; i--) {
      const f = this.frames[i];
      if (f.t < frame.end - window) break;
      n += f.outputs.size;
      from = f.t;
    }
    return n ? n / Math.max(frame.end - from, 1e-6) : 0;
  }
}
