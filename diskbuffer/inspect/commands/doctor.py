"""`diskbuffer doctor`: what limits sampling from a store on this machine, and what to change."""

from __future__ import annotations

import dataclasses
import json as json_module
from pathlib import Path

from diskbuffer.errors import EmptyBufferError, InputError


def doctor(path: Path, *, seconds: float = 30.0, batch_size: int = 256, json: bool = False) -> int:
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

    if not seconds > 0:
        raise InputError(f"--seconds must be above 0, found {seconds:g}")
    try:
        found = find_limits(path, batch_size, seconds=seconds)
    except EmptyBufferError as error:
        print(
            json_module.dumps({"limit": None, "advice": str(error)}, indent=2) if json else f"{error}. Add steps, then ask again."
        )
        return 0
    if json:
        print(json_module.dumps(dataclasses.asdict(found), indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("of a batch", "ms", "", box=None, pad_edge=False)
    one_thread = found.fixed + found.copying + found.decoding
    for name, value, what in (
        ("fixed cost", found.fixed, "drawing, planning, making tensors: what every call costs"),
        ("copying", found.copying, "writing the rows, in one thread"),
        ("decoding", found.decoding, "verifying and decompressing chunks, in one thread"),
        ("one thread", one_thread, "all of these"),
        ("all threads", found.batch, f"{found.threads} of them: {found.speedup:.1f} times as fast"),
    ):
        table.add_row(name, f"{1e3 * value:.3f}", what)
    share = f"{100 * found.resident:.0f} % of the store is in memory"
    if found.disk is None:
        table.add_row("disk", "?", f"cannot be read past the page cache here; {share}")
    else:
        table.add_row("disk", f"{1e3 * found.disk:.3f}", f"where nothing is in memory; {share}")
    console.print(f"[bold]{path}[/]: batches of {found.batch_size}, with {found.threads} threads\n")
    console.print(table)
    rate = found.batch_size / found.batch
    console.print(f"\n{rate:,.0f} samples a second. What limits them: [bold]{found.limit}[/].", f"\n{_sentence(found.advice)}")
    return 0


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
