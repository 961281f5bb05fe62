// Which panels stand on the page: those of the live engine, and two finished runs side by side.

import { Board } from "./board.js";
import { TimeRange } from "./chart.js";
import { Cursor } from "./cursor.js";
import { Anatomy } from "./panels/anatomy.js";
import { BlockTable } from "./panels/blocktable.js";
import { FirstToken } from "./panels/firsttoken.js";
import { Gantt } from "./panels/gantt.js";
import { Grid } from "./panels/grid.js";
import { Latency } from "./panels/latency.js";
import { Memory } from "./panels/memory.js";
import { Requests } from "./panels/requests.js";
import { Strip } from "./panels/strip.js";
import { Tiles } from "./panels/tiles.js";
import { TtftCurves } from "./panels/ttftcurves.js";
import { Why } from "./panels/why.js";
import { JumpBar } from "./jumpbar.js";
import { TopBar } from "./topbar.js";
import { View } from "./view.js";

const NARROW = 600; // px: below this the reasons stand before the strip, and pictures of what follows are folded

/** All panels of one source. */
export function boardOf(element, source, words, cursor) {
  const view = new View(source, cursor, words);
  const range = new TimeRange([view]);
  const top = new TopBar(view);
  const [strip, why, grid, table] = [new Strip(view), new Why(view), new Grid(view), new BlockTable(view)];
  const fast = [top, new Tiles(view), new Requests(view), strip, why, grid, table];
  const slow = [new Memory(view, range), new Latency(view, range), new Gantt(view, range), new FirstToken(view, range), new Anatomy(view, range)];
  for (const { panel } of [table, ...slow]) panel.foldWhereNarrow();
  const arrange = (width) => (width < NARROW ? strip.root.before(why.root) : strip.root.after(why.root));
  const board = new Board(element, { views: [view], top, fast, slow, name: "Live view of the engine", arrange });
  if (!source.isRun) element.append(new JumpBar(view, { top, why, strip, grid, gantt: slow[2] }).root);
  return board;
}

/** The step with the most blocks owned: a good moment to look at first. */
function fullest(history) {
  return history.frames.reduce((a, b) => (b.memory.active >= a.memory.active ? b : a));
}

/** Two runs of one workload on one time axis: one time, one selection, the same scales. */
export function boardOfTwo(element, sources, words) {
  const cursor = new Cursor();
  const views = sources.map((source) => new View(source, cursor, words));
  const range = new TimeRange(views);
  const longest = views.reduce((a, b) => (b.history.last.end > a.history.last.end ? b : a));
  const top = new TopBar(longest, { what: "both runs at the same moment", views });
  const requests = new Requests(longest);
  const strips = views.map((view) => new Strip(view, { steps: longest.history.frames.length }));
  const grids = views.map((view) => new Grid(view));
  const memories = views.map((view) => new Memory(view, range));
  const gantts = views.map((view) => new Gantt(view, range));
  const curves = new TtftCurves(views, range);
  const pairs = [strips, gantts, memories, grids];
  for (const pair of pairs) pair.forEach(({ panel, view }) => panel.nameRun(view.source.title));
  cursor.set({ time: fullest(views[0].history).t });
  const children = [top.root, requests.root, ...pairs.flat().map(({ root }) => root), curves.root];
  return new Board(element, { views, top, fast: [top, requests, ...strips, ...grids], slow: [...gantts, ...memories, curves], name: "Two runs side by side", children, look: "ep-two" });
}
