"""The table of episodes: `meta/episodes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.lerobot.arrays import from_arrow, pyarrow
from diskbuffer.formats.lerobot.info import EPISODES, OWN, Info
from diskbuffer.formats.lerobot.table import Table
from diskbuffer.plugin import counted

Int64 = npt.NDArray[np.int64]
STREAM = f"{OWN}/stream"  # our column, of the stream that an episode is of
VALUES = f"{OWN}/values"  # our column, of what an episode was given by name, as JSON
_BLOCK = 4096  # rows


@dataclass
class Episodes:
    """The episodes of a data set, in their order.

    Attributes
    ----------
    length : (n,) int64
    chunk, file : (n,) int64
        The file of data that it is in.
    row : (n,) int64
        The row of that file that it begins with.
    file_rows : (n,) int64
        How many rows that file has.
    task, task_names : (n,) int64, list of str
        Its task, as a number in the list. Where it has several, their names are joined.
    several : bool
        Whether one has several tasks.
    stream : (n,) int64
    values : list of str, optional
        What each was given by name, as JSON.
    videos : dict
        By feature: its file's chunk and number, and the seconds in that file at which it begins; (n,) each.
    """

    length: Int64
    chunk: Int64
    file: Int64
    row: Int64
    file_rows: Int64
    task: Int64
    task_names: list[str]
    several: bool
    stream: Int64
    values: list[str] | None = None
    videos: dict[str, tuple[Int64, Int64, npt.NDArray[np.float64]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.length)


def read_episodes(info: Info, videos: Sequence[str], n_envs: int) -> Episodes:
    """Read and check the table of episodes; `videos` are the features that are videos."""
    tables = _tables(info)
    try:
        reader = _Reader(tables)
        length, chunk, file = reader.of("length"), reader.of("data/chunk_index"), reader.of("data/file_index")
        begin, end = reader.of("dataset_from_index"), reader.of("dataset_to_index")
        _check(info, reader.of("episode_index"), length, begin, end)
        row, file_rows = _rows(length, chunk, file)
        task, names, several = reader.tasks()
        stream = reader.of(STREAM) if STREAM in tables[0].names else np.zeros(len(length), np.int64)
        if len(stream) and not (stream.min() >= 0 and stream.max() < n_envs):
            raise SourceError(f"{tables[0].path}: streams must be from 0 to {n_envs - 1}, found {stream.min()} to {stream.max()}")
        values = reader.texts(VALUES) if VALUES in tables[0].names else None
        episodes = Episodes(length, chunk, file, row, file_rows, task, names, several, stream, values)
        for key in videos:
            seconds = reader.of(f"videos/{key}/from_timestamp", "float64")
            if not (np.isfinite(seconds).all() and (seconds >= 0).all() and (seconds < 1e9).all()):
                raise SourceError(f"{tables[0].path}: episodes of {key!r} begin at times that are none")
            episodes.videos[key] = reader.of(f"videos/{key}/chunk_index"), reader.of(f"videos/{key}/file_index"), seconds
        return episodes
    finally:
        for table in tables:
            table.close()


def _tables(info: Info) -> list[Table]:
    paths = sorted((info.root / EPISODES).glob("*/*.parquet"))
    if not paths:
        raise SourceError(f"{info.root} is no data set of LeRobot, or is not complete: there are no files in {EPISODES}")
    tables = [Table(path) for path in paths]
    rows = sum(table.rows for table in tables)
    if rows != info.episodes:
        raise SourceError(f"info.json says {counted(info.episodes, 'episode')}, and {EPISODES} has {rows}")
    return tables


class _Reader:
    def __init__(self, tables: list[Table]) -> None:
        self._tables = tables

    def of(self, name: str, dtype: str = "int64") -> npt.NDArray[Any]:
        """Return a column of numbers, of all tables."""
        blocks = [
            from_arrow(block, dtype, (1,), f"{table.path}: {name!r}").reshape(-1)
            for table in self._tables
            for block in table.blocks(name, 0, _BLOCK)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype)

    def texts(self, name: str) -> list[str]:
        """Return a column of texts, of all tables."""
        pa, found = pyarrow(), list[str]()
        for table in self._tables:
            kind = table.type_of(name)
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise SourceError(f"{table.path}: {name!r} must be texts, found {kind}")
            for block in table.blocks(name, 0, _BLOCK):
                found += [value or "{}" for value in block.to_pylist()]
        return found

    def tasks(self) -> tuple[Int64, list[str], bool]:
        """Return the number of each episode's task, the tasks, and whether an episode has several."""
        pa = pyarrow()
        names: dict[str, int] = {}
        numbers: list[int] = []
        several = False
        for table in self._tables:
            kind = table.type_of("tasks")
            texts = kind if pa.types.is_string(kind) or pa.types.is_large_string(kind) else getattr(kind, "value_type", None)
            if texts is None or not (pa.types.is_string(texts) or pa.types.is_large_string(texts)):
                raise SourceError(f"{table.path}: 'tasks' must be lists of texts, found {kind}")
            for block in table.blocks("tasks", 0, _BLOCK):
                for value in block.to_pylist():
                    tasks = [value] if isinstance(value, str) else [one for one in value or [] if one is not None]
                    several |= len(tasks) > 1
                    numbers.append(names.setdefault("; ".join(tasks), len(names)))
        return np.array(numbers, np.int64), list(names), several


def _check(info: Info, number: Int64, length: Int64, begin: Int64, end: Int64) -> None:
    """Raise where episodes do not follow one another."""
    if not np.array_equal(number, np.arange(len(number))):
        raise SourceError(f"{EPISODES}: episodes must be numbered from 0 on, found {number[:10].tolist()}, ...")
    if len(length) and (length.min() < 1 or length.max() > info.steps):
        wrong = int(np.flatnonzero((length < 1) | (length > info.steps))[0])
        raise SourceError(f"{EPISODES}: episode {wrong} has {length[wrong]} steps, and info.json says {info.steps} of all")
    ends = np.cumsum(length)
    if not (np.array_equal(end, ends) and np.array_equal(begin, ends - length)):
        wrong = int(np.flatnonzero((end != ends) | (begin != ends - length))[0])
        raise SourceError(
            f"{EPISODES}: episode {wrong}, of {length[wrong]} steps, should be the steps from {ends[wrong] - length[wrong]} to "
            f"{ends[wrong]} of all, found from {begin[wrong]} to {end[wrong]}"
        )
    total = int(ends[-1]) if len(ends) else 0
    if total != info.steps:
        raise SourceError(f"info.json says {counted(info.steps, 'step')}, and the episodes have {total}")


def _rows(length: Int64, chunk: Int64, file: Int64) -> tuple[Int64, Int64]:
    """Return the row of its file at which each episode begins, and how many rows that file has."""
    if len(length) and (min(chunk.min(), file.min()) < 0 or max(chunk.max(), file.max()) >= 2**31):
        raise SourceError(f"{EPISODES}: files must be numbered from 0 on")
    new = np.ones(len(length), bool)
    new[1:] = (chunk[1:] != chunk[:-1]) | (file[1:] != file[:-1])
    run = np.cumsum(new) - 1
    firsts = np.flatnonzero(new)
    if len(np.unique(np.stack([chunk[firsts], file[firsts]]), axis=1).T) != len(firsts):
        raise SourceError(f"{EPISODES}: the episodes of a file must follow one another")
    begin = np.cumsum(length) - length
    rows = np.add.reduceat(length, firsts) if len(firsts) else length
    return begin - begin[firsts][run], rows[run]
