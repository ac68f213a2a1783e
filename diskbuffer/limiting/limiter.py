"""Waiting, as an actor or a learner, where the other side is behind.

Processes have no signals for each other: whoever waits looks again and again, ever less often. No lock is held meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from diskbuffer.arguments.wording import counted
from diskbuffer.errors import ClosedError, LimiterTimeoutError
from diskbuffer.limiting import fields
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.limiting.table import Table
from diskbuffer.native import limiter as rule
from diskbuffer.store.system.files import Files

_SHORTEST, _LONGEST = 50e-6, 0.01  # seconds between looks
_STALE = 1.0  # seconds after which one who had to wait sees what has come


class _Side(NamedTuple):
    """What one of the two sides does, and who ends its waits."""

    verb: str
    may: Callable[[int], bool]
    by: str


_ADD = _Side("add to", rule.may_add, "learner")
_SAMPLE = _Side("sample from", rule.may_sample, "actor")


class Limiter:
    """Hold a ratio of samples to inserts, for one buffer. Made by `ReplayBuffer`, as its attribute `limiter`.

    Parameters
    ----------
    files : Files
        The directory of the shared numbers.
    settings : SampleToInsertRatio
    writer : int or None
        The number of the writer that this is; None for a learner.
    added : int
        How many steps that writer's store has ever had.
    where : str
        What messages call the buffer.

    Attributes
    ----------
    settings : SampleToInsertRatio
        What this buffer was opened with.
    """

    def __init__(self, files: Files, settings: SampleToInsertRatio, writer: int | None, added: int, where: str) -> None:
        self.settings, self._writer, self._where = settings, writer, where
        self._table = Table(files, settings, writer, added)
        self._address = self._table.address
        self._looked = -math.inf  # when the learner was last told to see what was added
        self._waiting, self._waited, self._closed = set[int](), 0.0, False  # threads, and seconds

    # What users ask

    @property
    def may_add(self) -> bool:
        """Whether `add` would not wait now."""
        return rule.may_add(self._address)

    @property
    def may_sample(self) -> bool:
        """Whether `sample` would not wait now: in a loop that both adds and samples, learn while this holds."""
        return rule.may_sample(self._address)

    def state(self) -> dict[str, Any]:
        """Return where things stand, in all processes together.

        ``asked``, the ratio that is asked for, and ``ratio``, that so far, of ``samples`` to ``inserts``, those that count;
        ``surplus``, how many samples are due; ``error_buffer``; ``added``, steps ever, and ``min_size``, how many there must be;
        ``may_add`` and ``may_sample``; ``since_added`` and ``since_sampled``, seconds, or None. And of this buffer alone
        ``waiting``, how many of its calls wait now, and ``waited``, seconds that they have waited in all.
        """
        figures = self._table.figures()
        inserts = figures["inserts"]
        return figures | {
            "ratio": figures["samples"] / inserts if inserts else None,
            "may_add": self.may_add,
            "may_sample": self.may_sample,
            "since_added": self._since(_SAMPLE),
            "since_sampled": self._since(_ADD),
            "waiting": len(self._waiting),
            "waited": self._waited,
        }

    # What the buffer does

    def wait_to_add(self) -> None:
        """Block while too few samples were drawn for what was added; no lock may be held.

        Raises
        ------
        LimiterTimeoutError
            For too long, nothing was sampled.
        ClosedError
            The buffer was closed meanwhile.
        """
        if not rule.may_add(self._address):
            self._wait(_ADD)

    def note_added(self, added: int) -> None:
        """Tell the others how many steps this writer has added, ever."""
        assert self._writer is not None
        rule.note_added(self._address, self._writer, added, time.time_ns())

    def wait_to_sample(self) -> bool:
        """Block while too little was added for what was sampled, as `wait_to_add`.

        Returns whether to see what was added since: before the first samples, and then after waits, once a second at most.
        """
        self._check_open()
        waits = not rule.may_sample(self._address)
        if waits:
            self._wait(_SAMPLE)
        now = time.monotonic()
        looks = self._looked < 0 or (waits and now - self._looked > _STALE)
        self._looked = now if looks else self._looked
        return looks

    def note_sampled(self, samples: int) -> None:
        """Count samples that were delivered."""
        rule.note_sampled(self._address, samples, time.time_ns())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._where} was closed; open it again")

    def _wait(self, side: _Side) -> None:
        pause, patience = _SHORTEST, math.inf if self.settings.timeout is None else self.settings.timeout
        done, since = self._done(side), time.monotonic()
        with self._counted():
            while not side.may(self._address):
                self._check_open()
                now, before = time.monotonic(), done
                done = self._done(side)
                since = since if done == before else now
                if now - since >= patience:
                    raise LimiterTimeoutError(self._why(side, patience))
                time.sleep(min(pause, patience))
                pause = min(1.5 * pause, _LONGEST)

    def _done(self, side: _Side) -> int:
        """Return how much was done so far by who ends the waits of a side."""
        return int(self._table.head[fields.SAMPLES]) if side is _ADD else rule.inserts(self._address)[0]

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        begun = time.monotonic()
        self._waiting.add(threading.get_ident())
        try:
            yield
        finally:
            self._waiting.discard(threading.get_ident())
            self._waited += time.monotonic() - begun

    def _since(self, side: _Side) -> float | None:
        """Return for how many seconds nothing was done by who ends the waits of a side; None if nothing ever was."""
        times = self._table.head[fields.SAMPLED_AT] if side is _ADD else self._table.writers[:, fields.ADDED_AT].max()
        return max(0.0, (time.time_ns() - int(times)) / 1e9) if times else None

    def _why(self, side: _Side, seconds: float) -> str:
        figures, since = self._table.figures(), self._since(side)
        surplus, bound, ratio = figures["surplus"], figures["error_buffer"], figures["asked"]
        if side is _ADD:
            missing = f"{counted(math.ceil(surplus - bound), 'more sample')} must be drawn before more steps are added"
            last = "no sample was ever drawn" if since is None else f"the last was drawn {since:.0f} s ago"
        else:
            steps = max(math.ceil((-bound - surplus) / ratio), figures["min_size"] - figures["added"])
            missing = f"{counted(steps, 'more step')} must be added first"
            last = "no step was ever added" if since is None else f"the last was added {since:.0f} s ago"
        return (
            f"waited {seconds:.0f} s to {side.verb} {self._where}: {missing} ({figures['inserts']:,} steps and "
            f"{figures['samples']:,} samples so far, at a ratio of {ratio:g}), and {last}. Start "
            f"the {side.by}, give a longer timeout=, or ask limiter.may_sample and may_add before each call "
            "where one thread does both"
        )

    def sync(self) -> None:
        """Sync the counts to the disk."""
        self._table.sync()

    def close(self) -> None:
        """Wake whoever waits here; twice is fine."""
        self._closed = True
        self._table.close()
