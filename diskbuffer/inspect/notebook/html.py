"""HTML of plain values. Everything is escaped: tags and names of columns are a user's text, or a stranger's."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence

from diskbuffer.errors import DiskBufferError
from diskbuffer.plugin import Picture


def image(picture: Picture, alt: str) -> str:
    """Show a PNG."""
    data = base64.b64encode(picture.data).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" style="max-width:100%">'


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Show rows of values; the first of each is bold where there is no `head`."""
    lines = ["".join(_cell("th", name) for name in head)] if head else []
    lines += ["".join(_cell("td" if at or head else "th", value) for at, value in enumerate(row)) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(kind: str, value: object) -> str:
    return f'<{kind} style="text-align:left;padding:2px 12px 2px 0">{html.escape(str(value))}</{kind}>'


def title(text: str, details: str = "") -> str:
    """Show what something is, and what is known of it besides."""
    return f"<div><b>{html.escape(text)}</b> {html.escape(details)}</div>"


def note(text: str) -> str:
    """Show a remark."""
    return f'<div style="opacity:0.7">{html.escape(text)}</div>'


def unless_it_fails(draw: Callable[[], str], otherwise: str = "") -> str:
    """Return what draws HTML, or something else and a remark that says why it could not: no traceback for what is displayed."""
    try:
        return draw()
    except (DiskBufferError, OSError) as error:
        return otherwise + note(f"Not shown: {error}")


def page(*parts: str) -> str:
    """Put parts below each other."""
    return f'<div class="diskbuffer">{"".join(parts)}</div>'


def brief(value: object) -> str:
    """Write a sum of rewards in a few digits; of several components, the first ones."""
    if isinstance(value, float):
        return f"{value:.6g}"
    components = [f"{float(x):.4g}" for x in getattr(value, "flat", [])]
    return ", ".join(components[:4]) + (", ..." if len(components) > 4 else "")
