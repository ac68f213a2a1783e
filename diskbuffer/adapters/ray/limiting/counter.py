"""The actor that counts for a limiter. Ray starts it again when it dies, anywhere in the cluster.

What it knows is in its memory alone. Every second it gives a copy to each shard, which keeps it beside its store, and asks how
many steps the shard has; a new actor merges the copies. Whatever is newer than these, actors and learners that live tell again,
as they always tell whole counts and never differences.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from diskbuffer.adapters.ray.limiting.ledger import Ledger, Settings
from diskbuffer.errors import InputError

_SILENT = 15.0  # seconds after which a process that was not heard of counts as dead
_ACTIVE = 3.0  # seconds after which one that neither adds nor samples gets no share of what is free
_EXCHANGE = 1.0  # seconds between two exchanges with shards ...
_EXCHANGE_WAITING = 0.2  # ... and where somebody waits: steps of an actor that died may be there, and nobody tells of them


class Word(NamedTuple):
    """What a process tells of itself, and what it waits for: "add", "sample", or both, in any number of threads."""

    client: str
    added: Mapping[int, int]  # what shards told it that they have, ever
    samples: int | None  # that it took, ever; None if it never wanted any
    adds: bool
    waits: tuple[str, ...]


class Answer(NamedTuple):
    """How much may be added and sampled beyond what a word told, and whether others are alive who add, or sample."""

    may_give: int
    may_take: int
    actors: bool
    learners: bool


@dataclass
class _Process:
    """What is known of a process: when it was heard of, what it does, since when it waits."""

    heard: float = 0.0
    adds: bool = False
    samples: bool = False
    added_at: float = 0.0
    sampled_at: float = 0.0
    taken: int = 0
    waiting: dict[str, float] = field(default_factory=dict)


@ray.remote
class Counter:
    """Count for all, and tell who may go on.

    Parameters
    ----------
    shards : list of str
        Names of the actors. (Handles among its arguments would be objects of whoever made it, and Ray cannot start an actor again
        whose arguments are gone.)
    settings : Settings
        Counts from now on, if the shards' copies have something else, and this is no restart.
    patience : float
        Seconds to wait for a shard.
    """

    def __init__(self, shards: list[str], settings: Settings, patience: float) -> None:
        self._shards, self._patience = shards, patience
        self._settings, self._restarted = settings, ray.get_runtime_context().was_current_actor_reconstructed
        self._ledger = Ledger(settings, changes=-1)  # whatever a shard has kept comes before that
        self._processes: dict[str, _Process] = {}
        self._added_at = self._sampled_at = 0.0  # when numbers grew last
        self._changed = asyncio.Event()
        self._exchanging: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def begin(self, settings: Settings) -> None:
        """Start, or take part; an InputError where others who are alive ask for something else."""
        await self._started()
        if settings == self._ledger.settings:
            return
        now = time.monotonic()
        if any(now - process.heard < _SILENT for process in self._processes.values()):
            raise InputError(
                f"limiter: others use these shards with a ratio of {self._ledger.settings.ratio:g}, "
                f"min_size={self._ledger.settings.min_size} and error_buffer={self._ledger.settings.bound:g}, and "
                f"{settings.ratio:g}, {settings.min_size} and {settings.bound:g} were asked for; give the same, or close the "
                "others first"
            )
        self._ledger.count_anew(settings)
        await self.save()

    async def ask(self, word: Word, seconds: float) -> Answer:
        """Take a word, and answer: at once, or when what it waits for may be done, after so many seconds at the latest."""
        await self._started()
        process = self._note(word)
        until = time.monotonic() + seconds
        while word.waits:
            answer = self._answer(word.client, process)
            left = until - time.monotonic()
            if left <= 0 or ("add" in word.waits and answer.may_give) or ("sample" in word.waits and answer.may_take):
                break
            await self._change(left)
        return self._answer(word.client, process)

    async def save(self) -> None:
        """Ask shards to keep a copy now."""
        await self._started()
        await self._exchange_with(list(range(len(self._shards))), {}, first=False)

    async def leave(self, client: str) -> None:
        """Forget a process; what it did stays counted."""
        self._processes.pop(client, None)

    async def state(self, client: str) -> dict[str, Any]:
        """Return where things stand; see `RayReplayBuffer.stats`."""
        await self._started()
        now, ledger = time.monotonic(), self._ledger
        added, inserts, samples = ledger.counts
        inserts = max(0, inserts)
        waiting = {
            what: {name: now - process.waiting[what] for name, process in self._alive(now).items() if what in process.waiting}
            for what in ("add", "sample")
        }
        others = [process for name, process in self._alive(now).items() if name != client]
        return {
            "asked": ledger.settings.ratio,
            "min_size": ledger.settings.min_size,
            "error_buffer": ledger.settings.bound,
            "added": added,
            "inserts": inserts,
            "samples": samples,
            "surplus": ledger.surplus,
            "ratio": samples / inserts if inserts else None,
            "may_add": ledger.may_give(1) > 0,
            "may_sample": ledger.may_take(1) > 0,
            "waiting_to_add": waiting["add"],
            "waiting_to_sample": waiting["sample"],
            "since_added": now - self._added_at if self._added_at else None,
            "since_sampled": now - self._sampled_at if self._sampled_at else None,
            "actors_alive": any(process.adds for process in others),
            "learners_alive": any(process.samples for process in others),
            "restarted": self._restarted,
        }

    # Numbers

    def _note(self, word: Word) -> _Process:
        now, process = time.monotonic(), self._processes.setdefault(word.client, _Process())
        process.heard, process.adds = now, process.adds or word.adds
        process.waiting = {what: process.waiting.get(what, now) for what in word.waits}
        before = self._ledger.counts
        for shard, ever in word.added.items():
            self._ledger.note_added(shard, ever)
        if word.samples is not None:
            process.samples = True
            if word.samples > process.taken or "sample" in word.waits:
                process.taken, process.sampled_at = word.samples, now
            self._ledger.note_sampled(word.client, word.samples)
        if word.added or "add" in word.waits:
            process.added_at = now
        self._see(before)
        return process

    def _see(self, before: tuple[int, int, int]) -> None:
        """Wake those who wait, if numbers have grown."""
        now, after = time.monotonic(), self._ledger.counts
        self._added_at = now if after[0] > before[0] else self._added_at
        self._sampled_at = now if after[2] > before[2] else self._sampled_at
        if after != before:
            self._changed.set()
            self._changed = asyncio.Event()

    async def _change(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    def _alive(self, now: float) -> dict[str, _Process]:
        return {name: process for name, process in self._processes.items() if now - process.heard < _SILENT}

    def _answer(self, client: str, process: _Process) -> Answer:
        now = time.monotonic()
        alive = self._alive(now)
        actors = sum(other is process or now - other.added_at < _ACTIVE for other in alive.values() if other.adds)
        learners = sum(other is process or now - other.sampled_at < _ACTIVE for other in alive.values() if other.samples)
        others = [other for name, other in alive.items() if name != client]
        return Answer(
            self._ledger.may_give(actors),
            self._ledger.may_take(learners),
            any(other.adds for other in others),
            any(other.samples for other in others),
        )

    # Shards

    async def _started(self) -> None:
        if self._exchanging is None:
            self._exchanging = asyncio.get_running_loop().create_task(self._exchange())
        await self._ready.wait()

    async def _exchange(self) -> None:
        """Exchange with shards, again and again; the first time, see what they have kept."""
        away = dict.fromkeys(range(len(self._shards)), 0.0)
        await self._exchange_with(list(away), away, first=True)
        if self._ledger.settings != self._settings and not self._restarted:
            self._ledger.count_anew(self._settings)
        self._ledger.changes = max(self._ledger.changes, 0)
        await self._exchange_with(list(away), away, first=False)  # from where it counts must be known after a crash
        self._ready.set()
        while True:
            waits = any(process.waiting for process in self._alive(time.monotonic()).values())
            await asyncio.sleep(_EXCHANGE_WAITING if waits else _EXCHANGE)
            now = time.monotonic()
            await self._exchange_with([number for number, until in away.items() if until <= now], away, first=False)

    async def _exchange_with(self, numbers: list[int], away: dict[int, float], *, first: bool) -> None:
        """Give shards a copy, and take theirs; one that does not answer is left alone for a while."""
        copy = b"" if first else self._ledger.to_bytes()

        async def one(number: int) -> None:
            try:
                ref = ray.get_actor(self._shards[number]).exchange.remote(copy)
                added, kept = await asyncio.wait_for(asyncio.wrap_future(ref.future()), self._patience)
            except (RayError, TimeoutError, ValueError):  # ValueError: it is no more
                away[number] = time.monotonic() + self._patience
                return
            before = self._ledger.counts
            if kept:
                self._ledger.merge(Ledger.from_bytes(kept))
            self._ledger.note_added(number, added)
            self._see(before)

        await asyncio.gather(*map(one, numbers))
