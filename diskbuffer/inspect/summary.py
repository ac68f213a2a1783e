"""What `diskbuffer info` tells of a store, as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.endings import RUNNING
from diskbuffer.inspect.episodes import EpisodeTable, in_time
from diskbuffer.inspect.view import StoreView
from diskbuffer.schema import Column
from diskbuffer.store.copies import marks
from diskbuffer.store.format.layout import FORMAT, SEGMENTS, TAIL, Layout
from diskbuffer.store.last_writer import State, how_it_was_left
from diskbuffer.store.system.files import Files
from diskbuffer.transforms import notation

NEWEST = 100  # episodes, of which means are told apart from those of all


def summary(view: StoreView) -> dict[str, Any]:
    """Describe a store.

    Walks its files for the disk's share, and reads one flag and the reward of every step: some 50 ms for a million steps.

    Returns
    -------
    dict
        What JSON holds, but for figures that are NaN or infinite, as rewards may be.

        - ``path``, ``format``; ``damage``: what is wrong, or None
        - ``writer``: ``pid``, ``host``, ``since``, or None; ``left``: "open", or how the last writer left it: "clean", "killed",
          "power loss"
        - ``steps`` (to sample), ``added`` (ever), ``capacity``, ``environments``, ``frame_stack``, ``padding``,
          ``autoreset``; ``streams``: ``steps`` and ``added`` of each; ``segments``: ``rows`` of each, ``used``, ``sealed``
        - ``episodes``: ``count``, ``endings``; ``returns`` and ``lengths`` of those that are over, each ``mean``, ``min``,
          ``max`` and ``newest`` (the mean of the newest 100), or None; ``tags``: episodes of each; ``marks``: names
        - ``columns``: each ``name``, ``dtype``, ``shape``, ``kind`` ("packed", "flat" or "derived"), ``codec``, ``transforms``
          ("greyscale,resize:84x84", what pictures became before they were stored, or None), ``raw_bytes``, ``disk_bytes``,
          ``ratio``
        - ``disk``: bytes of ``columns``, ``tail``, ``table``, ``marks`` (what they do not share with the store), ``total``,
          ``raw``; and ``ratio``
        - ``environment``, ``metadata``
    """
    layout, episodes = view.layout, view.episodes()
    index, table = view.index, view.store.table
    writer = view.writer
    used = disk_usage(view.store.files)
    columns = _columns(view, used)
    raw = sum(column["raw_bytes"] for column in columns)
    slots = [index.slots(stream) for stream in range(layout.streams)]
    return {
        "path": str(view.path),
        "format": FORMAT,
        "damage": view.damage,
        "writer": writer,
        "left": "open" if writer is not None else _how_left(view),
        "steps": view.steps,
        "added": view.added,
        "capacity": layout.capacity,
        "environments": layout.n_envs,
        "streams": [{"steps": steps, "added": index.added_to(stream)} for stream, steps in enumerate(index.steps().tolist())],
        "frame_stack": layout.frame_stack,
        "padding": layout.padding,
        "autoreset": layout.autoreset,
        "segments": {
            "rows": layout.segment_rows,
            "used": sum(map(len, slots)),
            "sealed": int(table.sealed()[np.concatenate(slots)].sum()),
        },
        "episodes": episode_figures(episodes),
        "tags": dict(sorted((Counter(episodes.tag.tolist()) - Counter({"": len(episodes)})).items())),
        "marks": list(marks.names(view.store.files)),
        "columns": columns,
        "disk": {
            "columns": sum(column["disk_bytes"] for column in columns),
            "tail": used.get(TAIL, 0),
            "table": used.get(SEGMENTS, 0),
            "marks": used.get(marks.MARKS, 0),
            "total": sum(used.values()),
            "raw": raw,
            "ratio": _ratio(raw, sum(used.values())),
        },
        "environment": _plain(layout.environment),
        "metadata": _plain(layout.metadata),
    }


def description(layout: Layout, path: Any, damage: str) -> dict[str, Any]:
    """Describe a store of which nothing but its metadata can be read, in the words of `summary`."""
    return {
        "path": str(path),
        "format": FORMAT,
        "damage": damage,
        "capacity": layout.capacity,
        "environments": layout.n_envs,
        "frame_stack": layout.frame_stack,
        "columns": [_column(layout, name, column) for name, column in layout.schema.columns.items()],
        "environment": _plain(layout.environment),
        "metadata": _plain(layout.metadata),
    }


def episode_figures(episodes: EpisodeTable) -> dict[str, Any]:
    """Return how many episodes there are, how they ended, and how long and how good those are that are over."""
    over = episodes.select(episodes.ending != RUNNING)
    newest = in_time(over)[-NEWEST:]
    return {
        "count": len(episodes),
        "endings": dict(sorted(Counter(episodes.ending.tolist()).items())),
        "returns": _figures(over.returns, newest),
        "lengths": _figures(over.length.astype(np.float64), newest),
    }


def disk_usage(files: Files) -> dict[str, int]:
    """Return the bytes that files take on the disk, holes not counted, by column; of marks what they alone have, and all else."""
    found: dict[str, int] = {}
    known: set[tuple[int, int]] = set()
    of_marks = list[tuple[tuple[int, int], int]]()
    for name, status in files.walk():
        identity, used = (status.st_dev, status.st_ino), status.st_blocks * 512
        if name.startswith(f"{marks.MARKS}/"):
            of_marks.append((identity, used))
            continue
        known.add(identity)
        top = name.split("/", 1)[0]
        part = top if top in (SEGMENTS, TAIL) else name.rsplit("/", 1)[0] if "/" in name else "."
        found[part] = found.get(part, 0) + used
    alone = {identity: used for identity, used in of_marks if identity not in known}
    return found | ({marks.MARKS: sum(alone.values())} if of_marks else {})


def _columns(view: StoreView, used: dict[str, int]) -> list[dict[str, Any]]:
    layout, found = view.layout, []
    rows = int((view.heads - view.lows + 1).sum())
    for name, column in layout.schema.columns.items():
        raw = rows * column.row_bytes
        on_disk = used.get(name, 0)
        found.append(_column(layout, name, column) | {"raw_bytes": raw, "disk_bytes": on_disk, "ratio": _ratio(raw, on_disk)})
    return found


def _column(layout: Layout, name: str, column: Column) -> dict[str, Any]:
    packed = name in layout.chunks_of
    return {
        "name": name,
        "dtype": column.np_dtype.name,
        "shape": list(column.shape),
        "kind": "packed" if packed else "derived" if name in layout.derived else "flat",
        "codec": (column.codec or "lz4, chosen from the data") if packed else None,
        "transforms": notation(column.transforms) if column.transform else None,
    }


def _figures(values: npt.NDArray[np.float64], newest: npt.NDArray[np.int64]) -> dict[str, float] | None:
    if not len(values):
        return None
    with np.errstate(invalid="ignore"):
        figures = (values.mean(), values.min(), values.max(), values[newest].mean())
    return dict(zip(("mean", "min", "max", "newest"), map(float, figures), strict=True))


def _ratio(raw: int, on_disk: int) -> float | None:
    return round(raw / on_disk, 3) if on_disk else None


def _how_left(view: StoreView) -> str:
    files, layout = view.store.files, view.layout
    return how_it_was_left(State.read(files, layout.salt), files, layout.streams)[0].value


def _plain(given: Any) -> Any:
    return None if given is None else dict(given)
