"""Make the golden stores: small stores of format 1, which every later version must read.

    python -m tests.golden.make DIRECTORY

Each store is told by a list of actions. `write` does them with the library; `contents` says what must be there afterwards,
without the library. The archives in this directory were made once, by an early version, and are never made again: a store that
a new version wrote would show nothing of what users have. A new format gets new stores beside these. (Before the first release
they were made again, when files lost numbers that told of older ones put back.)
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import os
import shutil
import signal
import socket
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from tests.support.workloads import boot

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
BOOT = 1  # the number of the machine's boot in which stores were written, see `tests.support.workloads.boot`
HOST = "golden"
STACK = 3


@dataclass(frozen=True)
class Episode:
    """An episode that is recorded: its stream, its steps, how it ends, and earlier frames that its first stack brings along."""

    stream: int
    steps: int
    ending: str
    lead: int = 0


@dataclass(frozen=True)
class Action:
    """One call, or some: its name and its arguments.

    "extend" records episodes one by one, "add" one of every environment side by side.
    "write" gives every second step a value. "tag" tags the finished episodes number `at` of the streams.
    """

    name: str
    episodes: tuple[Episode, ...] = ()
    tag: str | None = None
    at: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Golden:
    """A store: how it is created, what is done to it, and what becomes of it at the end.

    Attributes
    ----------
    kept : tuple of int, optional
        Steps of each stream that a ring has kept; None where nothing was evicted.
    end : {"closed", "live", "killed"}
        Live is a copy that was made while its writer lived on.
    damage : tuple of (str, int)
        Files of which a byte is flipped at a place, or which are removed where that is -1.
    lost : dict of int to tuple of int
        By stream, positions of steps that a repair has to drop.
    """

    columns: dict[str, db.Column]
    actions: tuple[Action, ...]
    n_envs: int = 1
    capacity: int | None = None
    extra: dict[str, db.Column] = field(default_factory=dict)
    frame_stack: int = 1
    metadata: dict[str, Any] | None = None
    kept: tuple[int, ...] | None = None
    end: str = "closed"
    damage: tuple[tuple[str, int], ...] = ()
    lost: dict[int, tuple[int, ...]] = field(default_factory=dict)


def _extend(*episodes: tuple[int, int, str] | tuple[int, int, str, int]) -> Action:
    return Action("extend", tuple(Episode(*one) for one in episodes))


def _add(steps: int, *endings: str) -> Action:
    return Action("add", tuple(Episode(stream, steps, ending) for stream, ending in enumerate(endings)))


_FLUSH, _SEAL, _WRITE, _CLEAR = (Action(name) for name in ("flush", "seal", "write", "clear"))
_PIXELS = {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")}
_VECTORS = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float64")}
_DICTS = {
    "obs/camera": db.Column((20, 20), "float32"),
    "obs/joints": db.Column((3,), "float64"),
    "action": db.Column((), "int16"),
}
_LOG_PROB = {"log_prob": db.Column((), "float32")}
_SOME = (  # finished and cut-off episodes of two environments, a value, tags, and episodes that run on
    _extend((0, 13, "terminated"), (1, 9, "truncated"), (0, 7, "cut off"), (1, 20, "terminated")),
    _add(11, "truncated", "terminated"),
    _WRITE,
    Action("tag", tag="good", at=((0, 0), (1, 1))),
    Action("tag", tag="bad", at=((1, 0),)),
    _SEAL,
    _add(6, "terminated", "cut off"),
    _add(5, "running", "running"),
)
_LONG = (_extend(*((0, 19, "terminated") for _ in range(4))), _WRITE, _SEAL)

STORES = {
    "closed": Golden(_DICTS, (*_SOME[:5], Action("mark", tag="then"), *_SOME[5:]), 2, extra=_LOG_PROB),
    "vectors": Golden(_VECTORS, _SOME, 2, extra=_LOG_PROB, metadata={"written by": ["format", 1]}),
    "stacks": Golden(
        _PIXELS,
        (
            _extend((0, 12, "terminated"), (0, 8, "truncated", STACK - 1), (0, 15, "terminated")),
            _SEAL,
            _extend((0, 4, "running")),
        ),
        frame_stack=STACK,
    ),
    "ring": Golden(
        _PIXELS,
        (
            *_SOME,
            _add(30, "terminated", "terminated"),
            _SEAL,
            _add(8, "truncated", "terminated"),
            _WRITE,
            _add(3, "running", "running"),
        ),
        2,
        capacity=60,
        kept=(40, 33),
    ),
    "cleared": Golden(_PIXELS, (*_SOME[:6], _CLEAR, _add(10, "terminated", "truncated"), _add(4, "running", "running")), 2),
    "live": Golden(_PIXELS, (*_SOME[:5], _FLUSH, *_SOME[5:]), 2, extra=_LOG_PROB, end="live"),
    "killed": Golden(_PIXELS, (*_SOME[:4], _FLUSH, *_SOME[5:]), 2, end="killed"),
    "killed ring": Golden(_VECTORS, (*_SOME[:-1], _add(30, "running", "running")), 2, capacity=50, kept=(37, 31), end="killed"),
    "damaged": Golden(
        _PIXELS,
        _LONG,
        damage=(("obs/c.0.0.0", 40), ("action/c.3", -1), ("value/c.1", 12)),
        lost={0: (0, 1, 2, 3, *range(47, 59), *range(60, 64))},  # of the chunk, and of the segment; 59 is no step
    ),
}


# What is in a row


def numbers(stream: int, positions: Array) -> Array:
    """Return a number that every row has for its own."""
    return np.asarray(positions, np.int64) * 4 + stream + 1


def observations(column: db.Column, stream: int, positions: Array) -> Array:
    """Return what rows of a column of observations hold, (n, ...)."""
    unique, size = numbers(stream, positions), int(np.prod(column.shape))
    if column.np_dtype.kind == "f":
        return (unique[:, None] + np.arange(size) % 5 / 8).reshape(-1, *column.shape).astype(column.np_dtype)
    flat = (np.arange(size) // 7 + unique[:, None] * 11).astype(np.uint8)
    flat[:, :8] = unique.astype("<i8").view(np.uint8).reshape(-1, 8)
    return np.asarray(flat.reshape(-1, *column.shape))


def values_of(steps: Array) -> Array:
    """Return the column that is written later, of steps by their names."""
    return (np.asarray(steps) * 2 + 1).astype(np.float32)


# What must be there


@dataclass
class Step:
    """A step: where it is, how far back its stack may reach, how its episode ends, and what was given later."""

    stream: int
    position: int
    episode: int  # of its stream
    start: int
    lead: int
    ending: str
    is_end: bool
    value: float = 0.0
    tag: str = ""


@dataclass
class Contents:
    """All steps of a store, stream after stream, and of its marks."""

    steps: list[list[Step]]
    marks: dict[str, Contents] = field(default_factory=dict)


def contents(store: Golden) -> Contents:
    """Say what must be in a store, before it was damaged."""
    found = Contents([[] for _ in range(store.n_envs)])
    heads, count = [-1] * store.n_envs, [0] * store.n_envs
    for action in store.actions:
        for one in action.episodes:
            start = heads[one.stream] + 1 + one.lead
            heads[one.stream] = start + one.steps
            for t in range(one.steps):
                last = t == one.steps - 1
                found.steps[one.stream].append(
                    Step(one.stream, start + t, count[one.stream], start, start - one.lead, one.ending, last)
                )
            count[one.stream] += 1
        everything = [step for steps in found.steps for step in steps]
        match action.name:
            case "write":
                for step in everything:
                    if step.position % 2 == 0:
                        step.value = float(values_of(np.array(step.position * store.n_envs + step.stream)))
            case "tag":
                for step in everything:
                    if (step.stream, step.episode) in action.at:
                        step.tag = action.tag or ""
            case "mark":
                assert action.tag is not None
                found.marks[action.tag] = Contents(copy.deepcopy(found.steps))
            case "clear":
                found.steps = [[] for _ in range(store.n_envs)]
    if store.kept is not None:
        found.steps = [steps[len(steps) - n :] for steps, n in zip(found.steps, store.kept, strict=True)]
    return found


def columns_of(store: Golden, steps: list[Step]) -> dict[str, Array]:
    """Return what steps must have, by the path of each column, as `at` gives them."""
    found: dict[str, list[Array]] = {}
    for step in steps:
        for name, value in _columns_of(store, step).items():
            found.setdefault(name, []).append(value)
    return {name: np.stack(values) for name, values in found.items()}


def _columns_of(store: Golden, step: Step) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for path, column in store.columns.items():
        if path.startswith("obs"):
            for name, at in ((path, step.position), (f"next_{path}", step.position + 1)):
                rows = np.maximum(np.arange(at - store.frame_stack + 1, at + 1), step.lead)
                stack = observations(column, step.stream, rows)
                found[name] = stack if store.frame_stack > 1 else stack[0]
    number = numbers(step.stream, np.array(step.position))
    action = store.columns["action"]
    found["action"] = np.full(action.shape, number, action.np_dtype)
    found["reward"] = np.asarray(number / 2, np.float32)
    if "log_prob" in store.extra:
        found["log_prob"] = np.asarray(-number / 4, np.float32)
    found["terminated"] = np.asarray(step.is_end and step.ending == "terminated")
    found["truncated"] = np.asarray(step.is_end and step.ending == "truncated")
    found["steps"] = np.asarray(step.position * store.n_envs + step.stream, np.int64)
    return found


# Writing them


def write(store: Golden, path: Path) -> db.ReplayBuffer:
    """Do what is told of a store, and return it open."""
    buffer = db.ReplayBuffer(
        path,
        store.capacity,
        columns=store.columns,
        extra=store.extra,
        n_envs=store.n_envs,
        frame_stack=store.frame_stack,
        autoreset="disabled",
        segment_rows=16,
        metadata=store.metadata,
        threads=1,
    )
    told = without_evicting(store)
    done = [0] * store.n_envs  # episodes
    starts = {(step.stream, step.episode): step.start for steps in _ever(told) for step in steps}
    for action in store.actions:
        match action.name:
            case "extend":
                for one in action.episodes:
                    _extend_by(buffer, store, one, starts[one.stream, done[one.stream]])
                    done[one.stream] += 1
            case "add":
                first = [starts[one.stream, done[one.stream]] for one in action.episodes]
                _add_to(buffer, store, action.episodes, first)
                for one in action.episodes:
                    done[one.stream] += 1
            case "write":
                steps = buffer.steps()
                steps = steps[steps // store.n_envs % 2 == 0]
                buffer.columns.write("value", steps, values_of(steps))
            case "tag":
                buffer.episodes.of([starts[at] * store.n_envs + at[0] for at in action.at]).set_tag(action.tag)
            case "mark":
                buffer.copies.mark(str(action.tag))
            case "seal":
                buffer.flush(recompress=True)
            case name:
                getattr(buffer, name)()
    return buffer


def without_evicting(store: Golden) -> Golden:
    """Return a store of which nothing was evicted."""
    return dataclasses.replace(store, kept=None)


def _ever(store: Golden) -> list[list[Step]]:
    """Return all steps that were ever recorded."""
    return contents(dataclasses.replace(store, actions=tuple(one for one in store.actions if one.name != "clear"))).steps


def _rows(store: Golden, one: Episode, start: int) -> list[dict[str, Array]]:
    """Return the columns of an episode's steps."""
    steps = [Step(one.stream, start + t, 0, start, start - one.lead, one.ending, t == one.steps - 1) for t in range(one.steps)]
    return [_columns_of(store, step) for step in steps]


