"""HTML of plain values. Everything is escaped: tags and names of columns are a user's text, or a stranger's."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence

from diskbuffer.errors import DiskBufferError


def escaped(value: object) -> str:
    """Return a value as text that means nothing in HTML."""
    return html.escape(str(value))


def data_uri(data: bytes, kind: str) -> str:
    """Return bytes as an address that has them in itself."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(png: bytes, alt: str) -> str:
    """Show a PNG."""
    return f'<img src="{data_uri(png, "image/png")}" alt="{escaped(alt)}" style="max-width:100%">'


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Show rows of values; the first of each is bold where there is no `head`."""
    lines = ["".join(_cell("th", name) for name in head)] if head else []
    for first, *others in rows:
        lines.append(_cell("td" if head else "th", first) + "".join(_cell("td", value) for value in others))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(kind: str, value: object) -> str:
    return f'<{kind} style="text-align:left;padding:2px 12px 2px 0">{escaped(value)}</{kind}>'


def title(text: str, *, details: str = "") -> str:
    """Show what something is, and what is known of it besides."""
    return f"<div><b>{escaped(text)}</b> {escaped(details)}</div>"


def note(text: str) -> str:
    """Show a remark."""
    return f'<div style="opacity:0.7">{escaped(text)}</div>'


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
