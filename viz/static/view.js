// One source seen at one time: what every panel asks for the step, the block map and a request's look.

import { requestColor } from "./theme.js";
import { fill, label } from "./words.js";

export class View {
  constructor(source, cursor, words) {
    this.source = source;
    this.cursor = cursor;
    this.words = words;
    this.theme = null; // set before every drawing
  }

  get history() {
    return this.source.history;
  }

  /** The step that all panels show. */
  get frame() {
    return this.cursor.isLive ? this.history.last : this.history.at(this.cursor.time);
  }

  /** Whether what is shown is now, and now nobody is there. */
  get isIdle() {
    return this.cursor.isLive && !this.source.isRun && this.history.isIdle;
  }

  /** Whether there is a recording behind this page and no engine: nobody can send anything. */
  get isRecorded() {
    return Boolean(this.history.state.replay);
  }

  get map() {
    const frame = this.frame;
    return frame ? this.history.mapAt(frame.step) : this.history.map;
  }

  color(id) {
    return requestColor(id, this.theme.dark);
  }

  /** Whether to fade what belongs to `id`: another request is selected. */
  isFaded(id) {
    return this.cursor.selected !== null && this.cursor.selected !== id;
  }

  waitWords(wait) {
    return fill(this.words.wait[wait.reason] ?? wait.reason, { ...wait, slots: this.frame?.slots });
  }

  waitShort(reason) {
    return this.words.wait_short[reason] ?? reason;
  }

  eventWords(event) {
    const values = { ...event, reason: this.words.finish[event.reason] ?? event.reason };
    return fill(this.words.event[event.type] ?? event.type, values);
  }

  /** Requests to show at `frame`: all that are there, and those that ended in the last moments. */
  requestsAt(frame) {
    const ids = new Set([...frame.pendingDecode, ...frame.pendingPrefill, ...frame.tokens.keys()]);
    return [...ids].sort((a, b) => a - b);
  }

  label(id) {
    return label(id);
  }

  select(id, frame = null) {
    this.cursor.set(frame && frame !== this.history.last ? { selected: id, time: frame.t } : { selected: id });
  }
}
