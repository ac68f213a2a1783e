"""What `diskbuffer info` and the page tell of a store: as plain values, and in words."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.plugin import EpisodeTable, Reader, StoreInfo, StoreUsage, counted, human_size

_LEFT = {
    "clean": "closed",
    "killed": "its writer ended without closing it, as when it is killed; every step is there, and opening it goes on",
    "power loss": "not closed before the machine went down, or copied while it was open; what is there matches its checksums",
}
NEWEST = 100  # episodes, of which means are told apart from those of all


def summary(reader: Reader) -> dict[str, Any]:
    """Describe a store.

    Walks its files for the disk's share, and reads one flag and the reward of every step: some 50 ms for a million steps.

    Returns
    -------
    dict
        What JSON holds, but for figures that are NaN or infinite, as rewards may be.

        - ``path``, ``format``
        - ``writer``: ``pid``, ``host``, ``since``, or None; ``left``: "open", or how the last writer left it: "clean", "killed",
          "power loss"
        - ``steps`` (to sample), ``added`` (ever), ``capacity``, ``environments``, ``frame_stack``, ``padding``,
          ``autoreset``; ``streams``: ``steps`` and ``added`` of each; ``segments``: ``rows`` of each, ``used``, ``sealed``
        - ``episodes``: ``count``, ``endings``, ``finished`` (those of `EpisodeTable.finished`), and of these ``returns`` and
          ``lengths``, each ``mean``, ``min``, ``max`` and ``newest`` (the mean of the newest 100), or None; ``tags``: episodes of
          each; ``marks``: names
        - ``columns``: each ``name``, ``dtype``, ``shape``, ``kind`` ("packed", "flat" or "derived"), ``codec``, ``transforms``
          ("greyscale,resize:84x84", what pictures became before they were stored, or None), ``raw_bytes``, ``disk_bytes``,
          ``ratio``
        - ``disk``: bytes of ``columns``, ``tail``, ``table``, ``marks`` (what they do not share with the store), ``total``,
          ``raw``; and ``ratio``, of the total: a column's own is that of its files alone
        - ``environment``, ``metadata``
    """
    info, usage, episodes = reader.info, reader.usage(), reader.episodes()
    writer, (steps, added) = reader.writer, reader.counts()
    columns = _columns(info, usage)
    raw = sum(column["raw_bytes"] for column in columns)
    parts = {"tail": usage.tail, "table": usage.table, "marks": usage.marks, "total": usage.disk_bytes}
    return {
        "path": str(info.path),
        "format": info.format,
        "capacity": info.capacity,
        "environments": info.n_envs,
        "frame_stack": info.frame_stack,
        "padding": info.padding,
        "autoreset": info.autoreset,
        "environment": _plain(info.environment),
        "metadata": _plain(info.metadata),
        "writer": writer,
        "left": "open" if writer is not None else usage.last_shutdown,
        "steps": int(steps.sum()),
        "added": int(added.sum()),
        "streams": [{"steps": stored, "added": ever} for stored, ever in zip(steps.tolist(), added.tolist(), strict=True)][
            : info.n_envs
        ],
        "segments": {"rows": info.segment_rows, "used": usage.segments, "sealed": usage.sealed},
        "episodes": episode_figures(episodes),
        "tags": dict(sorted(Counter(filter(None, episodes.tag.tolist())).items())),
        "marks": list(usage.mark_names),
        "columns": columns,
        "disk": {"columns": sum(usage.columns.values()), **parts, "raw": raw, "ratio": _ratio(raw, usage.disk_bytes)},
    }


def facts(report: dict[str, Any]) -> dict[str, str]:
    """Return what `summary` found, in words; by what each is about."""
    words: dict[str, str] = {}
    capacity = "no limit" if report["capacity"] is None else f"capacity {report['capacity']:,}"
    evicted = "" if report["added"] == report["steps"] else f"; {report['added']:,} were ever added"
    words["steps"] = f"{report['steps']:,} to sample ({capacity}){evicted}"
    endings = ", ".join(f"{n:,} {ending}" for ending, n in report["episodes"]["endings"].items())
    words["episodes"] = f"{report['episodes']['count']:,}{f': {endings}' if endings else ''}"
    for what in ("returns", "lengths"):
        if (figures := report["episodes"][what]) is not None:
            span = f"mean {number(figures['mean'])}, from {number(figures['min'])} to {number(figures['max'])}"
            words[what] = f"{span}; mean of the newest {NEWEST}: {number(figures['newest'])}"
    words["tags"] = ", ".join(f"{tag} ({counted(n, 'episode')})" for tag, n in report["tags"].items())
    id_ = (report["environment"] or {}).get("id")
    environment = [id_] if isinstance(id_, str) else []
    environment.append(counted(report["environments"], "environment"))
    environment += [f"stacks of {report['frame_stack']} frames"] if report["frame_stack"] > 1 else []
    words["environment"] = ", ".join(environment)
    words |= {"disk": _disk(report["disk"]), "writer": writer_of(report)}
    segments = report["segments"]
    words["segments"] = f"{segments['used']:,} of {segments['rows']:,} rows, {segments['sealed']:,} of them sealed"
    words["marks"] = ", ".join(report["marks"]) or "none"
    words["metadata"] = ", ".join(f"{name}: {value}" for name, value in (report["metadata"] or {}).items())
    words["format"] = str(report["format"])
    return {about: fact for about, fact in words.items() if fact}


def writer_of(report: dict[str, Any]) -> str:
    """Return who writes to a store, or how its last writer left it, in words."""
    writer = report["writer"]
    if writer is None:
        return f"none; {_LEFT.get(report['left'], report['left'])}"
    if writer["pid"] is None:
        return "a process that is not known"
    return f"process {writer['pid']} on {writer['host']}, since {writer['since']}"


def number(value: float) -> str:
    """Return a figure with four digits that count."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}" if 1e-4 < abs(value) < 1e9 else f"{value:.3e}"


