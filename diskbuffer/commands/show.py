"""``diskbuffer show``: an episode's frames, rewards and actions, in the terminal or as a file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from diskbuffer.commands.arguments import AnyStore, Whole
from diskbuffer.commands.output import WELL, WRONG, complain, show_json, telling_damage
from diskbuffer.commands.output import show as shown
from diskbuffer.commands.stats import distributions
from diskbuffer.errors import InputError
from diskbuffer.inspect.distributions import distribution
from diskbuffer.inspect.episode_view import EpisodeView, find_episode
from diskbuffer.inspect.pictures import curves, film_strip, movie, picture_columns, spread
from diskbuffer.inspect.pictures.images import pillow, png
from diskbuffer.inspect.summary import number
from diskbuffer.plugin import Reader, counted, printable

_SUFFIXES = (".png", ".gif", ".mp4")
_WIDTH = 1200  # pixels of a PNG
_MOST_OF_JSON = 1024  # numbers a step


@telling_damage
def show(
    path: AnyStore,
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
    """Show an episode: how its rewards, actions and other values are distributed. Without an id, the newest one that is over.

    --out writes a picture of frames and curves, without an id with the returns of all that finished, or a movie.

    Parameters
    ----------
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
        Print JSON: the episode, and what was recorded at which of its steps: all, or, of very many, every so many.
    """
    if out is not None and out.suffix.lower() not in _SUFFIXES:
        raise InputError(f"--out must end with one of {', '.join(_SUFFIXES)}, found {out.name!r}")
    for name, value in (("frames", frames), ("scale", scale)):
        if value is not None and value < 1:
            raise InputError(f"--{name} must be at least 1, found {value}")
    reader = Reader(path)
    if out is not None and out.absolute().resolve().is_relative_to(reader.path.resolve()):
        raise InputError(f"{out} is inside of the store, where nothing else may be; give another path")
    view = find_episode(reader, episode)
    if view is None:
        nothing = f"{printable(str(reader.path))} has no episode yet"
        if out is not None:
            raise InputError(f"{nothing}: {out} was not written")
        show_json(None) if json else shown(f"{nothing}.")
        return WELL
    picture = _picture_column(reader, column)
    part = _part(steps, view.length + 1)
    if out is not None:
        damaged = _write(view, out, picture, part, frames, fps, scale, every=episode is None)
    elif json:
        places, series, damaged = view.curves(part, _MOST_OF_JSON)
        show_json(view.row | {"steps": places.tolist(), "columns": {name: values.tolist() for name, values in series.items()}})
    else:
        damaged = _in_terminal(view, picture, part)
    if not damaged:
        return WELL
    complain(f"Some of this is damaged, and left out. Run: diskbuffer check {reader.path}")
    return WRONG


def _picture_column(reader: Reader, column: str | None) -> str | None:
    pictures = picture_columns(reader.info.columns)
    if column is not None and column not in pictures:
        known = ", ".join(pictures) or "none"
        raise InputError(f"column {column!r} has no pictures; those that have are: {known}")
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


def _write(
    view: EpisodeView, out: Path, picture: str | None, part: range, frames: int | None, fps: float, scale: int, *, every: bool
) -> bool:
    """Write a file; return whether something in it is damaged."""
    if out.suffix.lower() == ".png":
        data, damaged = _png(view, picture, part, frames, every)
    elif picture is None:
        raise InputError("no column of this store has pictures; --out FILE.png plots what there is")
    else:
        places = np.array(part)[spread(len(part), frames)]
        images, bad = view.frames(picture, places)
        data, damaged = movie(images, out.suffix.lower()[1:], fps, scale=scale), bool(bad)
    out.write_bytes(data)
    print(out)
    return damaged


def _png(view: EpisodeView, picture: str | None, part: range, frames: int | None, every: bool) -> tuple[bytes, bool]:
    """Draw frames and curves, one below the other."""
    places, series, damaged = view.curves(part)
    parts, title = list[bytes](), _title(view)
    if picture is not None:
        shown_at = np.array(part)[spread(len(part), 12 if frames is None else frames)]
        images, bad = view.frames(picture, shown_at)
        labels = [f"{place}{' damaged' if at in bad else ''}" for at, place in enumerate(shown_at.tolist())]
        parts.append(film_strip(images, labels, title=f"{title}, {picture}", width=_WIDTH))
        damaged = damaged or bool(bad)
    if series and len(places):
        parts.append(curves(series, places, x_label="step of the episode", title="" if parts else title, width=_WIDTH))
    table = view.reader.episodes()
    if every and len(finished := table.select(table.finished()).sort()):
        values = {"return of episodes": finished.returns, "length of episodes": finished.length}
        parts.append(curves(values, finished.ended, x_label="steps added when it ended", width=_WIDTH))
    if not parts:
        raise InputError("there is nothing to draw of this episode: it has neither pictures nor steps")
    opened = [pillow().open(io.BytesIO(each)) for each in parts]
    sheet = pillow().new("RGB", (max(each.width for each in opened), sum(each.height for each in opened)), "white")
    for at, each in enumerate(opened):
        sheet.paste(each, (0, sum(above.height for above in opened[:at])))
    return png(sheet), damaged


def _title(view: EpisodeView) -> str:
    row = view.row
    tag = f", tag {row['tag']!r}" if row["tag"] else ""
    what = f"{counted(row['length'], 'step')}, return {number(row['return'])}, {row['ending']}"
    return f"episode {row['episode']} of stream {row['stream']}: {what}{tag}"


def _in_terminal(view: EpisodeView, picture: str | None, part: range) -> bool:
    """Show an episode in the terminal; return whether something of it is damaged."""
    from rich.text import Text

    shown(Text(printable(_title(view)), style="bold"), "")
    _, series, damaged = view.curves(part)
    shown(distributions({name: distribution(values) for name, values in series.items()}))
    if picture is not None:
        shown("", f"--out FILE.png, FILE.gif or FILE.mp4 writes the frames of {picture!r}")
    return damaged
