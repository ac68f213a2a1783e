"""Episodes to import and export, made at random, and how to compare those of two stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import Contents, EpisodeData

# Of every kind: pictures, which are compressed, dicts, vectors, scalars, several dtypes.
COLUMNS = {
    "obs/camera": db.Column((16, 24, 3), "uint8"),
    "obs/state": db.Column((5,), "float32"),
    "action": db.Column((2,), "float32"),
    "reward": db.Column((), "float64"),
    "skill": db.Column((), "int64"),
}


def values(column: db.Column, rows: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return rows of a column at random."""
    shape = (rows, *column.shape)
    if column.np_dtype.kind == "f":
        return random.normal(size=shape).astype(column.np_dtype)
    if column.np_dtype.kind == "b":
        return random.random(shape) < 0.5
    return random.integers(0, 100, shape).astype(column.np_dtype)


def episode(
    steps: int,
    random: np.random.Generator,
    columns: Mapping[str, db.Column] = COLUMNS,
    ending: str = "terminated",
    final: bool = True,
    tag: str = "",
    stream: int = 0,
) -> EpisodeData:
    """Return an episode at random that ends so: "terminated", "truncated" or "cut off"."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        found[name] = values(column, steps + (final and (name == "obs" or name.startswith("obs/"))), random)
    for flag in ("terminated", "truncated"):
        found[flag] = np.zeros(steps, bool)
        found[flag][-1] = ending == flag
    return EpisodeData(found, steps, tag, stream)


def some(n: int, seed: int = 0, columns: Mapping[str, db.Column] = COLUMNS, longest: int = 40, **given: Any) -> list[EpisodeData]:
    """Return `n` episodes at random, of all endings."""
    random = np.random.default_rng(seed)
    endings = ("terminated", "truncated", "cut off")
    return [
        episode(int(random.integers(1, longest + 1)), random, columns, **{"ending": endings[number % 3], **given})
        for number in range(n)
    ]


def store_of(path: Path, episodes: list[EpisodeData], columns: Mapping[str, db.Column] = COLUMNS, **options: Any) -> Path:
    """Write a store of episodes."""
    from diskbuffer.formats.blocks import Wanted, blocks
    from diskbuffer.formats.filling import fill
    from diskbuffer.plugin import Appender

    with Appender(path, columns=columns, **options) as appender:
        fill(appender, blocks(episodes, Wanted.by(appender)), lambda _: None)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Return all that a store's episodes hold, in their order."""
    source = StoreSource(path)
    found = []
    for one in source.episodes():
        columns = {name: np.asarray(rows[:]) for name, rows in one.columns.items()}
        found.append({**columns, "steps": one.steps, "tag": one.tag, "stream": one.stream})
    source.close()
    return found


def expected(episodes: list[EpisodeData]) -> list[dict[str, Any]]:
    """Return what `read` returns of a store of these episodes."""
    found = []
    for one in episodes:
        columns = {}
        for name, rows in one.columns.items():
            of = np.asarray(rows[:])
            obs = name == "obs" or name.startswith("obs/")
            columns[name] = np.concatenate([of, of[-1:]]) if obs and len(of) == one.steps else of
        for flag in ("terminated", "truncated"):
            columns.setdefault(flag, np.zeros(one.steps, bool))
        columns.setdefault("reward", np.zeros(one.steps, np.float32))
        found.append({**columns, "steps": one.steps, "tag": one.tag, "stream": one.stream})
    return found


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Assert that two lists of episodes are equal, bit by bit, NaN included."""
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert sorted(one) == sorted(other), f"episode {number}"
        for name in one:
            a, b = np.asarray(one[name]), np.asarray(other[name])
            assert a.dtype == b.dtype or a.dtype.kind == "U", f"episode {number}, {name}: {a.dtype}, {b.dtype}"
            assert a.shape == b.shape, f"episode {number}, {name}: {a.shape}, {b.shape}"
            same = (a == b) | ((a != a) & (b != b)) if a.dtype.kind == "f" else a == b
            assert np.all(same), f"episode {number}, {name}"


class Given:
    """A source of given episodes."""

    def __init__(self, found: list[EpisodeData], contents: Contents, losses: Mapping[str, str] | None = None) -> None:
        self.found, self.contents, self.losses = found, contents, losses or {}

    def episodes(self) -> Iterator[EpisodeData]:
        yield from self.found

    def close(self) -> None:
        pass


def read_here(patched: pytest.MonkeyPatch, block: int | None = None) -> None:
    """Have imports read in this process, which knows of formats and patches that another does not; in blocks of so many bytes."""
    from diskbuffer.formats import importing
    from diskbuffer.formats.blocks import Opened

    def opened(name: str, path: Path, options: Mapping[str, Any], *limits: int) -> Opened:
        read = vars(importing)["find"](name).read  # which may be patched, too
        assert read is not None
        return Opened(read(path, **options))

    patched.setattr(importing, "ConfinedSource", opened)
    if block is not None:
        patched.setattr("diskbuffer.formats.rows.BLOCK", block)