def _disk(disk: dict[str, Any]) -> str:
    parts = {"tail": "newest rows", "table": "bookkeeping", "marks": "marks"}
    others = [f"{human_size(disk[part])} of {what}" for part, what in parts.items() if disk[part]]
    ratio = "" if not disk["ratio"] else f" for {human_size(disk['raw'])} of rows"
    return f"{human_size(disk['total'])}{ratio}{'; ' if others else ''}{', '.join(others)}"


def episode_figures(episodes: EpisodeTable) -> dict[str, Any]:
    """Return how many episodes there are, how they ended, and how long and how good those are that finished."""
    finished = episodes.select(episodes.finished())
    newest = finished.argsort()[-NEWEST:]
    return {
        "count": len(episodes),
        "finished": len(finished),
        "endings": dict(sorted(Counter(episodes.ending.tolist()).items())),
        "returns": _figures(finished.returns, newest),
        "lengths": _figures(finished.length.astype(np.float64), newest),
    }


def _columns(info: StoreInfo, usage: StoreUsage) -> list[dict[str, Any]]:
    columns = []
    for name, column in info.columns.items():
        raw, used, packed = usage.rows * column.row_bytes, usage.columns[name], name in info.chunk_rows
        described = {
            "name": name,
            "dtype": column.np_dtype.name,
            "shape": list(column.shape),
            "kind": "packed" if packed else "derived" if name in info.derived else "flat",
            "codec": (column.codec or "lz4, chosen from the data") if packed else None,
            "transforms": ",".join(map(str, column.transforms)) or None,
            "raw_bytes": raw,
            "disk_bytes": used,
            "ratio": _ratio(raw, used),
        }
        columns.append(described)
    return columns


def _figures(values: npt.NDArray[np.float64], newest: npt.NDArray[np.int64]) -> dict[str, float] | None:
    if not len(values):
        return None
    with np.errstate(invalid="ignore"):
        figures = (values.mean(), values.min(), values.max(), values[newest].mean())
    return dict(zip(("mean", "min", "max", "newest"), map(float, figures), strict=True))


def _ratio(raw: int, on_disk: int) -> float | None:
    return round(raw / on_disk, 3) if on_disk else None


def _plain(mapping: Any) -> Any:
    return None if mapping is None else dict(mapping)
