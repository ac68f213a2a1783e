"""Sequences, for recurrent agents and world models.

Hausknecht and Stone, 2015, "Deep recurrent Q-learning for partially observable MDPs"; Kapturowski et al., 2019, "Recurrent
experience replay in distributed reinforcement learning" (burn-in); Hafner et al., 2020, "Dream to control".
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD
from diskbuffer.index.index import Index
from diskbuffer.samplers.draws import Draw, Rows, Steps
from diskbuffer.samplers.population import population_of
from diskbuffer.samplers.starts import Starts

Int64 = npt.NDArray[np.int64]


class Slices(Starts):
    """Draw sequences of `length` steps.

    All columns get an axis of time after the first, also stacks of frames: (batch_size, length, frame_stack, ...). ``obs`` and
    ``next_obs`` are views of the same frames.

    Parameters
    ----------
    length : int
        Steps.
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    strict : bool
        Whether there are whole sequences only. If not, any step may be the first, and where its episode ends before `length`
        steps, the rest is zeros, and False in ``mask``, (batch_size, length) bool.
    over : {"starts", "episodes"}
        What has the same probability: every valid start, or every episode that has one, and every start within it.
    burn_in : int
        Steps before the `length`, on the same axis, for a recurrent network to find its state: (batch_size, burn_in + length,
        ...). Where an episode starts later than that, they are False in ``mask``.
    crossing : bool
        Whether sequences run on into the next episode of their environment. They are of rows then, also that of an episode's
        last observation, which has no action and no reward (zeros); ``is_first`` and ``is_last``, (batch_size, length) bool,
        tell where episodes start and end. There is no ``next_obs``: it is the next row's ``obs``.
    replace : bool
        Whether starts are drawn with replacement. If not, every start comes once, shuffled, and then the next epoch begins. The
        order is computed, not stored.
    episodes : Episodes, optional
        Draw from these only: ``buffer.episodes[buffer.episodes.length > 100]``. Those that are evicted later drop out.
    max_age, age_column
        As in `Uniform`, of a sequence's first step; those of the burn-in may be older. Not with `crossing` or `episodes`.
    without : str, optional
        As in `Uniform`. Not with `crossing`, `episodes` or `max_age`.

    Raises
    ------
    EmptyBufferError
        When drawing, where no episode has enough steps, that are young enough; its message tells how long the longest is.

    Notes
    -----
    A draw costs one binary search over the episodes' starts for each start that is tried, however many steps are stored, and
    right after an `add`. Where one start in a hundred is valid, a hundred are tried for each, some 10 us; where next to none is,
    all episodes are looked at for every batch: 0.3 ms for ten thousand of them, 20 ms for a million.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
    ...     _ = buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
    ...     batch = buffer.sample(32, db.Slices(10))
    >>> batch["obs"].shape, bool((batch["next_obs"] == batch["obs"] + 1).all())
    (torch.Size([32, 10]), True)
    """

    def __init__(
        self,
        length: int,
        seed: int | None = None,
        *,
        strict: bool = True,
        over: Literal["starts", "episodes"] = "starts",
        burn_in: int = 0,
        crossing: bool = False,
        replace: bool = True,
        episodes: Any = None,
        max_age: float | None = None,
        age_column: str | None = None,
        without: str | None = None,
    ) -> None:
        if over not in ("starts", "episodes"):
            raise InputError(f"over must be 'starts' or 'episodes', found {over!r}")
        length, burn_in = integer("length", length), integer("burn_in", burn_in, 0)
        some = episodes is not None or max_age is not None or without is not None
        if crossing and (not strict or over != "starts" or burn_in or some):
            raise InputError(
                "crossing=True cannot be combined with strict=False, over='episodes', burn_in=, episodes=, max_age= or without="
            )
        if over == "episodes" and not replace:
            raise InputError("over='episodes' draws with replacement; replace=False visits every start once")
        self.form = Rows(length) if crossing else Steps(length, burn_in, padded=not strict or burn_in > 0, whole=strict)
        self._crossing, self._length = crossing, length
        population = population_of(episodes, max_age, age_column, without)
        super().__init__(seed, population, length if strict else 1, over_episodes=over == "episodes", replace=replace)

    # Across episodes, else as all starts

    def _count(self, index: Index) -> int:
        return int(self._behind(index).sum()) if self._crossing else super()._count(index)

    def _with_notes(self, index: Index, drawn: Draw) -> Draw:
        if not self._crossing:
            return super()._with_notes(index, drawn)
        firsts, lasts = index.episodes_along(drawn.streams, drawn.positions, self._length)
        rows = drawn.positions[:, None] + np.arange(self._length)
        return drawn._replace(notes={"_firsts": firsts, "is_first": rows == firsts, "is_last": rows == lasts})

    def _draw_starts(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        return self._draw_crossing(index, size, rng) if self._crossing else super()._draw_starts(index, size, rng)

    def _is_valid(self, index: Index, places: Int64) -> npt.NDArray[np.bool_]:
        if self._crossing:
            return np.asarray(places[1] + self._length <= _complete(index)[places[0]])
        return super()._is_valid(index, places)

    def _too_short(self, index: Index) -> EmptyBufferError:
        if not self._crossing:
            return super()._too_short(index)
        longest = int((_complete(index) - index.table[:, FLOOR]).max())
        return EmptyBufferError(
            f"no environment has the {self._length} rows of a sequence, the longest has {longest}; add more steps, or sample "
            "with a smaller length"
        )

    def _behind(self, index: Index) -> Int64:
        """Count the steps of each stream that have enough rows after them."""
        ends = np.minimum(_complete(index) - self._length + 1, index.table[:, HEAD])  # where the newest row is, no step is yet
        counts = [
            index.steps_before(stream, end) - index.first_step(stream) if end > 0 else 0
            for stream, end in enumerate(ends.tolist())
        ]
        return np.maximum(np.array(counts, np.int64), 0)

    def _draw_crossing(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Draw among the steps of each stream that have enough rows after them: all but the newest."""
        behind = self._behind(index)
        ends, all_ends = np.cumsum(behind), np.cumsum(index.steps())
        if not ends[-1]:
            raise self._too_short(index)
        drawn = rng.integers(0, ends[-1], size)
        streams = np.searchsorted(ends, drawn, side="right")
        return index.locate(drawn - (ends - behind)[streams] + (all_ends - index.steps())[streams])


def _complete(index: Index) -> Int64:
    """Return how far each stream's rows are complete: the newest is, if it is an episode's last; else its action is to come."""
    return np.asarray(index.table[:, HEAD] + index.table[:, ENDED])
