"""`diskbuffer doctor`: what limits sampling from a store on this machine, and what to change."""

from __future__ import annotations

import dataclasses
from typing import Any

from diskbuffer.commands.arguments import Whole, refuse_several
from diskbuffer.commands.output import WELL, show, show_json, table
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.plugin import local_path


def doctor(path: str, /, *, seconds: float = 30.0, batch_size: Whole = 256, json: bool = False) -> int:
    """Measure for half a minute what limits sampling from a store here: the disk, decoding, copying, or what every call costs.

    Others may write to the store meanwhile; nothing in it is changed.

    Parameters
    ----------
    path
        The directory of the store.
    seconds
        How long to measure.
    batch_size
        Steps of a batch.
    json
        Print all figures as JSON.
    """
    from diskbuffer.inspect.limits import find_limits  # which samples, and so needs PyTorch and compiled code

    refuse_several(path, "one store is measured")
    if not seconds > 0:
        raise InputError(f"--seconds must be above 0, found {seconds:g}")
    try:
        found = find_limits(path, batch_size, seconds=seconds)
    except EmptyBufferError as error:
        advice = f"{error}; add steps, then ask again"
        if json:
            show_json({"limit": None, "advice": advice})
        else:
            show(_sentence(advice))
        return WELL
    if json:
        show_json(dataclasses.asdict(found))
    else:
        _show(path, found)
    return WELL


def _show(path: str, found: Any) -> None:
    rows = [
        ("fixed cost", found.fixed, "drawing, planning, making tensors: what every call costs"),
        ("copying", found.copying, "writing the rows, in one thread"),
        ("decoding", found.decoding, "verifying and decompressing chunks, in one thread"),
        ("all of it, one thread", found.fixed + found.copying + found.decoding, ""),
        ("all of it, all threads", found.batch, f"{found.threads} of them: {found.speedup:.1f} times as fast"),
    ]
    shown = [(name, f"{1e3 * value:.3f} ms", what) for name, value, what in rows]
    share = f"{100 * found.resident:.0f} % of the store is in memory"
    disk = "?" if found.disk is None else f"{1e3 * found.disk:.3f} ms"
    why = "cannot be read past the page cache here" if found.disk is None else "where nothing is in memory"
    shown.append(("disk", disk, f"{why}; {share}"))
    show(f"{local_path(path)}: batches of {found.batch_size} steps", "")
    show(table(("where the time goes", "a batch", ""), shown, left=("where the time goes", "")), "")
    show(f"{found.batch_size / found.batch:,.0f} samples a second from memory. What limits them: {found.limit}.")
    show(_sentence(found.advice))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
