"""The shards' actors: starting them, having them open their stores, and ending them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from diskbuffer import SampleToInsertRatio
from diskbuffer.adapters.ray import placing
from diskbuffer.adapters.ray.limiting.counter import Counter
from diskbuffer.adapters.ray.limiting.ledger import Settings
from diskbuffer.adapters.ray.shard import Disk, Shard
from diskbuffer.adapters.ray.shards import Known, own_error, receive
from diskbuffer.errors import UnreachableError

_STARTING = 120.0  # seconds for shards to start, and to recover their stores


def _name(path: Path, what: int | str) -> str:
    return f"diskbuffer:{path}:{what}"


def start(
    path: Path, places: Sequence[placing.Place], options: dict[str, Any], lifetime: str | None, num_cpus: float
) -> list[Any]:
    """Start a shard in each place, or find those that are there."""
    return [
        placing.actor(Shard, place, _name(path, n), lifetime, num_cpus).remote(str(path), n, options)
        for n, place in enumerate(places)
    ]


def disks(handles: Sequence[Any], *, wait: bool, patience: float) -> list[Disk | None]:
    """Ask shards where their disks are; None of those that do not tell.

    Raises
    ------
    UnreachableError
        One did not start, where that is waited for.
    """
    refs = [handle.disk.remote() for handle in handles]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=_STARTING if wait else patience)
    if late and wait:
        raise UnreachableError(
            f"{len(late)} of {len(refs)} shards did not start within {_STARTING:g} s; has the cluster the resources for them? "
            "`ray status` tells"
        )
    done = set(ready)
    return [_answer(ref) if ref in done else None for ref in refs]


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayActorError:
        return None


def open_stores(shards: Sequence[Known], on: Mapping[int, Disk | None], capacity: int | None) -> None:
    """Ask shards to open their stores, each disk with its part of the capacity."""
    until = time.monotonic() + _STARTING
    on_disk = [sum(other == on[known.number] for other in on.values()) for known in shards]
    parts = [None if capacity is None else -(-capacity * n // len(shards)) for n in on_disk]
    for known, part in zip(shards, parts, strict=True):  # one after the other: the first of a disk makes the directory
        if receive(known, known.handle.open.remote(part), until) is None:
            raise UnreachableError(f"shard {known.number} did not open its store: {known.why}")


def start_counter(path: Path, shards: int, settings: SampleToInsertRatio, lifetime: str | None, patience: float) -> Any:
    """Start what counts for a limiter, or find it, and have it hold this ratio.

    It runs on the machine of whoever makes it, as the learner most often does, or elsewhere when that is gone: it has no disk.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    how = {"max_concurrency": 100_000, "scheduling_strategy": here}
    counter = placing.actor(Counter, {}, _name(path, "limiter"), lifetime, 0, **how).remote(
        [_name(path, n) for n in range(shards)], Settings.of(settings), patience
    )
    try:
        ray.get(counter.begin.remote(Settings.of(settings)), timeout=_STARTING)
    except ray.exceptions.RayTaskError as error:
        raise own_error(error) from None
    except ray.exceptions.RayError as error:
        raise UnreachableError(f"the limiter's counter did not start: {error}") from None
    return counter


def each(shards: Sequence[Known], call: Callable[[Known], Any], patience: float) -> None:
    """Call all shards that answer, at the same time, and wait for all."""
    refs = [call(known) for known in shards if known.away_since is None]
    try:
        ray.get(refs, timeout=max(patience, 30.0))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise UnreachableError(f"a shard did not answer: {str(error).splitlines()[0]}") from None


def end(shards: Sequence[Known], counter: Any) -> None:
    """Ask shards to close their stores, and end all actors."""
    if counter is not None:
        ray.wait([counter.save.remote()], timeout=10.0)
        ray.kill(counter)
    refs = [known.handle.close.remote() for known in shards if known.away_since is None]
    ray.wait(refs, num_returns=len(refs), timeout=30.0)
    for known in shards:
        ray.kill(known.handle)


def figures(known: Known, near: bool) -> dict[str, Any]:
    """Return what `stats` tells of a shard."""
    state, away = known.state, known.away_since
    return {
        "number": known.number,
        "answers": known.answers,
        "why": known.why,
        "away": 0.0 if away is None else time.monotonic() - away,
        "skipped": known.skipped,
        "rejoined": known.rejoined,
        "near": near,
        "steps": 0 if state is None else state.steps,
        "added": 0 if state is None else state.added,
    }
