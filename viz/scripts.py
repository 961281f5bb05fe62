"""How a component of the page loads the browser code that draws it.

Owns the few lines of JavaScript that go into `js_on_load`. Never knows what is drawn: that stands in `static/page/`.
"""

from __future__ import annotations

from collections.abc import Sequence

from viz.panels import static_version


def mount_script(module: str, function: str, selector: str, arguments: str = "", events: Sequence[str] = ()) -> str:
    """The function body that imports `function` from `static/page/MODULE` and calls it with the element at
    `selector`, with `arguments` (names that Gradio gives: props, watch) and, last, an object with one function for
    each of `events`, which sends that event to Python."""
    url = f"ui/static/{static_version()}/page/{module}"
    senders = ", ".join(f"{name}: () => trigger('{name}')" for name in events)
    call = ", ".join(part for part in (f"element.querySelector('{selector}')", arguments, f"{{{senders}}}") if part)
    return f"import(new URL('{url}', document.baseURI).href).then((m) => m.{function}({call}));"
