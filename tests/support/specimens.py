"""Small stores of every kind, for damaging; and all that a store tells, for comparing."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.store import directory
from diskbuffer.store.last_writer import State
from diskbuffer.store.system.files import Files

Array = npt.NDArray[Any]


def flip(path: Path, at: int) -> None:
    """Flip a bit of a byte where it is: somebody may have the file mapped."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@dataclass(frozen=True)
class Kind:
    """What a specimen is."""

    n_envs: int = 1
    columns: dict[str, db.Column] = field(default_factory=dict)
    extra: dict[str, db.Column] = field(default_factory=dict)
    capacity: int | None = None
    segment_rows: int = 16
    decorated: bool = False  # with a derived column, and tags
    sealed: bool = True  # whether complete segments are sealed before the last ones are recorded
    killed: bool = False  # by SIGKILL, instead of closed


_PIXELS = {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")}
_FLAT = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float64")}
_NESTED = {
    "obs/camera": db.Column((20, 20), "float32"),
    "obs/joints": db.Column((3,), "float64"),
    "action": db.Column((), "int16"),
}
KINDS = {
    "pixels, closed": Kind(columns=_PIXELS, decorated=True),
    "pixels, killed": Kind(columns=_PIXELS, decorated=True, killed=True),
    "pixels, unsealed, killed": Kind(columns=_PIXELS, sealed=False, killed=True, segment_rows=64),
    "flat, closed": Kind(columns=_FLAT, extra={"log_prob": db.Column((), "float32")}),
    "flat, killed": Kind(columns=_FLAT, decorated=True, killed=True),
    "3 envs, closed": Kind(3, _PIXELS, capacity=90),
    "3 envs, killed": Kind(3, _PIXELS, capacity=90, killed=True, decorated=True),
    "nested, closed": Kind(2, _NESTED, capacity=60, decorated=True),
    "nested, killed": Kind(1, _NESTED, decorated=True, sealed=False, killed=True),
}


def make(path: Path, name: str, seed: int) -> None:
    """Write a specimen in a process of its own, which is killed behind the last step if the kind says so."""
    in_a_process(lambda: _write(path, KINDS[name], np.random.default_rng(seed)), killed=KINDS[name].killed)


def in_a_process(write: Callable[[], db.ReplayBuffer], *, killed: bool) -> None:
    """Write to a store in a process of its own, which then closes the buffer, or is killed."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            buffer = write()
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            buffer.close()
            os._exit(0)
        os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != (-signal.SIGKILL if killed else 0):
        raise RuntimeError("a store could not be written")


def _write(path: Path, kind: Kind, rng: np.random.Generator) -> db.ReplayBuffer:
    """Record some episodes of every stream, partly with `add`, partly with `extend`; the last one runs on."""
    buffer = db.ReplayBuffer(
        path,
        kind.capacity,
        columns=kind.columns,
        extra=kind.extra,
        n_envs=kind.n_envs,
        autoreset="disabled",
        segment_rows=kind.segment_rows,
        threads=1,
    )
    for env in range(kind.n_envs):
        buffer.extend(**_steps(kind, rng, 13), env=env)
    buffer.cut_off()
    _add(buffer, kind, rng, 30 if kind.capacity is None else 70, ends_at=11)
    if kind.sealed:
        buffer.flush(recompress=True)
    _add(buffer, kind, rng, 23, ends_at=9)
    if kind.decorated:
        over = buffer.episodes[buffer.episodes.ending != "running"]
        over[:2].set_tag("first")
        over[2:3].set_tag("second")
        steps = steps_of(buffer.episodes, kind.n_envs)
        buffer.columns.write("value", steps, rng.normal(size=len(steps)).astype(np.float32))
        _add(buffer, kind, rng, 5, ends_at=99)
    return buffer


def copy_while_open(path: Path, to: Path) -> None:
    """Copy a directory as a kill would leave it: while files come and go, or another thread writes to them, begin again."""
    for attempt in range(20):
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(path, to)
            if contents(path) == contents(to):
                adopt(to)
                return
        shutil.rmtree(to)
        time.sleep(min(0.001 * 2**attempt, 1))  # what is sealed is done at some time, as nobody adds meanwhile
    raise RuntimeError(f"files of {path} come and go for ever")


def adopt(root: Path) -> None:
    """Have copies of stores below a directory pass for those that were copied, so that they are what a kill left of these."""
    for file in root.rglob("_segments/length/state.json"):
        path = file.parents[2]
        with contextlib.suppress(db.DiskBufferError):
            files, (layout, _) = Files(path), directory.read_metadata(Files(path))
            if (state := State.read(files, layout)) is not None:
                state.note(files)


def replace(path: Path, data: bytes) -> None:
    """Put a new file in a file's place, which somebody may still have mapped."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def contents(path: Path) -> dict[str, bytes]:
    """Return what is in all files of a directory, by their paths below it."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def _steps(kind: Kind, rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Return an episode for `extend`."""
    found: dict[str, Any] = {}
    for path, column in {**kind.columns, **kind.extra, "reward": db.Column()}.items():
        *parents, name = path.split("/")
        inner = found
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = _values(column, rng, n + path.startswith("obs"))
    return {**found, "terminated": np.arange(n) == n - 1}


def _values(column: db.Column, rng: np.random.Generator, n: int) -> Array:
    """Return values without zeros, compressible where they are large."""
    shape = (n, *column.shape)
    if column.np_dtype.kind == "f":
        return np.asarray(rng.integers(1, 9, shape) + rng.random((n, *(1 for _ in column.shape))), column.np_dtype)
    return rng.integers(1, 9, shape).astype(column.np_dtype)


def _add(buffer: db.ReplayBuffer, kind: Kind, rng: np.random.Generator, times: int, ends_at: int) -> None:
    """Add steps of every stream; each is truncated every `ends_at` steps."""
    columns = {**kind.columns, **kind.extra}

    def values(path: str) -> Any:
        found = _values(columns[path], rng, kind.n_envs)
        return found if kind.n_envs > 1 else found[0]

    def observation() -> Any:
        nested = {path.removeprefix("obs/"): values(path) for path in columns if path.startswith("obs")}
        return nested.get("obs", nested)

    each: Any = kind.n_envs if kind.n_envs > 1 else ()
    obs = observation()
    for t in range(times):
        following = observation()
        end = t % ends_at == ends_at - 1
        more = {path: values(path) for path in kind.extra}
        buffer.add(obs, values("action"), np.full(each, t + 0.5), following, np.zeros(each, bool), np.full(each, end), **more)
        obs = observation() if end else following


def steps_of(episodes: db.Episodes, streams: int) -> Array:
    """Return the names of all steps of episodes."""
    pairs = zip(episodes.start.tolist(), episodes.length.tolist(), strict=True)
    found = [start + streams * np.arange(length) for start, length in pairs]
    return np.concatenate([np.empty(0, np.int64), *found])


# What a store tells


@dataclass
class Seen:
    """All that a store told, by what was asked, as digests; and the errors where it told nothing."""

    told: dict[str, str] = field(default_factory=dict)
    errors: list[tuple[str, str, str]] = field(default_factory=list)  # where, class, message

    def look(self, what: str, ask: Callable[[], Any]) -> Any:
        """Ask, and note what comes; other errors than diskbuffer's own go on to who calls."""
        try:
            found = ask()
        except db.DiskBufferError as error:
            self.errors.append((what, type(error).__name__, str(error)))
            return None
        now = digest(found)
        if self.told.setdefault(what, now) != now:
            self.told[what] += f", then {now}"
        return found


def digest(value: Any) -> str:
    """Return what tells two values apart, whatever they are made of."""
    if isinstance(value, dict):
        return hashlib.sha256(repr([(key, digest(inner)) for key, inner in value.items()]).encode()).hexdigest()[:16]
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    return repr(value)


def observe(path: Path, mode: Any, streams: int, steps: Array | None = None) -> Seen:
    """Open a store and ask for everything, episode by episode.

    `steps` are those that there must be; where they are missing, those that the store itself tells of.
    """
    seen = Seen()
    buffer = _open(seen, path, mode)
    if buffer is None:
        return seen
    try:
        _ask_all(seen, buffer, streams, steps)
        if mode == "a":
            with contextlib.suppress(db.DiskBufferError):
                buffer.flush(recompress=True)
            _ask_all(seen, buffer, streams, steps)
    finally:
        with _noted(seen, "close"):
            buffer.close()
    return seen


def _open(seen: Seen, path: Path, mode: Any) -> db.ReplayBuffer | None:
    try:
        return db.ReplayBuffer(path, mode=mode, seed=0, threads=1)
    except db.DiskBufferError as error:
        seen.errors.append(("open", type(error).__name__, str(error)))
        return None


@contextlib.contextmanager
def _noted(seen: Seen, what: str) -> Iterator[None]:
    try:
        yield
    except db.DiskBufferError as error:
        seen.errors.append((what, type(error).__name__, str(error)))


def _ask_all(seen: Seen, buffer: db.ReplayBuffer, streams: int, steps: Array | None) -> None:
    seen.look("len", lambda: len(buffer))
    for name in ("n_envs", "capacity", "frame_stack", "columns"):
        seen.look(name, functools.partial(getattr, buffer, name))
    seen.look("tag names", lambda: buffer.episodes.tag_names)
    seen.look("stats", lambda: {name: buffer.stats()[name] for name in ("steps", "added", "episodes", "capacity", "n_envs")})
    episodes = seen.look("episodes", lambda: _table(buffer.episodes))
    seen.look("returns", lambda: buffer.episodes.returns)
    seen.look("sample", lambda: buffer.sample(32, db.Uniform(seed=1)))
    seen.look("sequences", lambda: buffer.sample(8, db.Slices(4, seed=1)))
    if steps is None:
        steps = steps_of(buffer.episodes, streams) if episodes is not None else np.empty(0, np.int64)
    if seen.look("steps", lambda: buffer.at(steps)) is None:  # which of them, then
        _ask_in_pieces(seen, buffer, steps)


def _table(episodes: db.Episodes) -> dict[str, Array]:
    return {name: np.asarray(getattr(episodes, name)) for name in ("stream", "start", "length", "ending", "tag")}


def expected(path: Path, streams: int) -> tuple[Seen, Array]:
    """Return what an undamaged store tells, all at once and in small pieces, and its steps."""
    with db.ReplayBuffer(path, mode="r") as buffer:
        steps = steps_of(buffer.episodes, streams)
    seen = observe(path, "r", streams, steps)
    for mode in ("r", "a"):  # which must tell the same, opened either way, and again
        again = observe(path, mode, streams, steps)
        if seen.errors or again.errors or seen.told != again.told:
            raise RuntimeError(f"{path} is damaged before anything was done to it: {seen.errors} {again.errors}")
    with db.ReplayBuffer(path, mode="r") as buffer:
        _ask_in_pieces(seen, buffer, steps)
    return seen, steps


def _ask_in_pieces(seen: Seen, buffer: db.ReplayBuffer, steps: Array) -> None:
    for n in range(0, len(steps), 4):
        seen.look(f"steps {n} and following", functools.partial(buffer.at, steps[n : n + 4]))
