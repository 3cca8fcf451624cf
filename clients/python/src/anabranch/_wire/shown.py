"""What a person sees of an object in a terminal or a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import ClassVar


class Shown:
    """Completion offers only what programs may use."""

    #: Members without underscore that other modules of the package need.
    _internal: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_") and name not in self._internal]


class Text(str):
    """A text that shows itself as it is, for example a tree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_text(self)


def html_text(text: str) -> str:
    """Returns text as HTML, with its lines and columns as they are."""
    return f"<pre>{html.escape(text)}</pre>"


def html_table(rows: Iterable[tuple[str, str]], picture: str = "") -> str:
    """Returns rows of a name and a text as HTML, above a picture that is HTML already."""
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>{picture}"


def html_curve(values: Iterable[float], label: str, width: int = 320, height: int = 60) -> str:
    """Returns a curve as SVG. Empty for fewer than two values. Values that are not finite are left out."""
    points = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    last, span = points[-1][0], (high - low) or 1.0
    path = " ".join(f"{index / last * width:.1f},{(high - value) / span * height:.1f}" for index, value in points)
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 -2 {width} {height + 4}" role="img">'
        f"<title>{html.escape(label)}</title>"
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
