// Why? For the selected request, or for the step as a whole: the record's reasons in plain words, with the numbers.

import { promptWords } from "../conversation.js";
import { waitOf } from "../wire.js";
import { el, Panel, setText } from "../dom.js";
import { inkOn } from "../theme.js";
import { count, label, number, seconds } from "../words.js";

const MOST_LETTERS = 8;

export class Why {
  constructor(view) {
    this.view = view;
    this.panel = new Panel("why", "Why?", "Pick a request, or a step");
    this.root = this.panel.root;
    this.panel.button.hidden = true;
    this.lines = el("ul", { class: "ep-sentences" });
    this.story = el("ol", { class: "ep-story" });
    this.panel.body.append(this.lines, this.story);
    this.panel.headline.setAttribute("aria-live", "polite");
    this.shown = "";
  }

  say() {
    this.draw();
  }

  draw() {
    const { frame, cursor, history } = this.view;
    if (!frame) return;
    const life = cursor.selected === null ? null : history.lives.get(cursor.selected);
    if (!life && this.view.isIdle) return this.idle(frame);
    const lines = life ? this.ofRequest(life, frame) : this.ofStep(frame);
    setText(this.panel.headline, lines.shift() ?? "");
    const events = life ? life.events.filter((e) => e.step <= frame.step) : this.eventsOf(frame);
    const key = JSON.stringify([lines, events.length, cursor.selected, life ? 0 : frame.step]);
    if (key === this.shown) return;
    this.shown = key;
    this.lines.replaceChildren(...lines.map((line) => this.sentence(line)));
    this.story.replaceChildren(...events.map((event) => this.eventItem(event, Boolean(life))));
  }

  idle(frame) {
    const { isRecorded } = this.view;
    setText(this.panel.headline, isRecorded ? "Nobody is there at this moment of the run." : "The engine is idle: nobody is there.");
    if (this.shown === "idle") return;
    this.shown = "idle";
    const next = isRecorded ? "Move the time above to look back." : "Send a prompt, or move the time above to look back.";
    this.lines.replaceChildren(el("li", {}, `Step ${number(frame.step)} was the last. ${next}`));
    this.story.replaceChildren();
  }

  sentence(line) {
    if (typeof line === "string") return el("li", {}, line);
    return el("li", {}, ...line.ids.flatMap((id) => [this.letter(id), " "]), line.text);
  }

  letter(id) {
    const color = this.view.color(id);
    const button = el("button", { type: "button", class: "ep-letter", onclick: () => this.view.cursor.toggle(id), "aria-label": `Select request ${label(id)}` }, label(id));
    button.style.setProperty("--rq", color);
    button.style.setProperty("--rq-ink", inkOn(color));
    return button;
  }

  eventItem(event, isStory) {
    const words = this.view.eventWords(event);
    const who = isStory || event.request_id === undefined ? "" : `${label(event.request_id)} `;
    const jump = () => this.view.cursor.set({ time: this.view.history.frame(event.step)?.t ?? this.view.cursor.time });
    const when = el("button", { type: "button", class: "ep-link", onclick: jump, title: "Show this step in every panel" }, `step ${number(event.step)}`);
    return el("li", { class: `ep-event-${event.type}` }, when, ` ${seconds(event.t)}  `, `${who}${words}`);
  }

  eventsOf(frame) {
    return frame.events.map((event) => ({ ...event, step: frame.step, t: frame.t }));
  }

  ofStep(frame) {
    const { view } = this;
    const [policy] = view.words.policy[frame.policy] ?? [frame.policy];
    const ran = [...frame.tokens.keys()];
    const waiting = [...new Set([...frame.pendingPrefill, ...frame.pendingDecode])].filter((id) => !frame.tokens.has(id));
    const lines = [`${policy[0].toUpperCase()}${policy.slice(1)}, step ${number(frame.step)}: ${count(ran.length, "request")} ran, ${number(waiting.length)} waited.`];
    const groups = new Map(); // the same reason with the same numbers is said once
    for (const id of waiting) {
      const wait = waitOf(frame, id);
      const words = wait ? view.waitWords({ ...wait, behind: undefined }) : "";
      groups.set(words, [...(groups.get(words) ?? []), id]);
    }
    for (const [words, ids] of groups) {
      const verb = ids.length === 1 ? "waits" : "wait";
      const more = ids.length > MOST_LETTERS ? `and ${number(ids.length - MOST_LETTERS)} more ` : "";
      lines.push({ ids: ids.slice(0, MOST_LETTERS), text: `${more}${verb}${words ? `: ${words}` : ""}.` });
    }
    if (!waiting.length && ran.length) lines.push("Nobody waits: everyone who was there ran in this step.");
    return lines;
  }

