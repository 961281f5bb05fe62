// One time and one selection, shared by every panel of every view on the page. Pure: no DOM.

export class Cursor {
  constructor() {
    this.time = null; // seconds of the engine's clock; null follows the newest step
    this.selected = null; // request id
    this.listeners = new Set();
  }

  get isLive() {
    return this.time === null;
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  set(changes) {
    let changed = false;
    for (const [name, value] of Object.entries(changes)) {
      if (this[name] !== value) {
        this[name] = value;
        changed = true;
      }
    }
    if (changed) for (const listener of this.listeners) listener(this);
  }

  toggle(id) {
    this.set({ selected: this.selected === id ? null : id });
  }
}
