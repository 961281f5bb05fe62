"""A small SVG sheet: shapes, words, colours that read in light and dark.

Owns the look of all pictures. Never knows what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

HUES = ("#0072b2", "#d55e00", "#009e73", "#c9588f", "#e69f00", "#4ba3dc", "#9a8700")
"""After Okabe and Ito, as in the page: a request has the same colour everywhere, and its letter stands beside it."""

_STYLE = """
:root{--ink:#1c2430;--dim:#5b6675;--line:#cfd6de;--card:#ffffff;--sunken:#eef1f4;--bad:#c0392b}
@media (prefers-color-scheme:dark){
:root{--ink:#e8edf2;--dim:#9aa7b5;--line:#3a4653;--card:#161c23;--sunken:#232c36;--bad:#ff7a6b}}
text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
.dim{fill:var(--dim)}.bad{fill:var(--bad)}.title{font-weight:600}
.mono{font-family:ui-monospace,Menlo,Consolas,monospace}
.on{fill:#fff;font-weight:600}.halo{font-weight:600;paint-order:stroke;stroke:var(--card);stroke-width:3px}
"""


class Sheet:
    """Shapes are added in drawing order; `render` gives the document. Lengths are pixels."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._parts: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "none", **more: object) -> None:
        """A rectangle with slightly round corners."""
        box = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"'
        self._parts.append(f'<rect {box} rx="2" fill="{fill}" stroke="{stroke}"{_attributes(more)}/>')

    def text(self, x: float, y: float, words: str, size: float = 12, anchor: str = "start", kind: str = "") -> None:
        """Words; `kind` is any of dim, bad, title, mono, on (a colour), halo (a pattern)."""
        shown = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"'
        self._parts.append(f'<text {shown} class="{kind}">{escape(words)}</text>')

    def line(self, points: Iterable[tuple[float, float]], stroke: str, width: float = 1.5, **more: object) -> None:
        """A line through points."""
        path = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{_attributes(more)}/>'
        )

    def curve(self, x1: float, y1: float, x2: float, y2: float, stroke: str) -> None:
        """A swung line from one point down to another."""
        middle = (y1 + y2) / 2
        path = f"M{x1:g},{y1:g} C{x1:g},{middle:g} {x2:g},{middle:g} {x2:g},{y2:g}"
        self._parts.append(f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="1.3" opacity="0.8"/>')

    def render(self) -> str:
        """The whole document."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        hatches = "".join(
            f'<pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<rect width="6" height="6" fill="{back}"/><rect width="2" height="6" fill="{front}"/></pattern>'
            for name, back, front in (
                ("waste", "var(--sunken)", "var(--bad)"),
                ("wait", "var(--card)", "var(--line)"),
                ("reserved", "var(--card)", "var(--dim)"),
            )
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self._title, quote=True)}">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style><defs>{hatches}</defs>"
        )
        back = f'<rect width="{self.width:g}" height="{self.height:g}" rx="8" fill="var(--card)"/>'
        return head + back + "\n" + "\n".join(self._parts) + "\n</svg>\n"


def hue(request_id: int) -> str:
    """The colour of a request; ids count from 1."""
    return HUES[(request_id - 1) % len(HUES)]


def letter(request_id: int) -> str:
    """A, B, C … for ids from 1."""
    number, name = request_id, ""
    while number > 0:
        number, rest = divmod(number - 1, 26)
        name = chr(65 + rest) + name
    return name


def _attributes(more: dict[str, object]) -> str:
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
