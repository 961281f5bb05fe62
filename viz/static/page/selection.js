// The one selection of the page, as answers see it: which request is picked, wherever it was picked.
// The panels' cursor is the truth; it is linked in once their code is there.

const listeners = new Set();
let selected = null;
let cursor = null;

export function linkCursor(panelCursor) {
  if (!panelCursor || cursor) return;
  cursor = panelCursor;
  cursor.subscribe(() => show(cursor.selected));
  show(cursor.selected);
}

export function toggleSelection(id) {
  if (cursor) cursor.toggle(id);
  else show(selected === id ? null : id);
}

/** Mark the boxes in `root` that stand for the selected request, from now on, as long as `root` is on the page. */
export function markSelection(root) {
  const listener = () => {
    if (!root.isConnected && root.wasConnected) {
      listeners.delete(listener);
      return;
    }
    root.wasConnected = root.isConnected;
    for (const box of root.querySelectorAll("[data-answer]")) mark(box);
  };
  listeners.add(listener);
}

/** Bring one box's mark up to date. */
export function mark(box) {
  const id = Number(box.dataset.answer);
  box.classList.toggle("pg-selected", selected === id);
  box.classList.toggle("pg-faded", selected !== null && selected !== id);
  box.querySelector(".pg-chip")?.setAttribute("aria-pressed", String(selected === id));
}

function show(id) {
  if (id === selected) return;
  selected = id;
  for (const listener of listeners) listener();
}
