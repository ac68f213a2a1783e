"""``diskbuffer show``: an episode's frames, rewards and actions, in the terminal or as a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.commands.arguments import Whole
from diskbuffer.commands.output import EIGHTHS, WELL, WRONG, complain, console, number, plain, show_json, told_of_damage
from diskbuffer.commands.output import show as shown
from diskbuffer.errors import InputError
from diskbuffer.inspect.footage import Footage, footage, returns_over_time
from diskbuffer.inspect.pictures import curves, film_strip, gif, mp4, picture_columns, spread
from diskbuffer.inspect.pictures.images import PAPER, pillow, saved
from diskbuffer.plugin import Reader, counted

_SUFFIXES = (".png", ".gif", ".mp4")
_WIDTH = 1200  # pixels of a PNG
_MOST_OF_JSON = 1024  # numbers a step


def show(
    path: str,
    episode: Whole | None = None,
    /,
    *,
    out: Path | None = None,
    column: str | None = None,
    frames: Whole | None = None,
    steps: str | None = None,
    fps: float = 15,
    scale: Whole = 1,
    json: bool = False,
) -> int:
    """Show an episode: frames, rewards, actions. Without an id, the newest one that is over, and the returns of all.

    The terminal has lines of bars; --out writes a picture or a movie.

    Parameters
    ----------
    path
        The directory of the store, or of several writers' stores. A training may be writing to it.
    episode
        Its id, as `diskbuffer episodes` lists it, which stays the same: the id of the step that it began with. -1 is the newest,
        -2 the one before.
    out
        A file: .png has some frames and all curves, .gif and .mp4 (with the extra [video]) all frames.
    column
        Which column has the frames, where there are several.
    frames
        How many frames of the file, evenly spread; 12 of a PNG.
    steps
        Only these steps of the episode, as FROM:TO: 100:200, 100: or :200.
    fps
        Frames a second of a movie.
    scale
        How many pixels, each way, one pixel of a movie becomes.
    json
        Print JSON: the episode, and what was recorded at each step.
    """
    if out is not None and out.suffix.lower() not in _SUFFIXES:
        raise InputError(f"--out must end with one of {', '.join(_SUFFIXES)}, found {out.name!r}")
    for name, given in (("frames", frames), ("scale", scale)):
        if given is not None and given < 1:
            raise InputError(f"--{name} must be at least 1, found {given}")
    reader = Reader(path, tolerate_damage=True)
    if out is not None and out.absolute().resolve().is_relative_to(reader.path.resolve()):
        raise InputError(f"{out} is inside of the store, where nothing else may be; give another path")
    found = footage(reader, episode)
    if found is None:
        nothing = f"{plain(str(reader.path))} has no episode yet"
        if out is not None and reader.info.damage is None:
            raise InputError(f"{nothing}: {out} was not written")
        show_json(None) if json else shown(f"{nothing}.")
        return _code(reader, [])
    picture = _picture_column(reader, column)
    part = _part(steps, found.rows)
    if out is not None:
        damaged = _write(found, out, picture, part, frames, fps, scale, every=episode is None)
    elif json:
        series, damaged = found.series(part, _MOST_OF_JSON)
        show_json(found.row | {"columns": {name: values.tolist() for name, values in series.items()}})
    else:
        damaged = _in_terminal(found, picture, part, every=episode is None)
    return _code(reader, damaged)


def _code(reader: Reader, damaged: Any) -> int:
    code = told_of_damage(reader.info.damage, reader.path)
    if code != WELL or not damaged:
        return code
    complain(f"Some of this is damaged, and left out. Run: diskbuffer check {reader.path}")
    return WRONG


def _picture_column(reader: Reader, column: str | None) -> str | None:
    pictures = picture_columns(reader.info.columns)
    if column is not None and column not in pictures:
        there = ", ".join(pictures) or "none"
        raise InputError(f"column {column!r} has no pictures; those that have are: {there}")
    return column or next(iter(pictures), None)


def _part(steps: str | None, rows: int) -> range:
    """Return which places of an episode are meant."""
    if steps is None:
        return range(rows)
    first, colon, last = steps.partition(":")
    try:
        begin, end = int(first or 0), int(last or rows)
    except ValueError:
        begin, end, colon = 0, 0, ""
    if not colon or not 0 <= begin < end:
        raise InputError(f"--steps must be FROM:TO, such as 100:200, 100: or :200, found {steps!r}")
    if begin >= rows:
        raise InputError(f"the episode has {rows - 1:,} steps, and --steps begins at {begin:,}")
    return range(begin, min(end, rows))


# Files


def _write(
    found: Footage, out: Path, picture: str | None, part: range, frames: int | None, fps: float, scale: int, *, every: bool
) -> bool:
    """Write a file; return whether something in it is damaged."""
    if out.suffix.lower() == ".png":
        data, damaged = _png(found, picture, part, frames, every)
    elif picture is None:
        raise InputError("no column of this store has pictures; --out FILE.png plots what there is")
    else:
        places = np.array(part)[spread(len(part), frames)]
        images, bad = found.frames(picture, places.tolist())
        movie = gif if out.suffix.lower() == ".gif" else mp4
        data, damaged = movie(images, fps, scale=scale), bool(bad)
    out.write_bytes(data)
    print(out)
    return damaged


def _png(found: Footage, picture: str | None, part: range, frames: int | None, every: bool) -> tuple[bytes, bool]:
    """Draw frames and curves, one below the other."""
    parts, series, damaged = list[bytes](), *found.series(part)
    title = _title(found)
    if picture is not None:
        places = np.array(part)[spread(len(part), 12 if frames is None else frames)].tolist()
        images, bad = found.frames(picture, places)
        labels = [f"{place}{' damaged' if at in bad else ''}" for at, place in enumerate(places)]
        parts.append(film_strip(images, None, labels, title=f"{title}, {picture}", width=_WIDTH))
        damaged = damaged or bool(bad)
    if series and len(next(iter(series.values()))):
        x = np.arange(part.start, part.start + len(next(iter(series.values()))))
        parts.append(curves(series, x=x, x_label="step of the episode", title="" if parts else title, width=_WIDTH))
    if every:
        over, ended = returns_over_time(found.reader.episodes())
        if len(ended):
            parts.append(curves(over, x=ended, x_label="steps added when it ended", width=_WIDTH))
    if not parts:
        raise InputError("there is nothing to draw of this episode: it has neither pictures nor steps")
    images_ = [pillow().open(io.BytesIO(each)) for each in parts]
    sheet = pillow().new("RGB", (max(each.width for each in images_), sum(each.height for each in images_)), PAPER)
    top = 0
    for each in images_:
        sheet.paste(each, (0, top))
        top += each.height
    return saved(sheet), damaged


def _title(found: Footage) -> str:
    row = found.row
    tag = f", tag {row['tag']!r}" if row["tag"] else ""
    what = f"{counted(row['length'], 'step')}, return {number(row['return'])}, {row['ending']}"
    return f"episode {row['episode']} of stream {row['stream']}: {what}{tag}"


# The terminal


def _in_terminal(found: Footage, picture: str | None, part: range, *, every: bool) -> bool:
    """Show an episode in the terminal; return whether something of it is damaged."""
    from rich.text import Text

    width = console().width
    shown(Text(plain(_title(found)), style="bold"))
    series, damaged = found.series(part)
    _series(series, width)
    if every:
        over, ended = returns_over_time(found.reader.episodes())
        if len(ended):
            returns = over["return of episodes"]
            _series({"returns of all episodes that are over": returns}, width)
    if picture is not None:
        shown("", f"--out FILE.png, FILE.gif or FILE.mp4 writes the frames of {picture!r}")
    return damaged


def _series(series: dict[str, Any], width: int) -> None:
    from rich.text import Text

    for name, values in series.items():
        if not len(values):
            continue
        share = shares(values)
        if share is not None:
            shown("", Text(plain(name)), Text(share))
            continue
        lines = values.reshape(len(values), -1)
        for n in range(min(lines.shape[1], 4)):
            line = lines[:, n].astype(np.float64)
            label = name if lines.shape[1] == 1 else f"{name}[{n}]"
            finite = line[np.isfinite(line)]
            ends = f"from {number(finite.min())} to {number(finite.max())}" if len(finite) else "no finite number"
            shown("", Text(plain(f"{label}, {ends}")), Text(bars(line, width)))
        if lines.shape[1] > 4:
            shown(f"and {lines.shape[1] - 4:,} more numbers of it")


def bars(values: npt.NDArray[Any], width: int) -> str:
    """Return numbers as a line of bars; of those that share a character, the one farthest from the mean is shown."""
    numbers = np.asarray(values, np.float64)
    finite = np.isfinite(numbers)
    if not finite.any():
        return " " * min(width, len(numbers))
    low, high, mean = numbers[finite].min(), numbers[finite].max(), numbers[finite].mean()
    found = []
    for part in np.array_split(np.where(finite, numbers, mean), min(width, len(numbers))):
        value = part[np.argmax(np.abs(part - mean))]
        found.append(EIGHTHS[1 + round((value - low) / (high - low) * 7)] if high > low else EIGHTHS[4])
    return "".join(found)


def shares(values: npt.NDArray[Any], most: int = 18) -> str | None:
    """Return how often each of a few whole numbers comes, None where they are many, or no whole numbers."""
    if values.ndim != 1 or values.dtype.kind not in "bui":
        return None
    found, counts = np.unique(values, return_counts=True)
    if len(found) > most:
        return None
    return "  ".join(f"{one}: {n / len(values):.0%}" for one, n in zip(found.tolist(), counts.tolist(), strict=True))
