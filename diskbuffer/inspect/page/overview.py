"""The store as a whole, for the page: a few large figures, its columns, and what else is known of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from diskbuffer.inspect.page.plain_values import scalar
from diskbuffer.inspect.view import StoreView
from diskbuffer.schema import CHECKSUM
from diskbuffer.store.copies import marks
from diskbuffer.store.last_writer import State, how_it_was_left
from diskbuffer.wording import counted

_RECENT = 100  # episodes, whose mean return is a tile


def overview(view: StoreView) -> dict[str, Any]:
    """Return figures on a store. Walks its files: some 30 ms for a million steps."""
    layout, table = view.layout, view.episodes()
    disk = _disk(view)
    rows = int((view.heads - view.lows + 1)[view.heads >= 0].sum())
    ended = np.flatnonzero((table.ending != "running") & ~np.isnan(table.returns))
    recent = ended[np.argsort(table.age[ended], kind="stable")][:_RECENT]
    summary = {
        "steps": view.steps,
        "episodes": len(table),
        "capacity": layout.capacity,
        "streams": layout.streams,
        "n_envs": layout.n_envs,
        "recent_episodes": len(recent),
        "recent_return": scalar(table.returns[recent].mean()) if len(recent) else None,
        "recent_length": scalar(table.length[recent].mean()) if len(recent) else None,
        "disk_bytes": sum(disk.values()),
        "raw_bytes": rows * sum(column.row_bytes for column in view.schema.columns.values()),
    }
    columns = [
        {
            "name": name,
            "shape": list(column.shape),
            "dtype": column.np_dtype.name,
            "disk_bytes": disk[name],
            "ratio": scalar(disk[name] / (rows * column.row_bytes)) if rows else None,
            "how": _how(view, name),
        }
        for name, column in view.schema.columns.items()
    ]
    columns.sort(key=lambda column: -column["disk_bytes"])
    other = disk["segment table, tail, marks"]
    columns.append({"name": "segment table, tail, marks", "shape": [], "dtype": "", "disk_bytes": other, "ratio": None, "how": ""})
    return {"summary": summary, "columns": columns, "facts": _facts(view)}


def _how(view: StoreView, name: str) -> str:
    if name == CHECKSUM:
        return "checksums of every row"
    if name in view.layout.derived:
        return "written later, uncompressed"
    if name not in view.layout.packed:
        return "uncompressed"
    return f"compressed, {counted(view.layout.chunk_rows(name), 'row')} a chunk; {view.schema[name].codec or 'codec chosen from the data'}"


def _disk(view: StoreView) -> Counter[str]:
    """Return the bytes of disk that each column takes; a file that has several names counts once."""
    found, seen = Counter[str](), set[tuple[int, int]]()
    columns = set(view.schema.columns)
    for path, stat in view.store.files.walk():
        if stat.st_nlink > 1:
            if (stat.st_dev, stat.st_ino) in seen:
                continue
            seen.add((stat.st_dev, stat.st_ino))
        directory = path.rpartition("/")[0]
        found[directory if directory in columns else "segment table, tail, marks"] += stat.st_blocks * 512
    return found


def _facts(view: StoreView) -> list[tuple[str, str]]:
    layout, writer = view.layout, view.writer
    if writer is None:
        who = "nobody"
        left = how_it_was_left(State.read(view.store.files, layout.salt), view.store.files, layout.streams)[0].value
    else:
        who = f"process {writer.get('pid') or '?'} on {writer.get('host') or 'some machine'}, since {writer.get('since') or '?'}"
        left = ""
    environment = layout.environment or {}
    facts = [
        ("Written by", who),
        ("Last shutdown", left),
        ("Damage", view.damage or ""),
        ("Environment", str(environment.get("id") or "")),
        ("Environments", str(layout.n_envs)),
        ("Frame stack", f"{layout.frame_stack}, filled up with {'zeros' if layout.padding == 'zeros' else 'the first frame'}" if layout.frame_stack > 1 else ""),
        ("Capacity", f"{layout.capacity:,} steps" if layout.capacity else "none: all steps are kept"),
        ("Steps ever added", f"{view.added:,}"),
        ("Segments", f"of {layout.segment_rows:,} rows"),
        ("Tags", ", ".join(layout.tags)),
        ("Marks", ", ".join(marks.names(view.store.files))),
        ("Metadata", ", ".join(f"{key}: {value}" for key, value in (layout.metadata or {}).items())[:300]),
    ]
    return [(name, value) for name, value in facts if value]
