"""What statistics and measurements find, in sentences for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diskbuffer.inspect.statistics import statistics
from diskbuffer.plugin import Reader

_LOOKING, _SECONDS = 5.0, 20.0  # at the data; to measure


def findings(reader: Reader) -> dict[str, Any]:
    """Return what looks wrong in the data, in words. Takes some seconds for a large store, of which some rows are looked at."""
    found = statistics(reader, seconds=_LOOKING)
    looked = found["looked_at"]
    share = "all" if looked["rows"] == looked["of_rows"] else f"{looked['rows']:,} of {looked['of_rows']:,}"
    items = [{"kind": "warn", "text": finding["text"]} for finding in found["findings"]]
    if (damage := reader.info.damage) is not None:
        items.insert(0, {"kind": "bad", "text": f"{damage} Run `diskbuffer check`."})
    if not items:
        items = [
            {"kind": "good", "text": "Nothing looks wrong: no NaN, no constant or black frames, no action that never varies."}
        ]
    return {"note": f"Looked at {share} rows.", "findings": items}


def limits(path: Path) -> dict[str, Any]:
    """Measure what limits sampling from a store here, for some 20 seconds; imports torch."""
    from diskbuffer.inspect.limits import find_limits

    found = find_limits(path, seconds=_SECONDS)
    parts = [
        ("A batch, with everything in memory", found.batch),
        ("fixed cost of a call", found.fixed),
        ("copying", found.copying),
    ]
    parts += [("decoding, in one thread", found.decoding)]
    if found.disk is not None:
        parts.append(("reading it, if nothing were in memory", found.disk))
    return {
        "note": f"Batches of {found.batch_size}, {found.threads} threads, {found.speedup:.1f} times as fast as one. "
        f"{found.resident:.0%} of the store's files are in memory.",
        "words": [f"The limit is {found.limit}.", f"{found.advice[0].upper()}{found.advice[1:]}."],
        "parts": [(name, f"{seconds * 1e3:.3g} ms") for name, seconds in parts],
    }
