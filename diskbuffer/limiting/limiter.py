"""Waiting, as an actor or a learner, where the other side is behind.

Processes have no signals for each other: whoever waits looks again and again, ever less often. No lock is held meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from diskbuffer.errors import ClosedError, LimiterTimeoutError
from diskbuffer.limiting import fields
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.limiting.table import Table
from diskbuffer.native import limiter as rule
from diskbuffer.runtime import forks
from diskbuffer.store.system.files import Files
from diskbuffer.wording import counted

_SHORTEST, _LONGEST = 50e-6, 0.01  # seconds between looks
_LOOK = 1.0  # seconds between looks at who is alive
GRACE = 300.0  # seconds that one waits although nobody is alive who could end it
GRACE_OF_BOTH = 30.0  # the same of a thread that does both itself, and so most likely waits for itself
_STALE = 1.0  # seconds after which one who had to wait sees what has come


class _Side(NamedTuple):
    """What one of the two sides does, and who ends its waits."""

    verb: str
    may: Callable[[int], bool]
    by: str


_ADD = _Side("add to", rule.may_add, "learner")
_SAMPLE = _Side("sample from", rule.may_sample, "actor")


def _other(side: _Side) -> _Side:
    return _SAMPLE if side is _ADD else _ADD


class Limiter:
    """Hold a ratio of samples to inserts, for one buffer. Made by `ReplayBuffer`, as its attribute `limiter`.

    Parameters
    ----------
    files : Files
        The directory of the shared numbers.
    asked : SampleToInsertRatio
    writer : int or None
        The number of the writer that this is; None for a learner.
    added : int
        How many steps that writer's store has ever had.
    where : str
        What messages call the buffer.
    names : callable
        Returns the names of all writers, by their numbers.

    Attributes
    ----------
    asked : SampleToInsertRatio
        What this buffer was opened with.
    """

    def __init__(
        self,
        files: Files,
        asked: SampleToInsertRatio,
        writer: int | None,
        added: int,
        where: str,
        names: Callable[[], Sequence[str]],
    ) -> None:
        self.asked, self._writer, self._where, self._names = asked, writer, where, names
        self._table = Table(files, asked, writer, added)
        self._address = self._table.address
        self._threads: dict[_Side, set[int]] = {_ADD: set(), _SAMPLE: set()}  # that add, or sample, in this process
        self._looked = -math.inf  # when the learner was last told to see what was added
        self._waited, self._closed = 0.0, False
        forks.renew(self)

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
        ``may_add`` and ``may_sample``; ``waiting_to_add``, for how many seconds writers have waited, by name, and
        ``waiting_to_sample``, a learner, or None; ``since_added`` and ``since_sampled``, seconds, or None; ``actors_alive`` and
        ``learners_alive``, whether there are any beside the thread that asks. And of this buffer alone ``waited``, seconds that
        its calls have waited in all.
        """
        figures = self._table.figures()
        inserts, head = figures["inserts"], self._table.head
        rows, names = self._table.writers[: int(head[fields.ROWS])], self._names()
        actors, learners = self._is_alive(_SAMPLE), self._is_alive(_ADD)
        adding = {_name(names, number): _ago(int(row[fields.WAITS])) for number, row in enumerate(rows) if row[fields.WAITS]}
        return figures | {
            "ratio": figures["samples"] / inserts if inserts else None,
            "may_add": self.may_add,
            "may_sample": self.may_sample,
            "waiting_to_add": adding if actors else {},
            "waiting_to_sample": _ago(int(head[fields.SAMPLER_WAITS])) if learners else None,
            "since_added": _ago(int(rows[:, fields.ADDED_AT].max(initial=0))),
            "since_sampled": _ago(int(head[fields.SAMPLED_AT])),
            "actors_alive": actors,
            "learners_alive": learners,
            "waited": self._waited,
        }

    # What the buffer does

    def wait_to_add(self) -> None:
        """Block while too few samples were drawn for what was added; no lock may be held.

        Raises
        ------
        LimiterTimeoutError
            It took too long.
        ClosedError
            The buffer was closed meanwhile.
        """
        self._threads[_ADD].add(threading.get_ident())
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
        self._threads[_SAMPLE].add(threading.get_ident())
        self._table.sampling.join()
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
        begun = seen = looked = time.monotonic()
        pause, timeout, both = _SHORTEST, self.asked.timeout, threading.get_ident() in self._threads[_other(side)]
        patience = timeout if timeout is not None else GRACE_OF_BOTH if both else GRACE
        with self._telling(side):
            while not side.may(self._address):
                self._check_open()
                now = time.monotonic()
                if timeout is None and now - looked >= _LOOK:
                    looked = now
                    seen = now if self._is_alive(side) else seen
                if now - (seen if timeout is None else begun) >= patience:
                    raise LimiterTimeoutError(self._why(side, now - begun))
                time.sleep(min(pause, patience))
                pause = min(1.5 * pause, _LONGEST)

    @contextlib.contextmanager
    def _telling(self, side: _Side) -> Iterator[None]:
        """Have others see that one waits here, and since when."""
        row, field = self._table.head, fields.SAMPLER_WAITS
        if side is _ADD:
            row, field = self._table.writers[self._writer or 0], fields.WAITS
        row[field], begun = time.time_ns(), time.monotonic()
        try:
            yield
        finally:
            row[field] = 0
            self._waited += time.monotonic() - begun

    def _is_alive(self, side: _Side) -> bool:
        """Tell whether anybody but this thread is alive who could end the waits of a side."""
        presence = self._table.sampling if side is _ADD else self._table.adding
        alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        return bool(alive & self._threads[_other(side)]) or presence.others()

    def _why(self, side: _Side, seconds: float) -> str:
        figures = self._table.figures()
        surplus, bound, ratio = figures["surplus"], figures["error_buffer"], figures["asked"]
        counts = f"of {figures['inserts']:,} that count so far, with {figures['samples']:,} samples, at a ratio of {ratio:g}"
        if side is _ADD:
            missing, last = math.ceil(surplus - bound), int(self._table.head[fields.SAMPLED_AT])
            first = f"{counted(missing, 'more sample')} must be drawn before more steps than {figures['inserts']:,} are added"
            counts = f"with {figures['samples']:,} samples so far, at a ratio of {ratio:g}"
        else:
            missing = max(math.ceil((-bound - surplus) / ratio), figures["min_size"] - figures["added"])
            last = int(self._table.writers[:, fields.ADDED_AT].max())
            first = f"{counted(missing, 'more step')} must be added first"
        since, alive = _ago(last), self._is_alive(side)
        others = {
            "actor": f"The last step was {'never added' if since is None else f'added {since:.0f} s ago'}",
            "learner": f"The last sample was {'never drawn' if since is None else f'drawn {since:.0f} s ago'}",
        }[side.by]
        who = f"another {side.by} is alive" if alive else f"no other thread or process with this limiter is alive as {side.by}"
        return (
            f"waited {seconds:.0f} s to {side.verb} {self._where}: {first} ({counts}). {others}, and {who}. Start one, give a "
            "longer timeout=, or ask limiter.may_sample and may_add before each call where one thread does both"
        )

    def sync(self) -> None:
        """Bring the counts to the disk."""
        self._table.sync()

    def close(self) -> None:
        """Have whoever waits here stop, and be there no longer; twice is fine."""
        self._closed = True
        self._table.close()

    def after_fork(self) -> None:
        """In the child: be nobody until it samples."""
        self._threads = {_ADD: set(), _SAMPLE: set()}
        self._table.adding.after_fork()
        self._table.sampling.after_fork()


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else str(number)


def _ago(then: int) -> float | None:
    """Return how many seconds ago a time was; None where it is none."""
    return max(0.0, (time.time_ns() - then) / 1e9) if then else None
