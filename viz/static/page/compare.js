// The result of a comparison in words and figures. The component's value is {status} or {error} or
// {headline, reasons, basis, labels, rows}.

import { el } from "../dom.js";

export function mountCompare(root, props, watch) {
  const draw = () => root.replaceChildren(...parts(props.value || {}));
  watch("value", draw);
  draw();
}

function parts(value) {
  if (value.error) return [el("div", { class: "pg-error", role: "alert" }, value.error[0].toUpperCase() + value.error.slice(1))];
  if (value.status) {
    return [el("div", { class: "pg-wait", role: "status" }, el("span", { class: "pg-spinner", "aria-hidden": "true" }), el("span", {}, value.status))];
  }
  if (!value.headline) return [];
  return [
    el("div", { role: "status" }, el("h2", { class: "pg-headline" }, value.headline)),
    el("ul", { class: "pg-reasons" }, ...value.reasons.map((reason) => el("li", {}, reason))),
    el("p", { class: "pg-basis" }, value.basis),
    el("div", { class: "pg-table-box", tabindex: "0", role: "region", "aria-label": "The figures of both runs" }, table(value)),
  ];
}

function table({ labels, rows }) {
  const first = el("th", { scope: "col" }, el("span", { class: "pg-sr" }, "Figure"));
  const head = el("tr", {}, first, ...labels.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, row.name, row.help ? el("span", { class: "pg-help" }, ` ${row.help}`) : ""),
      cell(row.a, row.better === "a"),
      cell(row.b, row.better === "b"),
      el("td", {}, row.ratio),
    ),
  );
  return el("table", { class: "pg-table" }, el("thead", {}, head), el("tbody", {}, ...body));
}

function cell(text, isBetter) {
  return el("td", { class: isBetter ? "pg-better" : null }, text, isBetter ? el("span", { class: "pg-sr" }, " (better)") : "");
}