  ofRequest(life, frame) {
    const lines = [this.nowWords(life, frame)];
    const lost = this.thrownOut(life, frame);
    if (lost) lines.unshift(`${label(life.id)} was ${this.view.eventWords(lost)} (step ${number(lost.step)}).`);
    const sizes = [life.promptTokens !== null && `a prompt of ${promptWords(life.id, life.promptTokens)}`, life.maxTokens !== null && `an answer of up to ${count(life.maxTokens, "token")}`].filter(Boolean);
    const wait = waitOf(frame, life.id);
    if (wait) lines.push(...this.wayOut(wait, life.id, frame));
    if (life.ttft !== null && life.firstTokenAt <= frame.end) lines.push(this.ttftWords(life));
    else if (life.waits.size) lines.push(`So far it waited for: ${this.waitsWords(life)}.`);
    if (sizes.length) lines.push(`It brought ${sizes.join("; it asks for ")}.`);
    return lines;
  }

  /** The event that threw the request out, as long as it has not come back; undefined otherwise. */
  thrownOut(life, frame) {
    const until = life.events.filter((e) => e.step <= frame.step && ["preempted", "admitted", "finished"].includes(e.type));
    const last = until[until.length - 1];
    return last?.type === "preempted" ? last : undefined;
  }

  nowWords(life, frame) {
    const name = label(life.id);
    const inStep = `In step ${number(frame.step)}`;
    const wait = waitOf(frame, life.id);
    if (frame.activePrefill.includes(life.id)) {
      return `${inStep}, ${name} reads ${count(frame.tokens.get(life.id), "token")} of its prompt (prefill).`;
    }
    if (frame.tokens.has(life.id)) return `${inStep}, ${name} writes token ${number(frame.outputs.get(life.id) ?? 0)} of its answer (decode).`;
    if (wait) return `${inStep}, ${name} waits: ${this.view.waitWords(wait)}.`;
    if (frame.inactiveIds.includes(life.id)) return `${inStep}, ${name} has ended but still holds its slot in the static batch: the slot computes for nothing.`;
    if (life.finished && life.finished.step <= frame.step) return `${name} has ended: ${this.view.eventWords(life.finished)}.`;
    return `${name} is not there yet in step ${number(frame.step)}.`;
  }

  /** What has to happen before a waiting request can go on. */
  wayOut(wait, id, frame) {
    const lines = [];
    if (wait.reason === "no_blocks" || wait.reason === "no_run") {
      const next = this.nextToEnd(frame, id);
      if (next) lines.push(`${label(next.id)} will free ${count(next.blocks, "block")} when it ends${next.left === null ? "" : `, after at most ${count(next.left, "more token")}`}.`);
    } else if (wait.reason === "no_slot" || wait.reason === "batch_closed") {
      const holders = [...this.view.map.tables.keys()].filter((other) => other !== id).sort((a, b) => a - b);
      if (holders.length) lines.push(`${holders.slice(0, 12).map(label).join(", ")} ${holders.length === 1 ? "is" : "are"} in.`);
      const next = this.nextToEnd(frame, id);
      if (next && next.left !== null && wait.reason === "no_slot") lines.push(`${label(next.id)} ends next, after at most ${count(next.left, "more token")}.`);
    } else if (wait.reason === "behind" && wait.behind !== undefined) {
      const other = waitOf(frame, wait.behind);
      if (other) lines.push(`${label(wait.behind)} waits: ${this.view.waitWords(other)}.`);
    }
    return lines;
  }

  /** The request that holds memory and ends first at the latest: {id, blocks, left} */
  nextToEnd(frame, id) {
    const { history, map } = this.view;
    let best = null;
    for (const [other, table] of map.tables) {
      if (other === id) continue;
      const max = history.lives.get(other)?.maxTokens ?? null;
      const left = max === null ? null : Math.max(0, max - (map.outputs.get(other) ?? 0));
      const blocks = table.filter((block) => map.refs[block] === 1).length;
      if (!best || (left !== null && (best.left === null || left < best.left))) best = { id: other, blocks, left };
    }
    return best;
  }

  ttftWords(life) {
    const waited = life.queue ?? 0;
    const read = Math.min(life.prefillTime, Math.max(0, life.ttft - waited));
    const other = Math.max(0, life.ttft - waited - read);
    const why = life.waits.size ? ` (${this.waitsWords(life)})` : "";
    const cached = life.cachedTokens ? `; ${count(life.cachedTokens, "token")} of it came from the prefix cache` : "";
    return `Its first token came ${seconds(life.ttft)} after arrival: ${seconds(waited)} waiting${why}, ${seconds(read)} reading the prompt${cached}, ${seconds(other)} other.`;
  }

  waitsWords(life) {
    const sorted = [...life.waits].sort((a, b) => b[1] - a[1]);
    return sorted.map(([reason, s]) => `${this.view.waitShort(reason)} ${seconds(s)}`).join(", ");
  }
}
