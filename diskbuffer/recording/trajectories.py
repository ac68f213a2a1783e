"""What `ReplayBuffer.extend` does under the lock: arrays of steps of one stream become rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED
from diskbuffer.index.index import Index
from diskbuffer.nested import flatten
from diskbuffer.recording.blocks import (
    Block,
    lead_frames,
    lead_rows,
    refuse_what_does_not_roll,
    same_rows,
    same_stacks,
    starts_of,
)
from diskbuffer.recording.cut_offs import CutOffs
from diskbuffer.recording.flat_steps import FlatSteps
from diskbuffer.recording.row_writer import RowWriter
from diskbuffer.recording.values import check_names, fit, flags, shape_of
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.store.format.layout import NEXT_STEP, Layout

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_BLOCK_BYTES = 32 * 1024**2  # of a column that is put together at a time


class Trajectories:
    """Record arrays of steps, block by block.

    `newest(path, env)` returns the stack that a stream ends with, in its place of (streams, frame_stack, ...). `flat` records
    single frames where every column is flat.
    """

    def __init__(
        self,
        layout: Layout,
        index: Index,
        rows: RowWriter,
        cut_offs: CutOffs,
        newest: Callable[[str, int], Array],
        flat: FlatSteps | None = None,
    ) -> None:
        self._layout, self._schema, self._index = layout, layout.schema.recorded, index
        self._rows, self._cut_offs, self._newest, self._flat = rows, cut_offs, newest, flat
        self._stack, self._zeros = layout.frame_stack, layout.padding == "zeros"
        self._next_step = layout.autoreset == NEXT_STEP

    def extend(
        self,
        values: dict[str, Any],
        obs: Any,
        next_obs: Any,
        env: int,
        new_episode: Any = None,
        *,
        cut: bool = False,
        any_stack: bool = False,
    ) -> int:
        """Record arrays of steps; return how many there were. `cut` starts an episode. See `ReplayBuffer.extend`.

        With `any_stack` the last step may lead to a stack that is not its own, moved on: its episode is over then, and that stack
        has rows of its own behind it (`Reader.stacks_apart`).
        """
        self._cut_offs.warn_if_due()
        columns = self._fit_steps(values)
        n = len(columns["terminated"])
        before, after = self._fit_observations(obs, next_obs, n)
        if not _is_given(next_obs):
            _refuse_an_end_within(columns)
        told = None if new_episode is None else flags("new_episode", new_episode, n)
        if told is not None and np.ndim(new_episode) == 0:
            told[1:] = False
        if n == 0:
            return 0
        if cut:
            self._rows.cut_off(env)
        widest = max(self._schema[path].row_bytes for path in self._schema)
        block = max(256, _BLOCK_BYTES // widest)
        recorded = 0
        for first in range(0, n, block):
            part = slice(first, first + block)
            with Uninterrupted():
                recorded += self._extend_block(
                    {path: array[part] for path, array in columns.items()},
                    {path: array[part] for path, array in before.items()},
                    {path: array[part] for path, array in after.items()},
                    None if told is None else told[part],
                    env,
                    any_stack=any_stack and first + block >= n,
                )
        if cut:  # nothing can go on after it
            self._rows.cut_off(env)
        return recorded

    def _fit_steps(self, values: dict[str, Any]) -> dict[str, Array]:
        given = flatten(values)
        check_names({**given, "terminated": 0, "truncated": 0}, self._schema.step)
        name, first = next(iter(given.items()))
        if shape_of(first) == ():
            raise InputError(f"{name}: expected an array with a leading axis of steps; for a single step there is add")
        n = len(first)
        for flag in ("terminated", "truncated"):
            given.setdefault(flag, np.zeros(n, np.bool_))
        return {path: fit(path, self._schema[path], given[path], ((n, *self._schema[path].shape),)) for path in self._schema.step}

    def _fit_observations(self, obs: Any, next_obs: Any, n: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return observations before and after each step; from a trajectory's n + 1 observations both are views."""
        before, after = flatten({"obs": obs}), flatten({"next_obs": next_obs})
        check_names(before, self._schema.obs)
        trajectory = not after
        if not trajectory:
            check_names(after, ["next_" + path for path in self._schema.obs])
        rows = n + 1 if trajectory else n
        fitted = {path: self._fit_frames(path, path, value, rows, trajectory) for path, value in before.items()}
        if trajectory:
            return {p: a[:-1] for p, a in fitted.items()}, {p: a[1:] for p, a in fitted.items()}
        return fitted, {p: self._fit_frames("next_" + p, p, after["next_" + p], n, False) for p in self._schema.obs}

    def _fit_frames(self, name: str, path: str, value: Any, rows: int, trajectory: bool) -> Array:
        column = self._schema[path]
        stack = (rows, self._stack, *column.shape)
        if self._stack > 1 and shape_of(value) == stack:
            return fit(name, column, value, (stack,))
        try:
            return fit(name, column, value, ((rows, *column.shape),))
        except InputError as error:
            if not trajectory:
                raise
            raise InputError(
                f"{error} (without next_obs, obs is a trajectory: one observation more than there are steps)"
            ) from error

    def _extend_block(
        self,
        columns: dict[str, Array],
        before: dict[str, Array],
        after: dict[str, Array],
        told: Bools | None,
        env: int,
        *,
        any_stack: bool = False,
    ) -> int:
        if self._flat is not None and before and not self._stacked(before):
            return self._flat.record_arrays(columns, before, after, told, env)
        ended = columns["terminated"] | columns["truncated"]
        running_before = np.append(self._index.table[env, ENDED] == 0, ~ended[:-1])
        same, rolls = self._follow_on(before, after, told, running_before, env)
        if self._next_step:
            idle = ~ended & (columns[self._reward].reshape(len(ended), -1) == 0).all(axis=1)
            keep = ~(same & ~running_before & idle)
            if not keep.all():  # resets of a vector environment
                columns, before, after = ({p: a[keep] for p, a in d.items()} for d in (columns, before, after))
                ended, told = ended[keep], None if told is None else told[keep]
                if not len(ended):
                    return 0
                running_before = np.append(self._index.table[env, ENDED] == 0, ~ended[:-1])
                same, rolls = self._follow_on(before, after, told, running_before, env)
        goes_on = same & running_before
        head = int(self._index.heads[env])
        apart = any_stack and not all(each[-1] for each in rolls.values())
        for path, each in rolls.items():
            refuse_what_does_not_roll(path, each[:-1] if apart else each, self._stack)
        final = {path: after[path][-1] for path in self._schema.obs} if apart else {}
        block, leading = self._with_leads(head, goes_on, ended, before, after)
        cut_off = running_before & ~goes_on
        cut_off[0] &= head >= 0
        self._write(block, columns, before, after, leading, final, env)
        self._cut_offs.steps += len(ended)
        self._cut_offs.note(int(cut_off.sum()) + (apart and not ended[-1]))
        return len(ended)

    def _with_leads(
        self, head: int, goes_on: Bools, ended: Bools, before: dict[str, Array], after: dict[str, Array]
    ) -> tuple[Block, dict[str, list[Array]]]:
        """Find what needs a lead-in, and return what is to be written, and lead-ins' frames; stacks become single frames."""
        stacked = self._stacked(before)
        wanted = np.zeros(len(ended), np.bool_)
        for path in stacked:
            first = np.flatnonzero(~goes_on)
            wanted[first] |= ~starts_of(before[path][first], self._zeros)
        frames, size = self._stack - 1, self._layout.segment_rows
        none = Block(head, goes_on, ended, np.zeros(len(ended), np.int64))
        block = Block(head, goes_on, ended, lead_rows(none.positions, wanted, frames, size)) if wanted.any() else none
        leading = {
            path: [
                lead_frames(before[path][step], frames, int(block.leads[step]), self._zeros, stacked=path in stacked)
                for step in np.flatnonzero(block.leads).tolist()
            ]
            for path in self._schema.obs
        }
        for path in stacked:
            before[path], after[path] = before[path][:, -1], after[path][:, -1]
        return block, leading

    def _stacked(self, obs: dict[str, Array]) -> list[str]:
        """Return the observations, (n, ...), that are stacks."""
        if self._stack == 1:
            return []
        return [path for path in self._schema.obs if obs[path].ndim > len(self._schema[path].shape) + 1]

    @property
    def _reward(self) -> str:
        return next(path for path in self._schema.step if path.split("/")[0] == "reward")

    def _follow_on(
        self, before: dict[str, Array], after: dict[str, Array], told: Bools | None, running_before: Bools, env: int
    ) -> tuple[Bools, dict[str, Bools]]:
        """Tell which steps start at the observation that the one before led to, the first one at the stream's newest.

        `told` tells which do not, where the caller knows. Returns, too, which steps' stacks move on by one frame, by their path.
        """
        n = len(next(iter(before.values()))) if before else 0
        if not before:
            raise InputError("extend needs obs, in a store that has observations")
        same, stacks = np.ones(n, np.bool_), self._stacked(before)
        rolls = dict[str, Bools]()
        for path, obs in before.items():
            stacked = path in stacks
            if stacked:
                goes_on, rolls[path] = same_stacks(obs, after[path])
                same &= goes_on
            else:
                same[1:] &= same_rows(obs[1:], after[path][:-1])
            if self._index.heads[env] < 0 or self._rows.cut[env]:
                same[0] = False
            else:
                newest, first = self._newest(path, env)[env], obs[:1]
                if stacked and self._schema[path].is_lossy:  # frames before the newest may have lost something
                    first, stacked = first[:, -1], False
                same[0] &= same_rows(first, newest[None] if stacked else newest[None, -1])[0]
        if told is not None:  # by the caller, but for what comes after an episode's end, which cannot go on
            told_same = ~told
            told_same[0] &= bool(self._index.heads[env] >= 0 and not self._rows.cut[env])
            same = np.where(running_before, told_same, same & told_same)
        return same, rolls

    def _write(
        self,
        block: Block,
        columns: dict[str, Array],
        before: dict[str, Array],
        after: dict[str, Array],
        leading: dict[str, list[Array]],
        final: dict[str, Array],
        env: int,
    ) -> None:
        """Write a block's rows, and behind them those of a stack that is `final`, each of which is an episode of its own."""
        rows = {path: block.values(array) for path, array in columns.items()}
        rows |= {path: block.observations(before[path], after[path], leading[path]) for path in self._schema.obs}
        rows["is_last"], leads, first = block.flags(cut=not block.goes_on[0])
        rows["truncated"] |= leads
        rows["terminated"] |= first
        starts = block.starts
        if final:
            rows["is_last"][-1] = True
            nothing = {path: np.zeros((self._stack, *array.shape[1:]), array.dtype) for path, array in rows.items()}
            nothing["is_last"][:] = True
            nothing["terminated"][:-1] = True  # and not truncated, as rows of a lead-in are
            for path, stack in final.items():
                nothing[path][:] = stack
            rows = {path: np.concatenate([array, nothing[path]]) for path, array in rows.items()}
            starts = np.concatenate([starts, block.new_head + 1 + np.arange(self._stack)])
        self._rows.append(env, block.head, rows, starts, block.lead_ins)


def _is_given(obs: Any) -> bool:
    return bool(flatten({"next_obs": obs}))


def _refuse_an_end_within(columns: Mapping[str, Array]) -> None:
    """Refuse flags at any step of a trajectory but its last: the observation that ended an episode is not among those given."""
    for flag in ("terminated", "truncated"):
        within = np.flatnonzero(columns[flag][:-1])
        if len(within):
            raise InputError(
                f"{flag} is True at step {within[0]} of {len(columns[flag])}, and without next_obs the arrays are one trajectory,"
                " which may end with its last step only: the observation that ended an episode is not among those given. Give"
                " next_obs, or each episode in a call of its own"
            )
