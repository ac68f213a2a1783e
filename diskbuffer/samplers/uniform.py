"""Every step with the same probability (Mnih et al., 2015, "Human-level control through deep reinforcement learning")."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.index.index import Index
from diskbuffer.native.sampling import MOST_BELOW, Philox, draw_steps
from diskbuffer.samplers.columns import OpenColumn
from diskbuffer.samplers.draws import Draw, Form, NSteps, Steps
from diskbuffer.samplers.epochs import Epochs, Samples
from diskbuffer.samplers.population import Everything, population_of
from diskbuffer.samplers.sampler import Ahead, Sampler, count_steps

Int64 = npt.NDArray[np.int64]
_ROUNDS = 8


class Uniform(Sampler):
    """Draw transitions uniformly. A step costs one binary search over the episodes' starts.

    With `n_step` above one, ``reward`` is the sum of the next n rewards, discounted by `gamma` (Sutton, 1988, "Learning to
    predict by the methods of temporal differences"; for replay: Hessel et al., 2018, "Rainbow"), ``next_obs`` the observation n
    steps on, ``terminated`` and ``truncated`` those of the last step, and ``discount``, float32, what to multiply the value of
    ``next_obs`` with: gamma to the number of steps, or zero where the episode terminated. Where the episode ends before, or has
    not come further, there are fewer steps in the sum.

    Parameters
    ----------
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    n_step : int
    gamma : float
        From 0 to 1.
    newest : int
        How many of the newest steps are in every batch, its first samples; the others are drawn as if this were 0 (Zhang and
        Sutton, 2017, "A deeper look at experience replay": combined experience replay). The newest step of each environment
        comes before the second newest of any; of which environments, where not of all, is drawn anew for every batch. With n-step
        returns, their sums are of the steps that there are.
    max_age : float, optional
        Draw no older steps: only the newest `max_age` steps of each environment, or, with `age_column`, those whose value is at
        least the newest value less `max_age`.
    age_column : str, optional
        A column of numbers that was recorded with the steps, such as ``policy_version`` (``extra=``) or a time; the newest value
        is the largest that the newest step of an environment has. It should not decrease within an environment. Where it does,
        those steps are drawn that come after the environment's last one that is too old: none that is too old in any case. NaN
        is too old.
    replace : bool
        Whether steps are drawn with replacement. If not, every step comes once, shuffled, and then the next epoch begins, with
        the steps that are there by then. The order is computed, not stored.
    episodes : Episodes, optional
        Draw from these only: ``buffer.episodes[buffer.episodes.tag == "demo"]``. Those that are evicted later drop out. Not with
        `newest` or `max_age`.
    without : str, optional
        A tag: steps of episodes that have it when they are drawn are left out (see `Episodes.set_tag`). Not with `newest`,
        `max_age` or `episodes`.

    Raises
    ------
    EmptyBufferError
        When drawing, where there is no step, or none that is young enough.
    InputError
        When drawing, where a batch is smaller than `newest`, or the buffer has no such `age_column`.

    Notes
    -----
    What is newest, and what is too old, counts at the time of the draw: a loader delivers what it drew `prefetch` batches ago.
    A `max_age` in steps costs nothing. With a column, its rows are read once, when they are new, and at first those back to the
    last one that is too old; some 20 us for each environment that went on since the last draw. With `without`, the tags of what
    is drawn are read, and others are drawn in place of those that have it: 0.1 ms, more where most have it.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
    ...     _ = buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
    ...     batch = buffer.sample(32, db.Uniform(n_step=3, gamma=0.5))
    >>> float(batch["reward"].max()), float(batch["discount"].min())
    (1.75, 0.125)
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        newest: int = 0,
        max_age: float | None = None,
        age_column: str | None = None,
        replace: bool = True,
        episodes: Any = None,
        without: str | None = None,
    ) -> None:
        super().__init__(seed)
        self.form = n_step_form(n_step, gamma)
        self._newest = integer("newest", newest, 0)
        if newest and episodes is not None:
            raise InputError(
                "newest= cannot be combined with episodes=: new steps are in none of the episodes that were selected"
            )
        if newest and without is not None:
            raise InputError("newest= cannot be combined with without=: no tag is given to an episode that is not over")
        self._population = population_of(episodes, max_age, age_column, without)
        if not replace:
            self.epochs = Epochs(self._population)
        drawn_by_number = type(self._population) is Everything and replace and not newest
        self._at_once = drawn_by_number and type(self).draw is Uniform.draw

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Meet the buffer that is to be drawn from."""
        self._population.attach(index, column)

    def next(self, index: Index, size: int) -> Ahead:
        """Draw the next batch, by native code where every step is as likely as any other: the same steps as `draw`."""
        if self._at_once:
            random, _ = self._started(self.batches + len(self._ahead))
            located = np.empty((4, size), np.int64)
            if 0 < draw_steps(index.table, random, located) <= MOST_BELOW:
                return Ahead(Draw(*located))
        return super().next(index, size)

    def random(self) -> Philox | None:
        """Return the random numbers of the next batch, if native code draws all of it by them, and none was drawn ahead."""
        return self._started(self.batches)[0] if self._at_once and not self._ahead else None

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps."""
        count_steps(index)
        if not self._newest:
            return Draw(*self._draw(index, size, rng))
        if self._newest > size:
            raise InputError(f"newest={self._newest} steps cannot all be in a batch of {size}; give a larger batch_size")
        assert isinstance(self._population, Everything)
        newest = self._population.newest(index, self._newest, rng)
        return Draw(*np.concatenate([newest, self._draw(index, size - newest.shape[1], rng)], axis=1))

    def _draw_others(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw steps in place of some of a batch: none of them as the newest."""
        return Draw(*self._draw(index, size, rng)) if self._newest else self.draw(index, size, rng)

    def _draw(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Draw `size` steps of the population; an EmptyBufferError where it has none."""
        if self._population.steps(index) == 0:
            raise EmptyBufferError(self._population.none_left)
        drawn = self._draw_evenly(index, size, rng) if self.epochs is None else self.epochs.draw(index, size, self._entropy)
        if drawn.shape[1] < size:
            raise EmptyBufferError(self._population.none_left)
        return drawn

    def samples(self) -> Samples:
        """Return every step that can be drawn."""
        return Samples(self._population, self.form, count=self._population.steps)

    def _draw_evenly(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Draw `size` steps of the population; none where all were evicted."""
        steps = self._population.steps(index)
        drawn = self._population.locate(index, rng.integers(0, steps, size))
        for n in range(_ROUNDS):
            missing = size - drawn.shape[1]  # selected episodes were evicted, or have a tag
            if not missing:
                return drawn
            more = self._population.locate(index, rng.integers(0, steps, missing << n + 1))[:, :missing]
            drawn = np.concatenate([drawn, more], axis=1)
        every = self._population.locate(index, np.arange(steps))
        chosen = rng.integers(0, every.shape[1], size - drawn.shape[1]) if every.shape[1] else np.empty(0, np.int64)
        return np.concatenate([drawn, every[:, chosen]], axis=1)


def n_step_form(n_step: int, gamma: float, *, apart: bool = False) -> Form:
    """Return the form of single steps, or of n-step returns; an InputError where the arguments are bad.

    With `apart`, ``obs`` and ``next_obs`` share no memory, as those of n-step returns never do.
    """
    if not isinstance(gamma, int | float | np.floating) or not 0 <= gamma <= 1:
        raise InputError(f"gamma must be a number from 0 to 1, found {gamma!r}")
    n_step = integer("n_step", n_step)
    return NSteps(n_step, float(gamma)) if n_step > 1 else Steps(apart=apart)