def _given(rows: list[dict[str, Array]]) -> dict[str, Any]:
    """Return rows as `add` and `extend` take them."""
    found: dict[str, Any] = {}
    for name in rows[0]:
        if name == "steps":
            continue
        *parents, last = name.split("/")
        inner = functools.reduce(lambda at, parent: at.setdefault(parent, {}), parents, found)
        inner[last] = np.stack([row[name] for row in rows])
    return found


def _extend_by(buffer: db.ReplayBuffer, store: Golden, one: Episode, start: int) -> None:
    buffer.extend(**_given(_rows(store, one, start)), env=one.stream)
    if one.ending == "cut off":
        buffer.cut_off([one.stream])


def _add_to(buffer: db.ReplayBuffer, store: Golden, episodes: tuple[Episode, ...], starts: list[int]) -> None:
    columns = [_rows(store, one, start) for one, start in zip(episodes, starts, strict=True)]
    for rows in zip(*columns, strict=True):
        buffer.add(**_given(list(rows)))
    buffer.cut_off([one.stream for one in episodes if one.ending == "cut off"])


def finish(store: Golden, path: Path) -> None:
    """Write a store at a path, and leave it as it is to be."""
    if store.end == "killed":
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                buffer = write(store, path)
                os.kill(os.getpid(), signal.SIGKILL)
                del buffer  # which is open until then
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    elif store.end == "live":
        with write(store, path.with_name("lives")) as buffer:
            buffer.flush(recompress=True)  # or files would come and go while they are copied
            shutil.copytree(path.with_name("lives"), path)
    else:
        write(store, path).close()
    for name, at in store.damage:
        file = path / name
        if at < 0:
            file.unlink()
        else:
            data = bytearray(file.read_bytes())
            data[at] ^= 0x10
            file.write_bytes(data)


def pack(path: Path, archive: Path) -> None:
    """Put a store into an archive; of this machine, and of who made it, nothing is told."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(path, "store", filter=anonymous)


def archive_of(name: str, directory: Path = HERE) -> Path:
    """Return the path of a store's archive."""
    return directory / f"{name.replace(' ', '-')}.tar.xz"


def unpack(name: str, to: Path) -> Path:
    """Unpack a golden store below an empty directory; return its path."""
    with tarfile.open(archive_of(name)) as packed:
        packed.extractall(to, filter="data")
    return to / "store"


def main(directory: Path) -> None:
    """Make all of them."""
    setattr(socket, "gethostname", lambda: HOST)  # noqa: B010  which a store notes for error messages
    directory.mkdir(parents=True, exist_ok=True)
    for name, store in STORES.items():
        with tempfile.TemporaryDirectory() as base, boot(BOOT):
            finish(store, Path(base) / "store")
            pack(Path(base) / "store", archive_of(name, directory))
        print(f"{name:<12} {archive_of(name, directory).stat().st_size:>8,} bytes", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make golden stores of the version at hand.")
    parser.add_argument("directory", type=Path)
    main(parser.parse_args().directory)
