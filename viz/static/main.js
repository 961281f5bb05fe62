// The browser code's door: mounts panels into an element of the page.

import { boardOf, boardOfTwo } from "./boards.js";
import { Cursor } from "./cursor.js";
import { el } from "./dom.js";
import { LiveSource, RunSource } from "./source.js";

const shared = { cursor: new Cursor(), live: null, words: null, style: null };

async function loadWords(base) {
  shared.words ??= await (await fetch(new URL("ui/words.json", base))).json();
  return shared.words;
}

/** The style sheet, loaded once: canvases take their colours from it, so they are drawn after it has come. */
function loadStyle() {
  shared.style ??= new Promise((resolve) => {
    const href = new URL("./panels.css", import.meta.url).href;
    document.head.append(el("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
  });
  return shared.style;
}

/** A click on anything that names a request (`data-request`, or a link to `#request-12`) selects it everywhere. */
function listenForSelection(cursor) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#request-"]');
    if (!link) return;
    event.preventDefault();
    cursor.toggle(Number(link.getAttribute("href").slice("#request-".length)));
  });
  cursor.subscribe(() => {
    for (const link of document.querySelectorAll('a[href^="#request-"]')) {
      link.classList.toggle("ep-selected", link.getAttribute("href") === `#request-${cursor.selected}`);
    }
  });
}

/** The panels of this server's engine in `element`. All live panels of a page share one feed and one selection. */
async function mountLive(element, base) {
  const [words] = await Promise.all([loadWords(base), loadStyle()]);
  if (!shared.live) {
    shared.live = new LiveSource(base);
    listenForSelection(shared.cursor);
  }
  return boardOf(element, shared.live, words, shared.cursor);
}

/**
 * A place for finished runs: `show([{id, label}, …])` draws one run, or two side by side; none clears it. One with
 * `opens: "start"` stands at its first step, ready to play.
 */
class Runs {
  constructor(element, base) {
    Object.assign(this, { element, base, shown: "[]" });
  }

  async show(runs) {
    const key = JSON.stringify(runs.map(({ id }) => id));
    if (key === this.shown) return;
    this.shown = key;
    this.board?.end();
    this.element.replaceChildren();
    if (!runs.length) return;
    try {
      const loads = runs.slice(0, 2).map(({ id, label }) => RunSource.load(id, label, this.base));
      const [words, , ...sources] = await Promise.all([loadWords(this.base), loadStyle(), ...loads]);
      if (key !== this.shown) return; // another comparison has come meanwhile
      this.board = sources.length > 1 ? boardOfTwo(this.element, sources, words) : boardOf(this.element, sources[0], words, new Cursor());
      if (runs[0].opens === "start") this.board.top.readyToPlay();
    } catch (error) {
      this.element.replaceChildren(el("p", { role: "alert" }, `The runs could not be shown: ${error.message}`));
    }
  }
}

/** `kind` "live" draws at once; "compare" waits for `setValue({runs: [{id, label}, …]})`. */
export async function mount(element, { kind = "live", base = document.baseURI } = {}) {
  if (kind === "compare") {
    const runs = new Runs(element, base);
    return { setValue: (value) => runs.show(value?.runs ?? []) };
  }
  const board = await mountLive(element, base);
  element.board = board;
  return board;
}
