"""What a store will take of the disk: a forecast from an environment that is tried, or from the steps of a store."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer import ReplayBuffer
from diskbuffer.errors import InputError
from diskbuffer.inspect.environments import play
from diskbuffer.plugin import Reader, StoreInfo, StoreUsage, integer, integer_or_none, is_observation, local_path

_BLOCK = 4096  # bytes: what a file system gives a file at once
_ENTRY_BYTES = 16  # of each chunk, in the index of a segment's file
_LOOSELY = 1.5  # bytes of a chunk at first, to those that stay, where it was not measured: 1.4 to 2.4 of Atari games
_LITTLE = 0.9  # of the room there is: a store that takes more of it does not fit
_SEGMENT_ROWS = 128  # of a trial: few, for segments to be complete within it
_MOST_BYTES = 8 * 1024**3  # that a trial adds, uncompressed; and at most a quarter of what the disk has left


@dataclass(frozen=True)
class Packing:
    """Bytes on the disk of each byte of a compressed column: once its segment is recompressed, and before."""

    sealed: float
    live: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A forecast, and what it rests on.

    Attributes
    ----------
    steps, kept, tried : int
        Of the whole training; those that the capacity keeps; those that the forecast rests on.
    n_envs, frame_stack : int
    disk, room : int
        Bytes at the end, complete segments recompressed, on average where the capacity was reached; and those it can have.
    columns : dict of str to int
        The bytes of each column. The rest is the segment table, the newest rows, and descriptions.
    packing : dict of str to Packing
        How each column that is compressed did.
    sb3, sb3_sparing : int, int or None
        Bytes of RAM of Stable-Baselines3's buffer for as many steps, and with ``optimize_memory_usage``, where it has that.
    """

    steps: int
    kept: int
    n_envs: int
    frame_stack: int
    tried: int
    disk: int
    columns: dict[str, int]
    packing: dict[str, Packing]
    room: int
    sb3: int
    sb3_sparing: int | None

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it, and a tenth to spare."""
        return self.disk <= _LITTLE * self.room

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as JSON has it."""
        return dataclasses.asdict(self) | {"fits": self.fits}


def plan_environment(
    env: Any,
    place: str | os.PathLike[str] = ".",
    *,
    capacity: int = 1_000_000,
    steps: int | None = None,
    frame_stack: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    tick: Callable[[int], object] | None = None,
) -> Plan:
    """Forecast what a store of an environment's steps will take; an InputError where too few could be played to see that.

    Plays the environment at random, through temporary stores on the disk that the store will be on. They are removed, also where
    the trial ends with an exception.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
    place : path-like
        Where the store will be; the nearest directory above that is there tells the disk.
    capacity, frame_stack
        As of `ReplayBuffer`.
    steps : int, optional
        Of the whole training, of all environments together; as many as the capacity, by default.
    seconds, seed
        How long to play; and what. ``tick(n)`` is called after every `n` steps.
    """
    capacity, steps = integer("capacity", capacity), integer_or_none("steps", steps)
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InputError(f"seconds must be above 0, found {seconds!r}", option="seconds")
    place = local_path(place)
    place = place.parent if (place / "zarr.json").exists() else place  # beside a store, not in it
    directory = next(path for path in (place, *place.parents) if path.is_dir())
    if not os.access(directory, os.W_OK):
        raise InputError(f"{directory} cannot be written to; give a directory on the disk that the store will be on")
    options = {"env": env, "frame_stack": frame_stack}
    return plan_steps(play(env, seed), directory, options, capacity=capacity, steps=steps, seconds=seconds, tick=tick)


def plan_steps(
    played: Iterable[Mapping[str, Any]],
    directory: Path,
    options: Mapping[str, Any],
    *,
    capacity: int = 1_000_000,
    steps: int | None = None,
    seconds: float = math.inf,
    tick: Callable[[int], object] | None = None,
) -> Plan:
    """Forecast as `plan_environment` does, from steps as `ReplayBuffer.add` takes them; `options` are of a buffer of them."""
    with tempfile.TemporaryDirectory(prefix=".diskbuffer-plan-", dir=directory, ignore_cleanup_errors=True) as temporary:
        real, trial = Path(temporary) / "real", Path(temporary) / "trial"
        room, n = shutil.disk_usage(directory).free, 0
        # One store as it will be, of which the first rows tell; one of small segments, which are complete and recompressed soon
        with (
            ReplayBuffer(real, capacity, **options) as first,
            ReplayBuffer(trial, segment_rows=_SEGMENT_ROWS, **options) as buffer,
        ):
            info = Reader(real).info
            row_bytes = info.n_envs * sum(column.row_bytes for column in info.columns.values())
            until = time.perf_counter() + seconds
            for step in played:
                buffer.add(**step)
                n += 1
                if n <= info.segment_rows * 3 // 8:
                    first.add(**step)
                if tick is not None:
                    tick(info.n_envs)
                if time.perf_counter() > until or n * row_bytes > min(_MOST_BYTES, room / 4):
                    break
            first.flush(recompress=True)
            buffer.flush(recompress=True)
            loose, usage, compression = Reader(real).usage(), Reader(trial).usage(), buffer.stats()["compression"]
            tried = len(buffer)
    packing = {}
    for path in info.chunk_rows:
        ratio = compression.get(path, {}).get("ratio")
        if ratio is None:
            raise InputError(f"seconds={seconds:g} are too few to see how steps compress; give more", option="seconds")
        live = _data_bytes(info, loose, path) / (loose.rows * info.columns[path].row_bytes)
        packing[path] = Packing(ratio, min(1.0, max(ratio, live)))
    forecast = _forecast(info, loose, packing, usage.rows / tried, steps or capacity, room)
    return dataclasses.replace(forecast, tried=tried)


