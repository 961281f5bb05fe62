// Plays what was: moves the one time cursor on, at a chosen speed, until the newest step. Pure: no DOM. Who calls again
// for the next picture of the screen is an argument, and calls with a time in ms.

export const SPEEDS = [0.5, 1, 4, 16];
const LONGEST_PAUSE_S = 1; // of the engine's clock: where nobody was there for longer, the rest is left out
const LONGEST_TICK_S = 0.25; // a screen that stood still goes on where it was, and does not jump

export class Player {
  /** `view` leads; `views` are all that show the cursor's time. */
  constructor(view, views = [view], callAgain = (tick) => requestAnimationFrame(tick)) {
    Object.assign(this, { view, views, callAgain, speed: 1, isPlaying: false, listeners: new Set() });
    this.round = 0; // tells a call that was asked for before the last pause
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() {
    for (const listener of this.listeners) listener(this);
  }

  /** Whether the picture follows an engine that goes on: then it can be held, not played. */
  get isFollowing() {
    return this.view.cursor.isLive && !this.view.source.isRun;
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else if (this.isFollowing) this.hold();
    else this.play();
  }

  hold() {
    const { frame, cursor } = this.view;
    if (frame) cursor.set({ time: frame.t });
  }

  /** From where the cursor stands; a run that is at its end plays from its beginning. */
  play() {
    const { history, cursor } = this.view;
    if (this.isPlaying || !history.frames.length) return;
    if (cursor.isLive) cursor.set({ time: history.frames[0].t });
    this.time = this.told = cursor.time;
    this.isPlaying = true;
    this.tell();
    this.next(++this.round, null);
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.round += 1;
    this.tell();
  }

  next(round, before) {
    this.callAgain((now) => {
      if (round !== this.round) return;
      if (before !== null) this.advance(Math.min(LONGEST_TICK_S, (now - before) / 1000));
      if (this.isPlaying) this.next(round, now);
    });
  }

  /** Go on by `s` seconds of the person's clock. */
  advance(s) {
    const { history, cursor } = this.view;
    if (cursor.isLive) return this.pause(); // somebody went to the newest step
    if (cursor.time !== this.told) this.time = cursor.time; // somebody moved it: it plays on from there
    const at = history.indexAt(this.time);
    const [here, then] = [history.frames[at], history.frames[at + 1]];
    let time = Math.max(this.time, here.t) + s * this.speed;
    if (then && time < then.t && time > here.end + LONGEST_PAUSE_S) time = then.t;
    this.time = time;
    if (time >= history.last.t) {
      cursor.set({ time: null });
      return this.pause();
    }
    if (this.views.some((view) => view.history.at(time) !== view.frame)) cursor.set({ time });
    this.told = cursor.time;
  }
}
