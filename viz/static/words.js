// The words of viz/words.py, filled in the browser by the same rules. Pure: no DOM; answers are plain text.

/** 1 is A, 26 Z, 27 AA: the letters by which a person tells requests apart. */
export function label(id) {
  if (id < 1) return String(id);
  let letters = "";
  for (let n = id; n > 0; n = Math.floor((n - 1) / 26)) letters = String.fromCharCode(65 + ((n - 1) % 26)) + letters;
  return letters;
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 20 });

export function number(value) {
  return GROUPED.format(Math.round(value));
}

/** "12 ms", "1.25 s", "14 s" */
export function seconds(value) {
  if (value < 0.0995) return value >= 0.00095 ? `${(value * 1000).toFixed(0)} ms` : `${(value * 1000).toFixed(1)} ms`;
  return value < 9.995 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

export function percent(share) {
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export function count(n, noun) {
  return `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
}

const FIELD = /\{(\w+)(?:\|(\w+))?\}/g;

/** Fill a template; bracketed parts with a missing value are left out. */
export function fill(template, values) {
  const known = template.replace(/\[([^[\]]*)\]/g, (_, part) =>
    [...part.matchAll(FIELD)].every(([, name]) => values[name] !== undefined && values[name] !== null) ? part : "",
  );
  return known.replace(FIELD, (_, name, kind) => {
    const value = values[name];
    if (value === undefined || value === null) return "?";
    if (kind === "s") return seconds(value);
    if (kind === "rq") return label(value);
    if (kind) return count(value, kind);
    return typeof value === "number" ? GROUPED.format(value) : String(value);
  });
}
