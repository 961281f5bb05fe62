// What a request did in one step, and what a step's rows were spent on. Pure: no DOM.

import { waitOf } from "./wire.js";

/** What `id` did in `frame`: {kind, …}; null when it was not there. */
export function activity(history, frame, id) {
  const preempted = frame.events.find((e) => e.type === "preempted" && e.request_id === id);
  const padding = frame.padding.get(id) ?? 0;
  const tokens = frame.tokens.get(id);
  if (frame.activePrefill.includes(id)) {
    const admitted = frame.events.find((e) => e.type === "admitted" && e.request_id === id);
    return { kind: "prefill", tokens, padding, cached: admitted?.cached_tokens ?? 0, preempted };
  }
  if (tokens !== undefined) return { kind: "decode", tokens, padding, preempted };
  if (frame.inactiveIds.includes(id)) return { kind: "inactive", tokens: 1, padding, preempted };
  if (frame.pendingPrefill.includes(id) || frame.pendingDecode.includes(id) || preempted) {
    return { kind: "wait", wait: waitOf(frame, id), padding, preempted };
  }
  return null;
}

/** How many rows a step computed, by kind. */
export function rowsOf(frame) {
  const sum = (ids) => ids.reduce((n, id) => n + (frame.tokens.get(id) ?? 0), 0);
  const padding = [...frame.padding.values()].reduce((a, b) => a + b, 0);
  return { prefill: sum(frame.activePrefill), decode: sum(frame.activeDecode), padding, inactive: frame.inactive };
}

/** All rows of a step. */
export function total(rows) {
  return rows.prefill + rows.decode + rows.padding + rows.inactive;
}
