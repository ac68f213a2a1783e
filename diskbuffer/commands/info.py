"""``diskbuffer info``: what a store holds, how large it is, and who writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diskbuffer.commands.output import WELL, number, plain, show, show_json, table, told_of_damage
from diskbuffer.errors import CorruptionError
from diskbuffer.inspect.summary import NEWEST, description, summary
from diskbuffer.plugin import Reader, counted, human_size, is_store, local_path, read_info, writers_of

_LEFT = {
    "clean": "closed",
    "killed": "its writer ended without closing it, as when it is killed; every step is there, and opening it goes on",
    "power loss": "not closed before the machine went down, or copied while it was open; what is there matches its checksums",
}


def info(path: str, /, *, json: bool = False) -> int:
    """Show what a store holds: columns, steps, episodes, returns, disk, and who writes to it.

    Parameters
    ----------
    path
        The directory of the store, or of several writers' stores. A training may be writing to it.
    json
        Print JSON, with everything that is known.
    """
    if (writers := writers_of(path)) is not None:
        return _info_of_several(local_path(path), tuple(writers), json=json)
    try:
        found = summary(Reader(path, tolerate_damage=True))
    except CorruptionError as error:
        found = description(read_info(path, str(error)))
    if json:
        show_json(found)
    else:
        _show(found)
    return told_of_damage(found["damage"], found["path"])


def _info_of_several(root: Path, writers: Sequence[str], *, json: bool) -> int:
    """Show the writers of a directory, and what each has."""
    there = [name for name in writers if is_store(root / name)]
    found = {name: summary(Reader(root / name, tolerate_damage=True)) for name in there}
    most = read_info(root).capacity
    if json:
        show_json({"path": str(root), "capacity": most, "writers": found})
        return WELL
    rows = [
        [name, _steps_of(one), f"{one['episodes']['count']:,}", human_size(one["disk"]["total"]), _writer(one)]
        for name, one in found.items()
    ]
    capacity = "no limit" if most is None else f"{most:,}"
    steps = sum(one["steps"] for one in found.values())
    show(f"{plain(str(root))}: {counted(len(there), 'writer')}, {steps:,} steps to sample (capacity of all: {capacity})", "")
    show(table(["writer", "steps", "episodes", "disk", ""], rows))
    return WELL


def _steps_of(found: dict[str, Any]) -> str:
    return f"{found['steps']:,}"


def _show(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, fact in _facts(found).items():
        facts.add_row(name, Text(plain(fact)))
    show(Text(plain(found["path"]), style="bold underline"), facts, "")
    show(_columns(found))


def _facts(found: dict[str, Any]) -> dict[str, str]:
    facts: dict[str, str] = {}
    if "steps" in found:
        facts |= {"steps": _steps(found), "episodes": _episodes(found["episodes"])}
        for what in ("returns", "lengths"):
            figures = found["episodes"][what]
            if figures is not None:
                facts[what] = (
                    f"mean {number(figures['mean'])}, from {number(figures['min'])} to {number(figures['max'])}; "
                    f"mean of the newest {NEWEST}: {number(figures['newest'])}"
                )
        if found["tags"]:
            facts["tags"] = ", ".join(f"{tag} ({counted(n, 'episode')})" for tag, n in found["tags"].items())
    facts["environment"] = _environment(found)
    if "disk" in found:
        facts["disk"] = _disk(found["disk"])
        facts["writer"] = _writer(found)
        segments = found["segments"]
        facts["segments"] = f"{segments['used']:,} of {segments['rows']:,} rows, {segments['sealed']:,} of them sealed"
        facts["marks"] = ", ".join(found["marks"]) or "none"
    if found["metadata"]:
        facts["metadata"] = ", ".join(f"{name}: {value}" for name, value in found["metadata"].items())
    facts["format"] = str(found["format"])
    return facts


def _steps(found: dict[str, Any]) -> str:
    capacity = "no limit" if found["capacity"] is None else f"capacity {found['capacity']:,}"
    evicted = "" if found["added"] == found["steps"] else f"; {found['added']:,} were ever added"
    return f"{found['steps']:,} to sample ({capacity}){evicted}"


def _episodes(episodes: dict[str, Any]) -> str:
    endings = ", ".join(f"{n:,} {ending}" for ending, n in episodes["endings"].items())
    return f"{episodes['count']:,}{f': {endings}' if endings else ''}"


def _environment(found: dict[str, Any]) -> str:
    parts = [counted(found["environments"], "environment")]
    told = found["environment"] or {}
    if isinstance(told.get("id"), str):
        parts.insert(0, told["id"])
    if found["frame_stack"] > 1:
        parts.append(f"stacks of {found['frame_stack']} frames")
    return ", ".join(parts)


def _disk(disk: dict[str, Any]) -> str:
    parts = {"tail": "newest rows", "table": "bookkeeping", "marks": "marks"}
    others = [f"{human_size(disk[part])} of {what}" for part, what in parts.items() if disk[part]]
    ratio = "" if not disk["ratio"] else f" for {human_size(disk['raw'])} of rows ({disk['ratio']:.3g} to 1)"
    return f"{human_size(disk['total'])}{ratio}{'; ' if others else ''}{', '.join(others)}"


def _writer(found: dict[str, Any]) -> str:
    writer = found["writer"]
    if writer is None:
        return f"none; {_LEFT.get(found['left'], found['left'])}"
    if writer["pid"] is None:
        return "a process that is not known"
    return f"process {writer['pid']} on {writer['host']}, since {writer['since']}"


def _columns(found: dict[str, Any]) -> Any:
    rows, transformed = [], any(column["transforms"] for column in found["columns"])
    for column in found["columns"]:
        shape = " x ".join(map(str, column["shape"])) or "scalar"
        row = [column["name"], column["dtype"], shape, *([column["transforms"] or ""] if transformed else ())]
        row += [column["kind"], column["codec"] or ""]
        if "disk_bytes" in column:
            ratio = "" if column["ratio"] is None else f"{column['ratio']:.3g}"
            row += [human_size(column["raw_bytes"]), human_size(column["disk_bytes"]), ratio]
        rows.append(row)
    texts = ("column", "dtype", "shape", *(("transforms",) if transformed else ()), "kind", "codec")
    return table((*texts, "rows", "disk", "ratio")[: len(rows[0])], rows, left=texts)
