// Where steps come from: this server's engine (WebSocket, or polling where none gets through) or a finished run.
// A source has a history and tells its listeners when the history grew. Never knows what is drawn.

import { History } from "./history.js";

const POLL_MS = 250;
const RETRY_MS = [50, 500, 1000, 2000, 4000];

class Source {
  constructor() {
    this.history = new History();
    this.listeners = new Set();
    this.status = "connecting"; // connecting, live, away (nothing is asked), lost
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() {
    for (const listener of this.listeners) listener(this);
  }

  take(answer) {
    this.history.ingest(answer);
    this.status = "live";
    this.tell();
  }
}

/** Follows the engine as long as the page is looked at. One per page, however many panels. */
export class LiveSource extends Source {
  constructor(base = document.baseURI) {
    super();
    this.base = base;
    this.failures = 0;
    this.opened = false;
    document.addEventListener("visibilitychange", () => this.wake());
    this.connect();
  }

  get isAway() {
    return document.hidden;
  }

  setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    this.tell();
  }

  connect() {
    const url = new URL("ui/feed", this.base);
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url);
    this.socket.onopen = () => {
      this.opened = true;
      this.failures = 0;
      this.ask();
    };
    this.socket.onmessage = (message) => {
      this.receive(message.data);
      this.ask();
    };
    this.socket.onclose = () => this.retry();
  }

  receive(text) {
    try {
      this.take(JSON.parse(text));
    } catch (error) {
      console.warn("the feed is read anew:", error.message);
      this.history.epoch = null;
    }
  }

  question() {
    const { epoch, newest } = this.history;
    return epoch === null ? {} : { since: newest, epoch };
  }

  ask() {
    if (this.isAway) {
      this.setStatus("away");
    } else if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify(this.question()));
    }
  }

  wake() {
    if (!this.isAway && this.status === "away") {
      this.status = "live";
      this.ask();
    }
  }

  retry() {
    this.setStatus("lost");
    const wait = RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)];
    const again = !this.opened && this.failures > 1 ? () => this.poll() : () => this.connect();
    setTimeout(again, wait);
  }

  /** Plain HTTP, where a proxy lets no WebSocket through. */
  async poll() {
    if (!this.isAway) {
      try {
        const url = new URL("ui/steps", this.base);
        for (const [name, value] of Object.entries(this.question())) url.searchParams.set(name, value);
        const response = await fetch(url);
        if (!response.ok) throw new Error(`HTTP ${response.status}`);
        this.receive(await response.text());
      } catch {
        this.setStatus("lost");
      }
    }
    setTimeout(() => this.poll(), POLL_MS);
  }
}

/** A finished run: a comparison's side, or a trace. */
export class RunSource extends Source {
  constructor(answer, title = "") {
    super();
    this.title = title;
    this.isRun = true;
    const start = answer.steps[0]?.t ?? 0; // so that runs can be laid side by side
    this.take({ ...answer, steps: answer.steps.map((step) => ({ ...step, t: step.t - start })) });
  }

  static async load(id, title, base = document.baseURI) {
    const response = await fetch(new URL(`ui/runs/${encodeURIComponent(id)}`, base));
    if (!response.ok) throw new Error(await response.text());
    return new RunSource(await response.json(), title);
  }
}
