"""What the page is told of a store: the store as a whole, its episodes, one of them, its frames, and what looks wrong."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.inspect.episode_view import EpisodeView, curve_columns, some_of
from diskbuffer.inspect.page.plain_values import running_mean, thinned, to_list
from diskbuffer.inspect.pictures import as_pictures, picture_columns
from diskbuffer.inspect.pictures.images import pillow, png
from diskbuffer.inspect.statistics import statistics
from diskbuffer.inspect.summary import NEWEST, facts, summary
from diskbuffer.plugin import RUNNING, EpisodeTable, Reader, human_size, is_observation

_SHOWN = ("episode", "return", "length", "ending", "tag", "stream", "age", "ended")  # columns of the table of episodes
_POINTS = 4000  # of a curve, at most
_MOST_ROWS = 1000  # of a page of the table
_GAP, _GREY = 2, 128  # pixels between the frames of a stack, and their colour


def overview(reader: Reader) -> dict[str, Any]:
    """Return a few figures, the columns, and what `diskbuffer info` says; costs what `summary` does."""
    report = summary(reader)
    episodes, disk = report["episodes"], report["disk"]
    figures = {name: report[name] for name in ("steps", "capacity", "environments")} | {"episodes": episodes["count"]}
    figures |= {"disk": human_size(disk["total"]), "raw": human_size(disk["raw"])}
    figures["recent_episodes"] = min(episodes["finished"], NEWEST)
    for name in ("returns", "lengths"):
        figures[f"recent_{name}"] = to_list(np.array([episodes[name]["newest"]]))[0] if episodes[name] else None
    parts = sorted(report["columns"], key=lambda column: -column["disk_bytes"])
    parts += [{"name": name, "disk_bytes": disk[part]} for part, name in (("tail", "newest rows"), ("table", "bookkeeping"))]
    columns = [part | {"disk": human_size(part["disk_bytes"])} for part in parts]
    return {"summary": figures, "columns": columns, "facts": list(facts(report).items())}


def findings(reader: Reader) -> dict[str, Any]:
    """Return what looks wrong in the data, in words."""
    report = statistics(reader)
    looked = report["looked_at"]
    items = [{"kind": "warn", "text": finding["text"]} for finding in report["findings"]]
    nothing = {"kind": "good", "text": "Nothing looks wrong: no NaN, no constant or black frames, no action that never varies."}
    return {"note": f"Looked at {looked['rows']:,} of {looked['of_rows']:,} rows.", "findings": items or [nothing]}


def timeline(reader: Reader, where: str = "") -> dict[str, Any]:
    """Return the matching episodes that are over as columns, in the order of their ends; of very many those that stand out.

    ``means`` are of returns and lengths, over the ``window`` episodes that ended last by then, drawn or not, without those that
    were cut off.
    """
    matching = reader.episodes(where.strip() or None)
    over = matching.select(matching.ending != RUNNING).sort()
    at, window = thinned(np.stack([over.returns, over.length], axis=1), _POINTS), max(10, round(len(over) / 30))
    drawn = {name: to_list(over.column(name)[at]) for name in ("ended", "episode", "return", "length", "ending")}
    finished = over.finished()
    values = {name: np.where(finished, over.column(name), np.nan) for name in ("return", "length")}
    means = {name: to_list(running_mean(each, at, window)) for name, each in values.items()}
    return drawn | {"means": means, "window": window, "matching": len(matching), "total": len(reader.episodes())}


def table(
    reader: Reader, path: Path, where: str = "", sort: str = "ended", *, descending: bool = True, offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Return a page of the table of episodes, as rows; and with a condition, commands for those that match."""
    every, matching = reader.episodes(), reader.episodes(where.strip() or None).sort(sort, reverse=descending)
    limit = min(max(1, limit), _MOST_ROWS)
    offset = max(0, min(offset, (len(matching) - 1) // limit * limit))
    left_out = {"stream"} if reader.info.streams == 1 else set()
    left_out |= set() if (every.tag != "").any() else {"tag"}
    columns = {name: to_list(matching.column(name)[offset : offset + limit]) for name in _SHOWN if name not in left_out}
    commands = []
    if where.strip():
        store, other, condition = (shlex.quote(text) for text in (str(path), f"{path.name}-chosen", where.strip()))
        commands = [
            (
                "Tag them (in the process that writes: set_tag of its own episodes)",
                f"diskbuffer tag {store} chosen --where {condition}",
            ),
            ("Copy them to a store of their own", f"diskbuffer copy {store} ./{other} --where {condition}"),
        ]
    return {
        "rows": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        "columns": list(columns),
        "numbers": [name for name in columns if matching.column(name).dtype.kind in "iuf"],
        "known": list(matching.names()),
        "offset": offset,
        "matching": len(matching),
        "total": len(every),
        "commands": commands,
    }


def episode(reader: Reader, *, step: int | None = None, id: int | None = None, by: int = 0) -> dict[str, Any]:
    """Return one episode: where it is, which columns are pictures, and the others as curves.

    The one with a step, or of an id, or the newest that is over. With `by`, the one that ended so many episodes later than that
    of the id; the newest or oldest where there are not so many. Costs a read of its steps in the flat columns, of
    100,000 at most: a millisecond for a thousand.

    Raises
    ------
    EvictedError
        The step is not there any more, or no step is.
    InputError
        There is no such episode.
    """
    every, info = reader.episodes(), reader.info
    view = EpisodeView(reader, every.select([_find(every, info.streams, step, id, by)]).to_rows()[0])
    facts_ = {name: to_list(np.array([value]))[0] for name, value in view.row.items() if name != "whole"}
    pictures = [name for name in picture_columns(info.columns) if is_observation(name)]
    curves = [_curve(view, name) for name in curve_columns(info.columns)]
    return facts_ | {"streams": info.streams, "frame_stack": info.frame_stack, "pictures": pictures, "curves": curves}


def _find(every: EpisodeTable, streams: int, step: int | None, id: int | None, by: int) -> int:
    if not len(every):
        raise EvictedError("there is no episode, as there are no steps yet")
    if step is not None:
        offset = step - every.start
        inside = (every.stream == step % streams) & (offset >= 0) & (offset <= every.length * streams)
        if not inside.any():
            raise EvictedError(f"step {step} is not there any more: its episode was evicted. The newest episodes are there")
        return int(np.flatnonzero(inside)[-1])
    if id is None:
        return every.newest()
    rows = every.argsort()
    return int(rows[np.clip(np.flatnonzero(rows == every.find(id))[0] + by, 0, len(rows) - 1)])


def _curve(view: EpisodeView, name: str) -> dict[str, Any]:
    """Read a column of an episode; a damaged one has words only."""
    rows = view.length + is_observation(name)
    x = some_of(range(rows))
    try:
        values = view.read(name, x).reshape(len(x), -1)
    except CorruptionError as error:
        return {"name": name, "x": [], "series": [[]], "thinned": False, "discrete": False, "words": str(error)}
    at = thinned(values, _POINTS)
    finite = values[np.isfinite(values)]
    words = f"{rows} values, " + (f"from {finite.min():g} to {finite.max():g}" if finite.size else "none of them finite")
    discrete = values.dtype.kind in "biu" or name == "reward"
    series = [to_list(one) for one in values[at].T]
    return {"name": name, "x": x[at].tolist(), "series": series, "thinned": len(at) < rows, "discrete": discrete, "words": words}


def frame(reader: Reader, column: str, step: int, *, stacked: bool) -> bytes:
    """Return the picture of a step's observation as a PNG; with `stacked` all frames of its stack, the oldest on the left.

    Raises
    ------
    InputError, EvictedError, CorruptionError
        As `Reader.read`; InputError, too, where the column is no picture.
    """
    frames, info = reader.read(column, [step]), reader.info
    if stacked and info.frame_stack > 1:
        stack = reader.read(column, reader.stack(step))
        before = stack[:1] if info.padding == "first" else np.zeros_like(stack[:1])
        frames = np.concatenate([before.repeat(info.frame_stack - len(stack), axis=0), stack])
    pixels = as_pictures(frames)
    gap = np.full((pixels.shape[1], _GAP, *pixels.shape[3:]), _GREY, np.uint8)
    image = np.concatenate([part for one in pixels for part in (gap, one)][1:], axis=1)  # side by side
    return png(pillow().fromarray(image), quick=True)  # it is shown once, and comes over loopback
