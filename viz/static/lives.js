// Each request's life, told from frames: when it waited and why, was read, answered, was thrown out, ended.
// Pure: no DOM. Times are seconds of the engine's clock.

import { waitOf } from "./wire.js";

const RESUMED = "preempted";

/** One request: what is known of it and its stretches of time. */
export class Life {
  constructor(id, details, step, t) {
    this.id = id;
    this.step = step; // when it was first seen
    this.arrival = t; // a step late until it is let in, when its queue time tells exactly
    this.promptTokens = details.num_prompt_tokens ?? null;
    this.maxTokens = details.max_tokens ?? null;
    this.siblingOf = details.sibling_of ?? null;
    this.numOutputs = details.num_output_tokens ?? 0;
    this.cachedTokens = 0;
    this.queue = null; // s until it was first let in
    this.ttft = null;
    this.firstTokenAt = null;
    this.prefillTime = 0; // s of the steps that read its prompt before the first token
    this.lastTokenAt = null;
    this.finished = null; // the event, with its step and time
    this.events = []; // its events, each with step and t
    this.segments = []; // {kind, from, to, step, tokens, reason}; kinds: queue, prefill, decode, stall, preempted
    this.waits = new Map(); // reason → s, up to the first token
    this.wasPreempted = false;
  }

  /** One more step of `kind`; a stretch of waiting lasts until the next step that does something. */
  extend(kind, frame, more = {}) {
    const last = this.segments[this.segments.length - 1];
    if (last && last.kind === kind && kind !== "prefill") {
      last.to = frame.end;
      last.reason = more.reason; // the newest one; how long each lasted stands in `waits`
      last.lastStep = frame.step;
      return;
    }
    if (last && last.reason) last.to = Math.max(last.to, frame.t);
    const from = last && more.reason ? last.to : frame.t;
    this.segments.push({ kind, from, to: frame.end, step: frame.step, lastStep: frame.step, ...more });
  }

  /** It is let in, after `queue` seconds: now it is known when it came, also between two steps. */
  admit(frame) {
    this.arrival = frame.t - this.queue;
    const [first] = this.segments;
    if (first && first.kind === "queue") first.from = this.arrival;
    else if (this.queue > 0) {
      const step = frame.step;
      this.segments.unshift({ kind: "queue", from: this.arrival, to: frame.t, step, lastStep: step, reason: "step_under_way" });
    }
    const explained = [...this.waits.values()].reduce((a, b) => a + b, 0);
    if (this.queue - explained > 0.0005) this.waits.set("step_under_way", this.queue - explained);
  }
}

export class Lives {
  constructor(requests = {}) {
    this.all = new Map();
    this.cohort = new Set(); // members of the running static batch
    for (const [id, details] of Object.entries(requests)) {
      this.all.set(Number(id), new Life(Number(id), details, 0, null));
    }
  }

  get(id) {
    return this.all.get(id) ?? null;
  }

  of(id, frame) {
    let life = this.all.get(id);
    if (!life) {
      life = new Life(id, {}, frame.step, frame.t);
      this.all.set(id, life);
    }
    return life;
  }

  observe(frame) {
    for (const event of frame.events) if (event.type === "arrived") this.arrive(event, frame);
    this.observeWork(frame);
    this.observeTokens(frame);
    for (const event of frame.events) if (event.type !== "arrived") this.happen(event, frame);
    this.observeCohort(frame);
  }

  arrive(event, frame) {
    const life = new Life(event.request_id, event, frame.step, frame.t);
    life.events.push({ ...event, step: frame.step, t: frame.t });
    this.all.set(event.request_id, life);
  }

  observeWork(frame) {
    for (const id of frame.activePrefill) {
      const life = this.of(id, frame);
      life.extend("prefill", frame, { tokens: frame.tokens.get(id) });
      if (life.firstTokenAt === null) life.prefillTime += frame.duration;
    }
    for (const id of frame.activeDecode) this.of(id, frame).extend("decode", frame);
    for (const id of frame.pendingPrefill) {
      if (frame.tokens.has(id)) continue;
      const wait = waitOf(frame, id);
      const life = this.of(id, frame);
      const reason = wait ? wait.reason : "behind";
      this.wait(life, frame, reason, life.queue === null ? "queue" : life.wasPreempted ? RESUMED : "stall");
    }
    for (const id of frame.pendingDecode) {
      if (!frame.tokens.has(id)) this.wait(this.of(id, frame), frame, frame.waiting.get(id)?.reason ?? "no_slot", "stall");
    }
  }

  wait(life, frame, reason, kind) {
    const before = life.segments[life.segments.length - 1];
    const since = before ? before.to : frame.t;
    if (life.firstTokenAt === null) {
      life.waits.set(reason, (life.waits.get(reason) ?? 0) + Math.max(0, frame.end - since));
    }
    life.extend(kind, frame, { reason });
  }

  observeTokens(frame) {
    const gaps = new Map(); // gap in 0.1 ms → how many requests saw it
    for (const [id, n] of frame.outputs) {
      const life = this.of(id, frame);
      if (life.lastTokenAt !== null && n > life.numOutputs) {
        const gap = Math.round((frame.end - life.lastTokenAt) * 1e4) / 1e4;
        gaps.set(gap, (gaps.get(gap) ?? 0) + 1);
      }
      life.numOutputs = n;
      life.lastTokenAt = frame.end;
    }
    frame.gaps = [...gaps];
  }

  happen(event, frame) {
    if (event.request_id === undefined) return;
    const life = this.of(event.request_id, frame);
    const dated = { ...event, step: frame.step, t: frame.t };
    life.events.push(dated);
    if (event.type === "admitted") {
      life.wasPreempted = false;
      if (!event.is_resumed) {
        life.queue = event.queue_s ?? frame.t - life.arrival;
        life.admit(frame);
        life.cachedTokens = event.cached_tokens ?? 0;
      }
    } else if (event.type === "first_token") {
      life.ttft = event.ttft_s ?? frame.end - life.arrival;
      life.firstTokenAt = frame.end;
    } else if (event.type === "preempted") {
      life.wasPreempted = true;
    } else if (event.type === "finished") {
      life.finished = dated;
    }
  }

  /** Which requests keep a slot of a static batch although they have ended. */
  observeCohort(frame) {
    frame.inactiveIds = [];
    if (frame.policy !== "static") {
      this.cohort.clear();
      return;
    }
    const active = [...frame.activePrefill, ...frame.activeDecode];
    if (active.length && !active.some((id) => this.cohort.has(id))) this.cohort.clear();
    for (const id of active) this.cohort.add(id);
    if (!frame.inactive) return;
    const ended = [...this.cohort].filter((id) => this.all.get(id)?.finished && !frame.tokens.has(id));
    frame.inactiveIds = ended.slice(0, frame.inactive);
  }

  /** Drop those that ended before `frame`, and stretches that ended before it. */
  forget(frame) {
    for (const [id, life] of this.all) {
      if (life.finished && life.finished.step < frame.step) this.all.delete(id);
    }
  }
}
