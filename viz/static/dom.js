// Small helpers to build elements. Text always goes in as text.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Change text only when it differs, so that nothing is laid out again for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A legend: [kind of key (see panels.css), colour or null, words] each. */
export function legend(items) {
  const key = (kind, color) => el("span", { class: `ep-key ep-key-${kind}`, style: color ? `--k: var(--ep-${color})` : null });
  return el("ul", { class: "ep-legend" }, ...items.map(([kind, color, words]) => el("li", {}, key(kind, color), words)));
}

let numPanels = 0;

/** A titled panel: heading, a headline in words that answers the panel's question, a body, and a table on demand. */
export class Panel {
  constructor(name, title, question) {
    const id = `ep-${name}-${++numPanels}`;
    this.heading = el("h2", { id }, title);
    this.headline = el("p", { class: "ep-headline" }, "Appears with the first step.");
    this.body = el("div", { class: "ep-body" });
    this.tableBox = el("div", { class: "ep-table-box", id: `${id}-table`, hidden: true, tabindex: "0", role: "region", "aria-label": `${title} as a table` });
    this.button = el("button", { type: "button", class: "ep-link", "aria-expanded": "false", "aria-controls": `${id}-table`, onclick: () => this.toggle() }, "Table");
    this.fold = el("button", { type: "button", class: "ep-link ep-fold", "aria-expanded": "false", onclick: () => this.unfold() }, "Picture");
    this.question = el("span", { class: "ep-question", id: `${id}-question` }, question);
    const head = el("div", { class: "ep-panel-head" }, this.heading, this.question, this.fold, this.button);
    this.root = el("section", { class: `ep-panel ep-${name}`, "aria-labelledby": id }, head, this.headline, this.body, this.tableBox);
    this.getTable = null; // () → {head: [...], rows: [[...]]}
  }

  /** Say which of two compared runs this panel shows. */
  nameRun(title) {
    this.question.className = "ep-run";
    this.question.textContent = title;
    this.button.setAttribute("aria-label", `Table of ${title}`);
    this.root.setAttribute("aria-labelledby", `${this.heading.id} ${this.question.id}`);
  }

  /** On a narrow screen only the words of this panel stand there until its picture is asked for. */
  foldWhereNarrow() {
    this.root.classList.add("ep-folds", "ep-folded");
  }

  unfold() {
    const isFolded = this.root.classList.toggle("ep-folded");
    this.fold.setAttribute("aria-expanded", String(!isFolded));
    this.root.dispatchEvent(new Event("ep-unfold", { bubbles: true }));
  }

  toggle() {
    this.tableBox.hidden = !this.tableBox.hidden;
    this.button.setAttribute("aria-expanded", String(!this.tableBox.hidden));
    this.drawTable();
  }

  drawTable() {
    if (this.tableBox.hidden || !this.getTable) return;
    const { head, rows } = this.getTable();
    const cells = (kind, values) => el("tr", {}, ...values.map((value) => el(kind, kind === "th" ? { scope: "col" } : {}, String(value))));
    const body = el("tbody", {}, ...rows.map((row) => cells("td", row)));
    const table = el("table", {}, el("caption", {}, this.heading.textContent), el("thead", {}, cells("th", head)), body);
    const scroll = this.tableBox.scrollTop;
    this.tableBox.replaceChildren(table);
    this.tableBox.scrollTop = scroll;
  }
}

/** One tooltip for the whole page; lines are plain text, the first one is the title. */
export class Tooltip {
  constructor() {
    this.box = el("div", { class: "ep-tooltip", role: "tooltip", hidden: true });
  }

  show(event, lines) {
    this.box.replaceChildren(...lines.filter(Boolean).map((line, i) => el(i ? "div" : "strong", {}, line)));
    if (!this.box.isConnected) document.body.append(this.box);
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = Math.min(event.clientX + 14, window.innerWidth - width - 8);
    const below = event.clientY + 18;
    this.box.style.left = `${Math.max(8, left)}px`;
    this.box.style.top = `${below + height > window.innerHeight - 8 ? event.clientY - height - 12 : below}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}

export const tooltip = new Tooltip();
