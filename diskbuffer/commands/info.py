"""``diskbuffer info``: what a store holds, how large it is, and who writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diskbuffer.commands.arguments import AnyStore, Json
from diskbuffer.commands.output import WELL, show, show_json, table, telling_damage
from diskbuffer.inspect.summary import facts, summary, writer_of
from diskbuffer.plugin import Reader, counted, human_size, is_store, local_path, printable, writers_of


@telling_damage
def info(path: AnyStore, /, *, json: Json = False) -> int:
    """Show what a store holds: columns, steps, episodes, returns, disk, and who writes to it."""
    if (writers := writers_of(path)) is not None:
        _info_of_several(local_path(path), tuple(writers), json=json)
        return WELL
    report = summary(Reader(path))
    if json:
        show_json(report)
    else:
        _show(report)
    return WELL


def _info_of_several(root: Path, writers: Sequence[str], *, json: bool) -> None:
    """Show the writers of a directory, and what each has."""
    present = [name for name in writers if is_store(root / name)]
    reports = {name: summary(Reader(root / name)) for name in present}
    if json:
        show_json({"path": str(root), "writers": reports})
        return
    rows = [
        [
            name,
            f"{one['steps']:,}",
            _capacity(one),
            f"{one['episodes']['count']:,}",
            human_size(one["disk"]["total"]),
            writer_of(one),
        ]
        for name, one in reports.items()
    ]
    steps = sum(one["steps"] for one in reports.values())
    show(f"{printable(str(root))}: {counted(len(present), 'writer')}, {steps:,} steps to sample", "")
    show(table(["writer", "steps", "capacity", "episodes", "disk", ""], rows))


def _capacity(report: dict[str, Any]) -> str:
    return "no limit" if report["capacity"] is None else f"{report['capacity']:,}"


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, fact in facts(report).items():
        shown.add_row(name, Text(printable(fact)))
    show(Text(printable(report["path"]), style="bold underline"), shown, "")
    show(_columns(report))


def _columns(report: dict[str, Any]) -> Any:
    rows, transformed = [], any(column["transforms"] for column in report["columns"])
    for column in report["columns"]:
        shape = " x ".join(map(str, column["shape"])) or "scalar"
        row = [column["name"], column["dtype"], shape, *([column["transforms"] or ""] if transformed else ())]
        ratio = "" if column["ratio"] is None else f"{column['ratio']:.3g}"
        row += [column["kind"], column["codec"] or "", human_size(column["raw_bytes"]), human_size(column["disk_bytes"]), ratio]
        rows.append(row)
    texts = ("column", "dtype", "shape", *(("transforms",) if transformed else ()), "kind", "codec")
    return table((*texts, "rows", "disk", "ratio"), rows, left=texts)
