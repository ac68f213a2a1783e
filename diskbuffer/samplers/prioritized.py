"""Steps, or sequences, with probabilities in proportion to priorities.

Schaul et al., 2016, "Prioritized experience replay"; for sequences: Kapturowski et al., 2019, "Recurrent experience replay in
distributed reinforcement learning" (R2D2).

Priorities are a column of the store, of float32, written in place; zero is a step that no draw has seen yet. In RAM is a sum tree
over the store's rows, 5 bytes each. It depends on the column alone, and is read from it when the sampler meets a buffer. What was
added or evicted since the last draw is seen by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array, step_ids
from diskbuffer.arguments.integers import integer
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.index.fields import ENDED, FLOOR, HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.native import sampling
from diskbuffer.native.arrays import address_of
from diskbuffer.samplers.columns import OpenColumn, Segments
from diskbuffer.samplers.draws import Draw, Steps
from diskbuffer.samplers.population import how_to_have_longer_episodes
from diskbuffer.samplers.sampler import Sampler
from diskbuffer.samplers.sum_tree import SumTree
from diskbuffer.samplers.uniform import n_step_form
from diskbuffer.samplers.windows import Windows
from diskbuffer.schema.schema import Column

_OF_A_BUFFER = ("_tree", "_seen", "_lows", "_floors", "_met", "_next", "_slots", "_where", "_views", "_bases")
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class Prioritized(Sampler):
    """Draw steps, or sequences, in proportion to their priorities to the power `alpha`.

    Batches have ``weights``, (batch_size,) float32: importance weights to the power `beta`, the largest that any step of the
    buffer would have being 1. After learning, tell the new priorities: ``sampler.update(batch["steps"], errors.abs())``. New
    steps enter with the largest priority so far.

    With `length`, it draws sequences within an episode that start `period` steps apart, and one that ends with the episode, as
    `Slices` delivers them.

    Parameters
    ----------
    alpha : float
        0 draws uniformly.
    beta : float
        How far weights make up for it, from 0 to 1. An attribute: set it as training goes on.
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    epsilon : float
        Added to every priority, so that none is zero.
    n_step, gamma
        As in `Uniform`; not with `length`.
    length : int, optional
        Steps of a sequence.
    period : int, optional
        Steps from one start to the next; half of `length` where it is missing.
    burn_in : int
        As in `Slices`.
    eta : float
        A sequence's priority is eta times the largest of its steps', and 1 - eta times their mean.
    windows : Windows, optional
        What is delivered around each step that is drawn: one with `padding`, as every step may be drawn, and without a choice of
        episodes. Not with `n_step` or `length`.
    column : str
        Where priorities are kept.

    Notes
    -----
    A draw of 256 of a million and an update of as many take some 0.1 ms together. A sampler belongs to the buffer that it was
    first used with, which must be open for writing. The first draw reads the column, 10 ms for a million steps.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    >>> sampler = db.Prioritized(alpha=1.0, beta=1.0)
    >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
    ...     _ = buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
    ...     batch = buffer.sample(32, sampler)
    ...     n = sampler.update(batch["steps"], np.full(32, 0.5))
    >>> n, batch["weights"].min().item()
    (32, 1.0)
    """

    draws_alike = False  # for each process knows its own updates only

    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int | None = None,
        *,
        epsilon: float = 1e-6,
        n_step: int = 1,
        gamma: float = 0.99,
        length: int | None = None,
        period: int | None = None,
        burn_in: int = 0,
        eta: float = 0.9,
        windows: Windows | None = None,
        column: str = "priority",
    ) -> None:
        super().__init__(seed)
        for name, value, most in (("alpha", alpha, 10.0), ("beta", beta, 1.0), ("eta", eta, 1.0), ("epsilon", epsilon, 1e6)):
            if not isinstance(value, int | float | np.number) or not 0 <= value <= most:
                raise InputError(f"{name} must be a number from 0 to {most:g}, found {value!r}")
        if epsilon < 1e-30:
            raise InputError(f"epsilon must be above 0, found {epsilon!r}; a priority of zero would never be drawn again")
        if length is None and (period is not None or burn_in):
            raise InputError("period= and burn_in= are for sequences; give length=, too")
        if length is not None and n_step != 1:
            raise InputError("n_step is for single steps, and length for sequences; give one of them")
        if windows is not None and (n_step != 1 or length is not None):
            raise InputError("windows= is for single steps: leave out n_step= and length=")
        if windows is not None and not (isinstance(windows, Windows) and windows.draws_every_step):
            raise InputError(f"windows must be Windows with padding=, and of all episodes, found {windows!r}")
        self.form = n_step_form(n_step, gamma) if windows is None else windows.form
        self._windows = windows
        self._length, self._period, self._burn_in = 1, 1, 0
        if length is not None:
            self._length = integer("length", length)
            self._period = max(1, self._length // 2) if period is None else integer("period", period)
            self._burn_in = integer("burn_in", burn_in, 0)
            self.form = Steps(self._length, self._burn_in, padded=self._burn_in > 0)
        self.alpha, self.beta, self.column = float(alpha), float(beta), column
        self._epsilon, self._eta, self._sequences = float(epsilon), float(eta), length is not None
        self._largest = 1.0
        self._segments: Segments | None = None

    def attach(self, index: Index, column: OpenColumn) -> None:
        """Belong to a buffer, by its column of priorities."""
        if self._segments is not None:
            if self._segments.index is not index:
                raise InputError("this Prioritized sampler belongs to another buffer; make one for each")
            self._segments.check()  # a draw writes the priorities of what is new
            return
        if self._windows is not None:
            self._windows.attach(index, column)
            self.form = self._windows.form
        self._segments = column(self.column, Column((), "float32", on_request=True))
        table = index.table
        self._tree = SumTree(0)
        self._seen = np.full((len(table), 4), -2, np.int64)  # of the table, when everything was last read
        self._lows = np.zeros(len(table), np.int64)  # of each stream, the first position of its first slot here
        self._floors = np.zeros(len(table), np.int64)  # ... and the first position that was not dropped
        self._met = False
        self._next = np.zeros(len(table), np.int64)  # of each stream, the first position not read
        self._slots: list[list[int]] = [[] for _ in table]
        self._where = np.zeros((0, 2), np.int64)  # of each slot, the stream and the position of its first row
        self._views: dict[int, Float32] = {}  # of the column, by slot ...
        self._bases = np.zeros(0, np.int64)  # ... and where they lie in memory

    @property
    def settings(self) -> dict[str, Any]:
        """What samplers that share a column of priorities have in common."""
        settings = {"alpha": self.alpha, "epsilon": self._epsilon, "form": self.form}
        return {**settings, "period": self._period, "eta": self._eta} if self._sequences else settings

    # Drawing

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps, one from each of as many equal shares of all priorities."""
        self._catch_up(index)
        if not self._tree.total:
            raise EmptyBufferError(
                f"no episode has the {self._length} steps of a sequence yet; {how_to_have_longer_episodes(index)}"
                if self._sequences
                else "the buffer holds no complete step yet; add some before sampling"
            )
        located, ratios = np.empty((4, size), np.int64), np.empty(size)
        tree, random = self._tree, rng.random(size)
        sampling.draw_rows(tree.nodes, tree.size, index.table, self._where, index.segment_rows, random, located, ratios)
        streams, positions, starts, ends = located
        notes = {"weights": sampling.power(ratios, self.beta).astype(np.float32)}
        if "_firsts" in self.form.notes:
            notes["_firsts"] = np.maximum(starts, index.table[streams, FLOOR])
        return Draw(streams, positions, starts, ends, notes)

    def update(self, steps: Any, priorities: Any) -> int:
        """Set the priorities of steps that were drawn; return of how many, as those evicted since are left out.

        Steps that one of several writers has evicted, or cleared, since the last `refresh` may be counted, too, as by
        `Columns.write`.

        Parameters
        ----------
        steps : (n,) integers
            A batch's ``steps``; of sequences those, (n, burn_in + length), or those that were drawn alone.
        priorities : (n,) or, for sequences, (n, length) floats
            At least 0: absolute errors.

        Raises
        ------
        InputError
            A priority is negative or not finite, or there is not one for each step. Nothing was changed.
        """
        segments = self._segments
        if segments is None:
            raise InputError("this sampler has drawn nothing yet; give it to sample or loader first")
        ids, errors = step_ids(steps, of_sequences=self._sequences), priorities_of(priorities)
        if ids.ndim == 2:
            ids = self._drawn_of(ids)
        shape = (len(ids), self._length) if self._sequences else ids.shape
        if ids.ndim != 1 or errors.shape not in (shape, ids.shape):
            raise InputError(f"priorities must have the shape {shape}, as there are {len(ids)} steps, found {errors.shape}")
        if not errors.size:
            return 0
        if errors.ndim == 2:
            errors = self._eta * errors.max(axis=1) + (1 - self._eta) * errors.mean(axis=1)
        raw = (errors + self._epsilon).astype(np.float32)
        with segments.lock:
            segments.check()
            rows, ids = np.empty(len(ids), np.int64), np.ascontiguousarray(ids)
            while True:
                index, tree = segments.index, self._tree
                self._catch_up(index)
                if sampling.find_weighted(tree.nodes, tree.size, index.table, index.segment_rows, ids, rows) < len(rows):
                    known = rows >= 0  # the others were evicted, or are no steps, or no starts of sequences
                    rows, raw, ids = rows[known], raw[known], ids[known]
                if segments.hold(rows):
                    break
            tree.set(rows, self._weights(raw))
            self._largest = sampling.write_rows(self._bases, index.segment_rows, rows, raw, self._largest)
        return len(rows)

    def masses(self) -> tuple[float, float]:
        """Return the sum of all steps' priorities to the power of alpha, and the least of these; zeros where there are none.

        Where several buffers are drawn from, each with a sampler of its own, their shares of a batch follow from the sums, and
        weights become those of one buffer by ``(least of all / least of this one) ** beta``.
        """
        if self._segments is None:
            return 0.0, 0.0
        with self._segments.lock:
            self._catch_up(self._segments.index)
            total = float(self._tree.total)
            return (total, float(self._tree.least)) if total else (0.0, 0.0)

    def _drawn_of(self, ids: Int64) -> Int64:
        """Return the drawn step of each sequence, the first after the burn-in."""
        if ids.shape[1] != self._burn_in + self._length:
            raise InputError(f"steps: expected the names of {self._burn_in + self._length} steps each, found shape {ids.shape}")
        return ids[:, self._burn_in]

    def _weights(self, raw: Float32) -> npt.NDArray[np.float64]:
        return sampling.power(raw.astype(np.float64), self.alpha)

    # Keeping up

    def _catch_up(self, index: Index) -> None:
        """Drop what was evicted since the last draw, and read what was added."""
        if self._segments is None:
            raise InputError("a Prioritized sampler draws from a buffer: give it to sample or loader")
        if not sampling.has_changed(index.table, self._seen):
            return
        now = np.ascontiguousarray(index.table[:, [HEAD, ENDED, LOW, FLOOR]])
        changed = np.flatnonzero((now != self._seen).any(axis=1)).tolist()
        for stream in changed:
            self._release(index, stream)
            self._note_slots(index, stream)
        if not self._met:  # a buffer that was opened again has priorities
            for slots in self._slots if self._segments.is_there else ():
                for slot in slots:
                    raw = self._view(slot)
                    self._largest = max(self._largest, float(raw[raw < 1e31].max(initial=0)))
            self._met = True
        for stream in changed:
            self._take_in(index, stream)
        self._seen = now  # only now: a disk may be full on the way here, and all of it be done again

    def _release(self, index: Index, stream: int) -> None:
        rows, low, floor = index.segment_rows, int(index.table[stream, LOW]), int(index.table[stream, FLOOR])
        slots, current = self._slots[stream], index.slots(stream)
        gone = min(len(slots), (low - int(self._lows[stream])) // rows)
        left = len(slots) - gone
        goes_on = gone >= 0 and left <= len(current) and (not left or (current[0], current[left - 1]) == (slots[gone], slots[-1]))
        if not goes_on or index.table[stream, HEAD] < self._seen[stream, 0]:  # another store's, in the place of one that is gone
            gone, self._next[stream] = len(slots), 0
        for _ in range(gone):
            slot = slots.pop(0)
            self._tree.clear(slot * rows, rows)
            self._views.pop(slot, None)
        dropped = max(low, int(self._floors[stream]))
        for position in range(dropped // rows * rows, floor, rows):
            ordinal, first = (position - low) // rows, max(position, dropped)
            if ordinal < len(slots):
                self._tree.clear(slots[ordinal] * rows + first - position, min(position + rows, floor) - first)
        self._lows[stream], self._floors[stream] = low, floor

    def _note_slots(self, index: Index, stream: int) -> None:
        slots, rows, low = self._slots[stream], index.segment_rows, int(index.table[stream, LOW])
        for ordinal, slot in enumerate(index.slots(stream).tolist()[len(slots) :], len(slots)):
            if slot >= len(self._where):
                more = max(slot + 1, len(self._where) * 9 // 8) - len(self._where)
                self._where = np.concatenate([self._where, np.zeros((more, 2), np.int64)])
                self._bases = np.concatenate([self._bases, np.zeros(more, np.int64)])
                self._tree.grow(len(self._where) * rows)
            slots.append(slot)
            self._where[slot] = stream, low + ordinal * rows

    def _take_in(self, index: Index, stream: int) -> None:
        """Give new steps the largest priority, but for those that have one."""
        table, rows = index.table, index.segment_rows
        head, low = int(table[stream, HEAD]), int(table[stream, LOW])
        position = max(int(self._next[stream]), int(table[stream, FLOOR]))
        # A sequence that ends at the newest row may be an episode's last: that is known when the episode has ended.
        until = head - self._length + (1 if self._period == 1 else int(table[stream, ENDED]))
        while position < until:
            ordinal = (position - low) // rows
            slot, offset = self._slots[stream][ordinal], (position - low) % rows
            count = min(until - position, rows - offset)
            eligible = np.empty(count, np.bool_)
            sampling.find_starts(table, stream, position, self._length, self._period, eligible)
            if eligible.any():
                raw = self._view(slot)[offset : offset + count]
                raw[eligible & ~((raw > 0) & (raw < 1e31))] = self._largest
                self._tree.fill(slot * rows + offset, np.where(eligible, self._weights(raw), 0))
            else:  # a column with nothing in it is not made
                self._tree.fill(slot * rows + offset, np.zeros(count))
            position += count
        self._next[stream] = max(position, int(self._next[stream]))

    def _view(self, slot: int) -> Float32:
        view = self._views.get(slot)
        if view is None:
            assert self._segments is not None
            view = self._views[slot] = self._segments.values(slot)
            self._bases[slot] = address_of(view)
        return view

    # State

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: the same settings and the same state, and no buffer yet."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OF_A_BUFFER} | {"_segments": None}

    def state_dict(self) -> dict[str, Any]:
        """Return the state: with it, the same steps, and the same priorities, the next batches are the same."""
        return super().state_dict() | {"beta": self.beta, "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        try:
            beta, largest = float(state["beta"]), float(state["largest"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError("the state of a Prioritized sampler has 'beta' and 'largest', too") from error
        if not 0 <= beta <= 1 or not 0 < largest < np.inf:
            raise InputError(f"the state of a Prioritized sampler is damaged: beta {beta}, largest {largest}")
        super().load_state_dict(state)
        self.beta, self._largest = beta, largest


def priorities_of(values: Any) -> npt.NDArray[np.float64]:
    """Return priorities of any shape; an InputError where they are no numbers, or one is negative or not finite."""
    found = as_array("priorities", values)
    if found.dtype.kind not in "biuf":
        raise InputError(f"priorities must be numbers, found {found.dtype}")
    found = np.ascontiguousarray(found, np.float64)
    if not sampling.all_within(found.reshape(-1), 1e30):
        raise InputError(f"priorities must be at least 0 and below 1e30, found {found.min()} to {found.max()}")
    return found
