"""What statistics find, in sentences for the page."""

from __future__ import annotations

from typing import Any

from diskbuffer.inspect.statistics import statistics
from diskbuffer.plugin import Reader

_SECONDS = 5.0  # to look at the data


def findings(reader: Reader) -> dict[str, Any]:
    """Return what looks wrong in the data, in words. Takes some seconds for a large store, of which some rows are looked at."""
    found = statistics(reader, seconds=_SECONDS)
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
