"""``diskbuffer episodes``: a table of episodes, filtered and sorted."""

from __future__ import annotations

from diskbuffer.commands.arguments import AnyStore, Json, Whole
from diskbuffer.commands.output import WELL, show, show_json, table, telling_damage
from diskbuffer.errors import InputError
from diskbuffer.inspect.summary import number
from diskbuffer.plugin import EpisodeTable, Reader, counted

_SHOWN = 30  # rows of a table, unless more are asked for
_LEFT = ("ending", "tag")
_LONGEST = 40  # characters of a value that are shown


@telling_damage
def episodes(
    path: AnyStore,
    /,
    *,
    where: str | None = None,
    sort: str | None = None,
    reverse: bool = False,
    limit: Whole | None = None,
    json: Json = False,
) -> int:
    """List episodes: where each starts, how long and how good it is, how it ended, and its tag.

    Parameters
    ----------
    where
        Which ones: "return > 10 and ending == 'terminated'". Known are episode (its id), stream, start, length, return, ending
        ('terminated', 'truncated', 'cut off', 'running'), tag, age (steps of its environment that came after it), whole (its
        beginning was not evicted) and ended (steps of all environments that had been added by then, about); <, <=, ==, !=, >=,
        >, in, and, or, not, parentheses. So are the values that episodes were given by name: "success and score > 0.5".
    sort
        By which of these, smallest first. The newest come first by default: those that ended last.
    reverse
        Largest first; without --sort, oldest first.
    limit
        How many at most; 0 shows all. 30 by default, and all with --json.
    """
    if limit is not None and limit < 0:
        raise InputError(f"limit must be 0 (for all) or more, found {limit}")
    reader = Reader(path)
    every = reader.episodes()
    matching = reader.episodes(where)
    matching = matching.sort(reverse=not reverse) if sort is None else matching.sort(sort, reverse=reverse)
    most = (0 if json else _SHOWN) if limit is None else limit
    shown = matching.select(slice(0, most or None))
    if json:
        show_json(shown.to_rows())
    else:
        _show(shown, matching, every)
    return WELL


def _show(shown: EpisodeTable, matching: EpisodeTable, every: EpisodeTable) -> None:
    rows = [
        (
            str(row["episode"]),
            str(row["stream"]),
            str(row["start"]),
            f"{row['length']:,}" + ("" if row["whole"] else "+"),
            number(row["return"]),
            row["ending"],
            row["tag"],
            f"{row['age']:,}",
            *("" if row[name] is None else _brief(row[name]) for name in shown.values),
        )
        for row in shown.to_rows()
    ]
    if rows:
        texts = [name for name, value in shown.values.items() if value.kind == "text"]
        head = ("episode", "stream", "start", "length", "return", "ending", "tag", "age", *shown.values)
        show(table(head, rows, left=(*_LEFT, *texts)), "")
    parts = [counted(len(matching), "episode")]
    if len(matching) < len(every):
        parts = [f"{len(matching):,} of {counted(len(every), 'episode')}"]
    if len(shown) < len(matching):
        parts.append(f"of which {len(shown):,} are shown (--limit 0 shows all)")
    if not shown.whole.all():
        parts.append("+ was longer: its beginning was evicted")
    show(", ".join(parts))


def _brief(value: object) -> str:
    text = number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