def plan_store(path: str | os.PathLike[str], *, capacity: int | None = None, steps: int | None = None) -> Plan:
    """Forecast what a store will take once it has had more steps, or with another capacity, from what its steps take now.

    By default it keeps its capacity, and has had as many steps, or as it has now where it has no capacity. Raises what
    `diskbuffer.plugin.Reader` and its `usage` do, and an InputError where there are no steps.
    """
    path, capacity, steps = local_path(path), integer_or_none("capacity", capacity), integer_or_none("steps", steps)
    reader = Reader(path)
    stored, usage, recorded = reader.info, reader.usage(), int(reader.counts()[0].sum())
    if recorded == 0:
        raise InputError(f"{path} has no steps yet, whose size would tell")
    oldest, newest = reader.rows()
    rows_a_step = int((newest + 1 - oldest).sum()) / recorded
    capacity = capacity or stored.capacity
    steps = steps or capacity or recorded
    with tempfile.TemporaryDirectory() as temporary:  # an empty one has what does not grow
        sizes = {"capacity": capacity or steps, "segment_rows": stored.segment_rows}  # which stays, whatever the capacity
        ReplayBuffer(Path(temporary) / "store", **stored.options() | sizes).close()
        empty = Reader(Path(temporary) / "store")
        info, fixed = empty.info, empty.usage()
    packing, sealed = {}, usage.sealed * stored.segment_rows
    for name in stored.chunk_rows:
        rows, live = _data_bytes(stored, usage, name) / stored.columns[name].row_bytes, max(0, usage.rows - sealed)
        ratio = rows / (sealed + _LOOSELY * live)
        if _LOOSELY * ratio > 1:  # they are written as they are
            ratio = max(0.0, rows - live) / sealed if sealed else min(1.0, rows / live)
        packing[name] = Packing(ratio, min(1.0, _LOOSELY * ratio))
    room = shutil.disk_usage(path).free + usage.disk_bytes - usage.marks
    forecast = _forecast(info, fixed, packing, rows_a_step, steps, room)
    files = info.n_envs * math.ceil(forecast.kept * rows_a_step / info.n_envs / info.segment_rows)
    later = {name: files * info.segment_rows * stored.columns[name].row_bytes for name in stored.derived}  # for all steps
    disk = forecast.disk + sum(later.values())
    return dataclasses.replace(forecast, tried=recorded, disk=disk, columns=forecast.columns | later)


def _forecast(
    info: StoreInfo, fixed: StoreUsage, packing: Mapping[str, Packing], rows_a_step: float, steps: int, room: int
) -> Plan:
    """Forecast what is there after so many steps: an old segment goes once all of it is older than the capacity."""
    size, kept = info.segment_rows, min(steps, info.capacity or steps)
    of_each = rows_a_step / info.n_envs
    complete, unfinished = divmod(steps * of_each, size)
    complete -= (steps - kept) * of_each // size
    open_files = (unfinished > 0) + (unfinished >= size / 2)  # the next one is made ahead
    columns = {}
    for path, column in info.columns.items():
        if path in packing:
            sealed, live = (column.row_bytes * ratio for ratio in (packing[path].sealed, packing[path].live))
            taken = complete * (size * sealed + _extra(info, path)) + unfinished * live + open_files * _extra(info, path)
        else:
            taken = (complete + open_files) * math.ceil(size * column.row_bytes / _BLOCK) * _BLOCK
        columns[path] = round(info.n_envs * taken)
    return Plan(
        steps=steps,
        kept=kept,
        n_envs=info.n_envs,
        frame_stack=info.frame_stack,
        tried=0,
        disk=sum(columns.values()) + fixed.tail + fixed.table + fixed.rest,
        columns=columns,
        packing=dict(packing),
        room=room,
        sb3=_sb3_bytes(info, kept, 2),
        sb3_sparing=_sb3_bytes(info, kept, 1) if "obs" in info.columns else None,  # its buffer of dicts has no such option
    )


def _extra(info: StoreInfo, path: str) -> float:
    """Return the bytes of a segment's file beside its chunks: the index, and a half-filled block, on average."""
    return info.segment_rows / info.chunk_rows[path] * _ENTRY_BYTES + _BLOCK / 2


def _data_bytes(info: StoreInfo, usage: StoreUsage, path: str) -> float:
    """Return the bytes on the disk of a compressed column's chunks."""
    return max(0.0, usage.columns[path] - usage.segments * _extra(info, path))


def _sb3_bytes(info: StoreInfo, steps: int, observations: int) -> int:
    """Return what Stable-Baselines3's buffer allocates, which keeps one or two observations a step."""
    step = 3 * 4  # reward, done, timeout: float32; so are actions of float64
    for path, column in info.columns.items():
        if is_observation(path):
            step += observations * info.frame_stack * column.row_bytes
        elif path.split("/")[0] == "action":
            step += column.row_bytes // (2 if column.np_dtype == np.float64 else 1)
    return max(steps // info.n_envs, 1) * info.n_envs * step
