"""Sequences within an episode, for recurrent agents and world models.

Hausknecht and Stone, 2015, "Deep recurrent Q-learning for partially observable MDPs"; Hafner et al., 2020, "Dream to control".

Nothing is kept up for this: a start is drawn among all steps, and drawn again where its episode ends too soon (rejection
sampling; von Neumann, 1951). Where hardly any start is valid, those that are get counted, once a batch, over all episodes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.form import Draw, Form
from diskbuffer.index import Index
from diskbuffer.samplers.sampler import Sampler, at_least_one, count_steps

Int64 = npt.NDArray[np.int64]
_ROUNDS = 8  # of drawing, in each of which the better part of what is missing should be found


class Slices(Sampler):
    """Draw sequences of `length` steps, with replacement.

    All columns get an axis of time behind the first, also stacks of frames: (batch_size, length, frame_stack, ...). ``obs`` and
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

    Raises
    ------
    EmptyBufferError
        When drawing, where no episode is long enough; its message tells how long the longest is.

    Notes
    -----
    A draw costs one binary search over the episodes' starts for each start that is tried, however many steps are stored, and
    right after an `add`. Where fewer than about two starts in five are valid (sequences of 300 steps in episodes of 500), all
    episodes are looked at for every batch: 0.3 ms for ten thousand of them, 15 to 22 ms for a million.

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
    ) -> None:
        super().__init__(seed)
        if over not in ("starts", "episodes"):
            raise InputError(f"over must be 'starts' or 'episodes', found {over!r}")
        self.form = Form(at_least_one("length", length), padded=not strict)
        self._needed = self.form.steps if strict else 1  # steps that must follow a start, with its own
        self._over_episodes = over == "episodes"

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw the first steps of `size` sequences."""
        steps = count_steps(index)
        total = index.episodes if self._over_episodes else steps
        found, missing = [np.empty((4, 0), np.int64)], size
        for _ in range(_ROUNDS):
            tried = self._try(index, rng.integers(0, total, missing + missing // 4 + 4), rng)[:, :missing]
            found.append(tried)
            missing -= tried.shape[1]
            if not missing:
                break
        else:
            found.append(self._among_all(index, missing, rng))
        return Draw(*np.concatenate(found, axis=1))

    def _try(self, index: Index, ordinals: Int64, rng: np.random.Generator) -> Int64:
        """Return those of some steps, or of a start in each of some episodes, that are valid starts: (4, n) as in `Draw`."""
        if self._over_episodes:
            episodes = np.stack(index.locate_episodes(ordinals))
            return self._start_within(episodes[:, self._valid(episodes) > 0], rng)
        places = np.stack(index.locate(ordinals))
        return places[:, places[3] - places[1] >= self._needed]

    def _among_all(self, index: Index, size: int, rng: np.random.Generator) -> Int64:
        """Draw starts after counting the valid ones of every episode."""
        every = np.stack(index.locate_episodes(np.arange(index.episodes)))
        valid = np.maximum(self._valid(every), 0)
        if not valid.any():
            longest = int((every[3] - every[1]).max())
            raise EmptyBufferError(
                f"no episode has the {self._needed} steps of a sequence, the longest has {longest}; add more steps, "
                "or sample with a smaller length, or with strict=False"
            )
        weights = (valid > 0).astype(np.int64) if self._over_episodes else valid
        ends = np.cumsum(weights)
        return self._start_within(every[:, np.searchsorted(ends, rng.integers(0, ends[-1], size), side="right")], rng)

    def _valid(self, episodes: Int64) -> Int64:
        """Count the valid starts of episodes, (4, n) as `Index.locate_episodes` returns them; 0 or less where there are none."""
        return np.asarray(episodes[3] - episodes[1] - self._needed + 1)

    def _start_within(self, episodes: Int64, rng: np.random.Generator) -> Int64:
        """Draw one of the valid starts of each episode."""
        episodes[1] += rng.integers(0, self._valid(episodes))
        return episodes
