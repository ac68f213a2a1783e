"""What `diskbuffer info` tells of a store, as plain values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.plugin import RUNNING, EpisodeTable, Reader, StoreInfo, StoreUsage

NEWEST = 100  # episodes, of which means are told apart from those of all


def summary(reader: Reader) -> dict[str, Any]:
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
    info, usage, episodes = reader.info, reader.usage(), reader.episodes()
    writer, (steps, added) = reader.writer, reader.counts()
    columns = _columns(info, usage)
    raw = sum(column["raw_bytes"] for column in columns)
    parts = {"tail": usage.tail, "table": usage.table, "marks": usage.marks, "total": usage.disk_bytes}
    return _description(info) | {
        "writer": writer,
        "left": "open" if writer is not None else usage.last_shutdown,
        "steps": int(steps.sum()),
        "added": int(added.sum()),
        "streams": [{"steps": there, "added": ever} for there, ever in zip(steps.tolist(), added.tolist(), strict=True)],
        "segments": {"rows": info.segment_rows, "used": usage.segments, "sealed": usage.sealed},
        "episodes": episode_figures(episodes),
        "tags": dict(sorted((Counter(episodes.tag.tolist()) - Counter({"": len(episodes)})).items())),
        "marks": list(usage.mark_names),
        "columns": columns,
        "disk": {"columns": sum(usage.columns.values()), **parts, "raw": raw, "ratio": _ratio(raw, usage.disk_bytes)},
    }


def description(info: StoreInfo) -> dict[str, Any]:
    """Describe a store of which nothing but its description can be read, in the words of `summary`."""
    return _description(info) | {"columns": [_column(info, name, column) for name, column in info.columns.items()]}


def _description(info: StoreInfo) -> dict[str, Any]:
    return {
        "path": str(info.path),
        "format": info.format,
        "damage": info.damage,
        "capacity": info.capacity,
        "environments": info.n_envs,
        "frame_stack": info.frame_stack,
        "padding": info.padding,
        "autoreset": info.autoreset,
        "environment": _plain(info.environment),
        "metadata": _plain(info.metadata),
    }


def episode_figures(episodes: EpisodeTable) -> dict[str, Any]:
    """Return how many episodes there are, how they ended, and how long and how good those are that are over."""
    over = episodes.select(episodes.ending != RUNNING)
    newest = over.argsort()[-NEWEST:]
    return {
        "count": len(episodes),
        "endings": dict(sorted(Counter(episodes.ending.tolist()).items())),
        "returns": _figures(over.returns, newest),
        "lengths": _figures(over.length.astype(np.float64), newest),
    }


def _columns(info: StoreInfo, usage: StoreUsage) -> list[dict[str, Any]]:
    found = []
    for name, column in info.columns.items():
        raw, used = usage.rows * column.row_bytes, usage.columns[name]
        found.append(_column(info, name, column) | {"raw_bytes": raw, "disk_bytes": used, "ratio": _ratio(raw, used)})
    return found


def _column(info: StoreInfo, name: str, column: Column) -> dict[str, Any]:
    packed = name in info.chunk_rows
    return {
        "name": name,
        "dtype": column.np_dtype.name,
        "shape": list(column.shape),
        "kind": "packed" if packed else "derived" if name in info.derived else "flat",
        "codec": (column.codec or "lz4, chosen from the data") if packed else None,
        "transforms": ",".join(map(str, column.transforms)) or None,
    }


def _figures(values: npt.NDArray[np.float64], newest: npt.NDArray[np.int64]) -> dict[str, float] | None:
    if not len(values):
        return None
    with np.errstate(invalid="ignore"):
        figures = (values.mean(), values.min(), values.max(), values[newest].mean())
    return dict(zip(("mean", "min", "max", "newest"), map(float, figures), strict=True))


def _ratio(raw: int, on_disk: int) -> float | None:
    return round(raw / on_disk, 3) if on_disk else None


def _plain(given: Any) -> Any:
    return None if given is None else dict(given)
