// The conversation: turns, copy, regenerate, and switching between conversations. All of it lives in the component's
// value in this page, {turns, saved}; the server keeps none of it.

import { noteTurns } from "../conversation.js";
import { el } from "../dom.js";
import { button, drawAnswer, followTheme } from "./answers.js";

const MAX_SAVED = 30;
const TITLE_CHARS = 36;

export function mountChat(root, props, watch, { regenerate, suggest }) {
  const bar = el("div", { class: "pg-talks" });
  const log = el("div", { class: "pg-log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  root.append(bar, log);
  const view = { props, bar, log, regenerate, suggest, shape: null };
  view.draw = () => draw(view);
  followTheme(log);
  watch("value", view.draw);
  view.draw();
}

function valueOf(view) {
  return { turns: [], saved: [], ...(view.props.value || {}) };
}

function isBusy(turns) {
  return turns.length > 0 && ["waiting", "answering"].includes(turns[turns.length - 1].phase);
}

function change(view, changes) {
  view.props.value = { ...valueOf(view), ...changes };
  view.draw();
}

function draw(view) {
  const { turns, saved } = valueOf(view);
  const { log } = view;
  noteTurns(turns);
  const sticks = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const shape = JSON.stringify([turns.length, saved.length, isBusy(turns), turns.map((turn) => turn.role === "user" && turn.text)]);
  if (shape !== view.shape) {
    view.shape = shape;
    drawBar(view, turns, saved);
    log.replaceChildren(...(turns.length ? turns.map((turn, i) => drawTurn(view, turns, turn, i)) : [drawEmpty(view)]));
    log.scrollTop = turns.length ? log.scrollHeight : 0;
    return;
  }
  turns.forEach((turn, i) => {
    if (turn.role !== "user") drawAnswer(log.children[i], turn);
  });
  if (sticks) log.scrollTop = log.scrollHeight;
}

function drawTurn(view, turns, turn, i) {
  const isUser = turn.role === "user";
  const box = el("article", { class: `pg-turn ${isUser ? "pg-user" : "pg-assistant"}`, "aria-label": isUser ? "You" : "Model" });
  if (isUser) {
    box.append(el("div", { class: "pg-text" }, turn.text));
    return box;
  }
  drawAnswer(box, turn);
  const isLast = i === turns.length - 1;
  if (!(isLast && isBusy(turns))) box.parts.head.append(tools(view, turn, isLast));
  return box;
}

function tools(view, turn, isLast) {
  const copy = button("pg-small", "Copy", "Copy this answer", async () => {
    try {
      await navigator.clipboard.writeText(turn.text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "The browser forbids it";
    }
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const row = el("span", { class: "pg-tools" }, copy);
  if (isLast) row.append(button("pg-small", "Regenerate", "Ask the same again", view.regenerate));
  return row;
}

function titleOf(turns) {
  const words = (turns.find((turn) => turn.role === "user")?.text || "").trim().replace(/\s+/g, " ");
  return words.length > TITLE_CHARS ? `${words.slice(0, TITLE_CHARS - 1)}…` : words || "Empty";
}

function drawBar(view, turns, saved) {
  const parts = [];
  if (saved.length) {
    const list = el("select", { class: "pg-select", "aria-label": "Conversations", disabled: isBusy(turns) });
    list.append(new Option(turns.length ? titleOf(turns) : "New conversation", "-1"));
    saved.forEach((old, i) => list.append(new Option(titleOf(old), String(i))));
    list.addEventListener("change", () => {
      const i = Number(list.value);
      const others = saved.filter((_, at) => at !== i);
      change(view, { turns: saved[i], saved: turns.length ? [turns, ...others] : others });
    });
    parts.push(list);
  }
  if (turns.length) {
    const fresh = button("pg-small", "+ New conversation", "This one stays in the list", () =>
      change(view, { turns: [], saved: [turns, ...saved].slice(0, MAX_SAVED) }),
    );
    fresh.disabled = isBusy(turns);
    parts.push(fresh);
  }
  view.bar.replaceChildren(...parts);
}

function drawEmpty(view) {
  const ask = (text) => {
    view.props.value = { ...valueOf(view), ask: text };
    view.suggest();
  };
  return el(
    "div",
    { class: "pg-empty" },
    el("p", { class: "pg-empty-title" }, "Ask something, and watch the engine work on it."),
    el("p", {}, "One request alone is dull for a scheduler: “Send 8 prompts at once” makes it interesting."),
    ...(view.props.suggestions || []).map((text) => button("pg-suggestion", text, "", () => ask(text))),
  );
}
