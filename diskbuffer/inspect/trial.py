"""A short training without a learner: steps through a temporary store, in a process of its own, measured.

The process is ``python -m diskbuffer.inspect.trial``: its memory is then that of a training, with nobody else's threads or
compiled code in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import DiskBufferError, InputError
from diskbuffer.inspect.environments import Environment, EnvironmentOptions, Noise, Source
from diskbuffer.inspect.memory import anonymous_bytes
from diskbuffer.plugin import FLAGGED, integer, integer_or_none
from diskbuffer.store.format.layout import IDENTITY_BYTES

_SEGMENT_ROWS = 256  # small ones, so that a minute completes some, whose compression is then the one that stays
_MOST_BYTES = 8 * 1024**3  # of observations that a trial stores, uncompressed, ...
_MOST_OF_FREE = 4  # ... and at most a quarter of what the disk has left
_FIRST, _PLAYING = 0.1, 0.7  # of the time: before the store is made, and steps; the rest is sampling
_FIRST_STEPS = 200
_RESULT, _ERRORS, _STORE = "result.json", "errors.txt", "store"
_POLL = 0.1  # seconds
_MOST_ENVS = 64  # environments that are tried: each has files of its own, whose making would take the whole trial


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a trial is to do.

    Attributes
    ----------
    environment : EnvironmentOptions or None
        What to play; None for noise of `shape` and `dtype`.
    capacity, n_envs, frame_stack
        As the training will have them. None for `frame_stack` takes it from the environment, where that stacks.
    seconds : float
        How long to step and sample.
    batch_size : int
    """

    environment: EnvironmentOptions | None = None
    shape: tuple[int, ...] = ()
    dtype: str = "uint8"
    capacity: int | None = None
    n_envs: int = 1
    frame_stack: int | None = None
    seconds: float = 60.0
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("n_envs", 1), ("batch_size", 1), ("seed", 0)):
            object.__setattr__(self, name, integer(name, getattr(self, name), least))
        for name in ("capacity", "frame_stack"):
            object.__setattr__(self, name, integer_or_none(name, getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Packed:
    """How a packed column compressed: bytes on disk of each byte, as written, and sealed; of segments, the best and the worst."""

    live: float
    sealed: float
    best: float
    worst: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a trial found.

    Attributes
    ----------
    layout : dict
        Of the training's store, as the group's attributes have it.
    envs : int
        How many environments were tried.
    steps, rows, episodes, segments : int
        What it stored; of episodes, those that ended.
    stepping, adding : float
        Seconds of a step: of the environment, and of `ReplayBuffer.add`.
    packed : dict of str to Packed
    ram : int or None
        Bytes that the process's own memory grew by, with the store open and batches sampled.
    sampling : float
        Seconds of one batch, its median.
    limited : bool
        Whether it stopped for the room on the disk.
    """

    layout: dict[str, Any]
    envs: int
    steps: int
    rows: int
    episodes: int
    segments: int
    stepping: float
    adding: float
    packed: dict[str, Packed]
    ram: int | None
    sampling: float
    batch_size: int
    limited: bool

    @classmethod
    def read(cls, text: str) -> Trial:
        """Read what a trial wrote."""
        found = json.loads(text)
        return cls(**{**found, "packed": {path: Packed(**packed) for path, packed in found["packed"].items()}})


def run_trial(asked: Asked, directory: Path, tick: Callable[[float], object] | None = None) -> Trial:
    """Run a trial in a temporary directory inside of `directory`, which is gone afterwards, also after a Ctrl-C.

    ``tick(seconds)`` is called now and then, with the time that passed since the last call.

    Raises
    ------
    InputError
        The environment cannot be made, or fails.
    OSError
        The directory cannot be written to.
    """
    with tempfile.TemporaryDirectory(prefix=".diskbuffer-plan-", dir=directory, ignore_cleanup_errors=True) as temporary:
        place = Path(temporary)
        wanted = json.dumps(dataclasses.asdict(asked))
        with (place / _ERRORS).open("wb") as errors:
            command = [sys.executable, "-m", __name__, str(place), wanted, str(os.getpid())]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
            try:
                _wait(process, tick)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if not (place / _RESULT).exists():
            said = (place / _ERRORS).read_text(errors="replace").strip().splitlines()
            raise InputError(f"the trial failed: {said[-1] if said else f'exit code {process.returncode}'}")
        return Trial.read((place / _RESULT).read_text())


def _wait(process: subprocess.Popen[bytes], tick: Callable[[float], object] | None) -> None:
    last = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL)
        now = time.monotonic()
        if tick is not None:
            tick(now - last)
        last = now


# In the process of its own


def trial(asked: Asked, place: Path, parent: int) -> Trial:
    """Do what is asked."""
    from diskbuffer import ReplayBuffer
    from diskbuffer.options import Options

    source = _source(asked)
    until = time.perf_counter() + asked.seconds * _FIRST
    for _ in range(_FIRST_STEPS):
        source.step()
        if time.perf_counter() > until:
            break
    given = {**source.options, "frame_stack": asked.frame_stack}
    wanted = Options(**given, capacity=asked.capacity).checked()
    envs = wanted.n_envs or 1
    layout = (wanted if asked.n_envs <= _MOST_ENVS else dataclasses.replace(wanted, n_envs=asked.n_envs)).layout()
    before, store = anonymous_bytes(), place / _STORE
    rows = min(layout.segment_rows, _SEGMENT_ROWS)
    with ReplayBuffer(store, **given, segment_rows=rows, seed=asked.seed) as buffer:
        _play(source, buffer, place, 0.02 * asked.seconds, parent)  # the first calls take longer
        buffer.sample(asked.batch_size)
        source.stepping, already = 0.0, len(buffer)
        adding, limited = _play(source, buffer, place, _PLAYING * asked.seconds, parent)
        played = max(1, len(buffer) - already)
        live = ratios(store, sealed=False)
        buffer.flush(recompress=True)
        sealed = ratios(store, sealed=True)
        sampling = _sample(buffer, asked.batch_size, (1 - _FIRST - _PLAYING) * asked.seconds)
        after, figures = anonymous_bytes(), buffer.stats()
        row_bytes = sum(column.row_bytes for column in buffer.columns.values())
        endings = buffer.episodes.ending
    source.close()
    return Trial(
        layout=layout.attributes(layout.first_slots()),
        envs=envs,
        steps=figures["steps"],
        rows=figures["raw_bytes"] // row_bytes,
        episodes=int(np.isin(endings, FLAGGED).sum()),
        segments=figures["segments"],
        stepping=source.stepping / played,
        adding=adding / played,
        packed={path: _packed(live.get(path, []), sealed.get(path, [])) for path in layout.packed},
        ram=None if before is None or after is None else max(0, after - before),
        sampling=sampling,
        batch_size=asked.batch_size,
        limited=limited,
    )


def _source(asked: Asked) -> Source:
    envs = min(asked.n_envs, _MOST_ENVS)
    if asked.environment is not None:
        return Environment(dataclasses.replace(asked.environment, n_envs=envs), asked.seed)
    return Noise(asked.shape, asked.dtype, envs, asked.seed)


def _play(source: Source, buffer: Any, place: Path, seconds: float, parent: int) -> tuple[float, bool]:
    """Add steps for some time, as many as there is room for; return the seconds that adding took, and whether room ended it."""
    row_bytes = sum(column.row_bytes for column in buffer.columns.values())
    room = min(_MOST_BYTES, shutil.disk_usage(place).free // _MOST_OF_FREE)
    most, adding, n = max(1, room // row_bytes), 0.0, 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(buffer) == 0:
        step = source.step()
        begun = time.perf_counter()
        buffer.add(**step)
        adding += time.perf_counter() - begun
        n += 1
        if n % 64 == 0:
            if len(buffer) > most:
                return adding, True
            if os.getppid() != parent:  # which was killed, and cannot clean up
                shutil.rmtree(place, ignore_errors=True)
                os._exit(1)  # the store is gone: there is nothing to close
    return adding, False


def ratios(store: Path, *, sealed: bool) -> dict[str, list[float]]:
    """Return how many bytes of disk each byte takes in every segment of the packed columns, sealed ones or those that are not."""
    from diskbuffer.store.directory import read_metadata

    layout, _ = read_metadata(store)
    found: dict[str, list[float]] = {path: [] for path in layout.packed}
    for path in layout.packed:
        index, chunk = layout.index_bytes(path), layout.chunk_bytes(path)
        for file in (store / path).glob("c.*"):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                if (size < layout.live_bytes(path)) is not sealed:
                    continue
                opened.seek(size - index)
                entries = np.frombuffer(opened.read(index), np.int64).reshape(-1, 2)
                there = entries[entries[:, 0] != -1, 1]
                if sealed:
                    found[path].append((size - index - IDENTITY_BYTES) / (len(entries) * chunk))
                elif len(there):
                    found[path].append(float(there.mean()) / chunk)
    return found


def _packed(live: list[float], sealed: list[float]) -> Packed:
    """Sum up the segments of a column; where too few steps completed none, what is written counts as what stays."""
    stays = sealed or live or [1.0]
    return Packed(live=float(np.mean(live or stays)), sealed=float(np.mean(stays)), best=min(stays), worst=max(stays))


def _sample(buffer: Any, batch_size: int, seconds: float) -> float:
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(taken) < 5:
        begun = time.perf_counter()
        buffer.sample(batch_size)
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def main(place: Path, wanted: str, parent: int) -> None:
    """Run one trial, and write what it found."""
    given = json.loads(wanted)
    environment = given.pop("environment")
    asked = Asked(
        **{**given, "shape": tuple(given["shape"]), "environment": EnvironmentOptions(**environment) if environment else None}
    )
    try:
        found = trial(asked, place, parent)
    except DiskBufferError as error:
        sys.exit(str(error))
    (place / f"{_RESULT}.tmp").write_text(json.dumps(dataclasses.asdict(found)))
    (place / f"{_RESULT}.tmp").rename(place / _RESULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
