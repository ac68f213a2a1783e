"""What `ReplayBuffer.add` and `extend` do under the lock, from what users give to committed rows."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import is_tensor
from diskbuffer.errors import NOT_OF_ARGUMENTS, InputError, StackError
from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.native.recording import DOES_NOT_ROLL, HAS_PROBLEM, MISFIT, NEEDS_ROOM, NOT_FINITE, BlockRecorder
from diskbuffer.recording.blocks import Axes, Blocks, Slot, on_host
from diskbuffer.recording.cut_offs import CutOffs
from diskbuffer.recording.final_obs import FinalObservations
from diskbuffer.recording.pictures import Pictures
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.recording.values import flags, refuse_nonfinite, shape_of
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.schema.schema import CHECKSUM, Schema
from diskbuffer.store.format.layout import NEXT_STEP, SAME_STEP, Layout

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
_AT_ONCE = 32 * 1024**2  # bytes of a column that are recorded without looking whether Ctrl-C was pressed
_LOOK_SECONDS = 1.0  # after which it is looked again whether the store is still at its path
_OBSERVATION, _STEP, _IS_LAST, _CHECKSUM = range(4)  # roles of `recording.hpp`


class Recorder:
    """Turn steps into rows of a store that is open for writing. The store's lock must be held in every call.

    Parameters
    ----------
    layout : Layout
        Of the store, with the frame stack, the padding and the autoreset mode of the steps that are given.
    log : StreamLog
    index : Index
        Prepared up to date with every row.
    newest : callable
        ``newest(path, only)`` returns the stack (streams, frame_stack, ...) that each stream ends with, or `only` that one.

    Attributes
    ----------
    log : StreamLog
    cut_offs : CutOffs
        How many episodes ended without a flag.
    """

    def __init__(self, layout: Layout, log: StreamLog, index: Index, newest: Callable[..., Array]) -> None:
        self._layout, self._schema, self.log, self._index, self._newest = layout, layout.schema.recorded, log, index, newest
        self.cut_offs, self._added_before = CutOffs(), log.added
        self._environments = layout.streams
        pictures = Pictures(self._schema, layout.streams)
        self._pictures = pictures if pictures else None
        self._blocks = Blocks(self._schema, layout.frame_stack)
        self._native = _native(layout, self._schema, self._blocks.slots, log, index)
        self._axes = Axes((layout.streams,), layout.streams == 1)  # of a single step
        self._final_obs = (
            FinalObservations(self._blocks, self._axes, layout.frame_stack) if layout.autoreset == SAME_STEP else None
        )
        self._is_single = False  # whether the native recorder expects single steps
        self._look_at = 0.0
        self._is_declared = False  # whether the caller says which steps start an episode
        self._most_steps = max(256, _AT_ONCE // max(self._schema[path].row_bytes for path in self._schema))

    # One step of every stream

    def add(
        self, obs: Any, next_obs: Any, step: tuple[Any, ...], more: dict[str, Any], info: Any, new_episode: Any = None
    ) -> int:
        """Record a step of every stream; return how many there were, as reset steps are none.

        `step` has action, reward, terminated and truncated, `more` all other columns.
        """
        if self.cut_offs.due:
            self.cut_offs.warn_if_due()
        if monotonic() >= self._look_at:
            self._look()
        declared = None if new_episode is None else self._declared(new_episode, self._axes.shape, self._environments)
        self._is_declared = declared is not None
        if self._final_obs is not None:
            next_obs = self._final_obs.in_place_of(next_obs, info, step[2:], obs)
        if self._pictures is not None:
            obs, next_obs = self._pictures.of_step(obs, next_obs)
        values = self._blocks.of_step(obs, next_obs, step, more)
        if not self._is_single:
            self._native.begin(None, 0, self._environments, True)
            self._is_single = True
        while (code := self._record(values, declared, 1)) <= MISFIT:
            values = self._fit_step(values, MISFIT - code)
        return code

    @staticmethod
    def _declared(new_episode: Any, shape: tuple[int, ...], count: int) -> bool | Array:
        """Return which steps of a block start an episode, (steps, environments); or one flag, of the first: the others go on."""
        if type(new_episode) is bool:
            return new_episode
        given = flags("new_episode", new_episode, shape)
        return given.view(np.uint8).reshape(given.size // count, count) if np.ndim(new_episode) else bool(new_episode)

    def _record(self, values: tuple[Any, ...], declared: bool | Array | None, most: int) -> int:
        """Record values that need no conversion; return how many steps there were, or `MISFIT` and below for others.

        `most` steps are recorded at once, without looking whether Ctrl-C was pressed.
        """
        native = self._native
        try:
            while (code := native.add(values, declared, most)) == HAS_PROBLEM:
                self._solve()
            return self._recorded(code) if code >= 0 else self._commit(most) if code == NEEDS_ROOM else code
        except BaseException as error:
            if not isinstance(error, InputError) or isinstance(error, NOT_OF_ARGUMENTS):
                with Uninterrupted():
                    self._take_stock()
            raise

    def _fit_step(self, values: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        """Have a value of a single step converted; of fewer environments, the error says who takes them."""
        try:
            return self._fit(values, number, self._axes)
        except InputError as error:
            if error.advice or number >= len(values) or not 0 < next(iter(shape_of(values[number])), 0) < self._environments:
                raise
            raise error.advising(
                f"add takes a step of all {self._environments} environments at once; extend(..., env=N) takes steps of one"
            ) from None

    def _fit(self, values: tuple[Any, ...], number: int, axes: Axes) -> tuple[Any, ...]:
        """Convert the value that native code did not take, by its number."""
        slots = self._blocks.slots
        if number >= len(slots):
            path = tuple(self._schema)[number - len(slots)]
            raise InputError(f"{path} and next_{path} must both be single frames, or both stacks")
        if is_tensor(values[number]):  # then others may be on a device, too, and are copied together
            values = on_host(values)
        return (*values[:number], self._blocks.fit(slots[number], values[number], axes), *values[number + 1 :])

    def _solve(self) -> None:
        """Look up what native code has to know of the stacks that streams end with, or raise what is wrong with a block."""
        (first, count), are_steps = self._native.part, not self._is_single
        kind, column, step, env, is_after = self._native.problem
        path = tuple(self._schema)[column]
        if kind == NOT_FINITE:
            refuse_nonfinite(Slot(path, is_after).name)
        if kind == DOES_NOT_ROLL:
            whose = f" of environment {env}" if count > 1 or not are_steps else ""
            newest = self._index.table[first + env]
            if step == 0 and newest[HEAD] >= 0 and newest[ENDED] and self._layout.autoreset != NEXT_STEP:
                _refuse_reset(f"{path}{whose}")
            self._refuse_stack(f"{path}{f' of step {step} of the arrays' if are_steps else ''}{whose}")
        stacks = self._newest(path, first if count == 1 else None)
        for stream in range(first, first + count):
            if self._index.heads[stream] >= 0:
                stack = np.ascontiguousarray(stacks[stream]).reshape(-1).view(np.uint8)
                self._native.put_newest_stack(column, stream, stack, self._schema[path].is_lossy)

    def _refuse_stack(self, what: str) -> NoReturn:
        stack = self._layout.frame_stack
        raise StackError(
            f"{what}: expected a rolling stack of {stack} frames, but next_obs is not obs moved on by one frame, so that they "
            "cannot be stored as single frames. If each observation is as it should be, make a store at another path with "
            "frame_stack=1, which holds them whole"
        )

    def _look(self) -> None:
        """Raise a NotAStoreError where the store was moved or removed: what was added would be lost without a word."""
        self.log.require_place()
        self._look_at = monotonic() + _LOOK_SECONDS

    # Many steps

    def extend(self, values: dict[str, Any], obs: Any, next_obs: Any, stream: int | None, new_episode: Any = None) -> int:
        """Record arrays of steps of one stream, or of all environments; return how many there were, as reset steps are none."""
        if self.cut_offs.due:
            self.cut_offs.warn_if_due()
        if monotonic() >= self._look_at:
            self._look()
        envs = self._environments if stream is None and self._environments > 1 else None
        if self._pictures is not None:
            obs, next_obs = self._pictures.of_steps(obs, next_obs, 1 if envs is None else envs)
        arrays = self._blocks.of_arrays(obs, next_obs, values, envs)
        if arrays is not None and (code := self._record_block(*arrays, stream, new_episode)) >= 0:
            return code
        columns, axes = self._blocks.of_steps(obs, next_obs, values, envs)
        if axes.shape[0] == 0:
            for number in range(len(columns)):
                self._fit(columns, number, axes)
        while (code := self._record_block(columns, axes.shape, stream, new_episode)) <= MISFIT:
            columns = self._fit(columns, MISFIT - code, axes)
        return code

    def _record_block(self, columns: tuple[Any, ...], shape: tuple[int, ...], stream: int | None, new_episode: Any) -> int:
        """Record arrays of steps that need no conversion, (steps,) or (steps, environments); return what `_record` does."""
        steps, count, self._is_single = shape[0], shape[-1] if len(shape) > 1 else 1, False
        declared = None if new_episode is None else self._declared(new_episode, shape, count)
        self._is_declared = declared is not None
        if steps == 0:
            return 0
        self._native.begin(steps, stream or 0, count, len(shape) > 1)
        return self._record(columns, declared, self._most_steps // count or 1)

    def _commit(self, most: int) -> int:
        """Commit what is left of a block, so many steps before it looks for a Ctrl-C; return how many were recorded."""
        native, recorded, is_done = self._native, 0, False
        while not is_done:
            with Uninterrupted():
                until = min(native.steps, native.done + most)
                while not (is_done := native.commit(until)) and (native.done < until or until == native.steps):
                    recorded += self._note_rows()
                    self.log.make_room(native.coming())
                recorded += self._note_rows()
        return recorded

    # What follows

    def _recorded(self, code: int) -> int:
        """Note what was committed at once, where a signal may come at any instant; return how many steps that were."""
        if code & 3:
            with Uninterrupted():
                self._note(code)
        else:
            self.log.added += code >> 2
        return code >> 2

    def _note_rows(self) -> int:
        """Note what was committed, and evict what is too old now; return how many steps that were."""
        return self._note(self._native.finish())

    def _note(self, code: int) -> int:
        """Note what was committed, as `finish` tells it; return how many steps that were."""
        self.log.added += code >> 2
        is_due = bool(code & 2)
        if code & 1 and self._note_starts():
            is_due = self.log.retention.give_up()
        if is_due:
            self.log.evict()
        return code >> 2

    def _note_starts(self) -> bool:
        """Note in the index the episodes that were started, and are not there yet; return whether there were any."""
        starts, cut_offs = self._native.take_starts()
        self.cut_offs.note(cut_offs, self.log.added - self._added_before, requested=self._is_declared)
        for stream in sorted(set(starts[:, 0].tolist())):  # `np.unique` imports numpy.ma, of 7 MB
            begun = starts[starts[:, 0] == stream]
            self._index.start_episodes(stream, begun[:, 1])
            self._index.add_prefixes(stream, begun[begun[:, 2] >= 0, 1:])
        return len(starts) > 0

    def _take_stock(self) -> None:
        """After a Ctrl-C or an error at any instant: if a step was recorded, note what follows from it."""
        self._native.finish()
        self.log.count()
        self._note_starts()
        self._native.forget()
        self.log.retention.give_up()

    def cut_off(self, streams: Int64) -> None:
        """End the running episodes of some streams, (n,), and have their next step start one, whatever its observation."""
        self.cut_offs.requested += self._native.cut_off(streams)

    def clear(self) -> None:
        """Drop every step. Episodes that run are cut off; what comes next starts others."""
        table = self._index.table
        self.cut_off(np.flatnonzero((table[:, HEAD] >= 0) & (table[:, ENDED] == 0)))
        self.log.clear()


def _native(layout: Layout, schema: Schema, slots: tuple[Slot, ...], log: StreamLog, index: Index) -> BlockRecorder:
    """Return what records blocks in native code, which writes to the open segments and the tail."""
    number = {path: n for n, path in enumerate(schema)}
    columns = np.zeros((len(number), 5), np.int64)
    for path, n in number.items():
        column, role = schema[path], _STEP
        if path in schema.obs:
            role = _OBSERVATION
        elif path in ("is_last", CHECKSUM):
            role = _IS_LAST if path == "is_last" else _CHECKSUM
        dtype, cycle = column.np_dtype, layout.tail_rows if path in layout.packed else 0
        number_bytes = {"f": dtype.itemsize, "c": dtype.itemsize // 2}.get(dtype.kind, 0)
        columns[n] = role, column.row_bytes, number_bytes, number_bytes > 0 and not column.allow_nan and role < _IS_LAST, cycle
    reward = next(path for path in schema.step if path.split("/")[0] == "reward")
    return BlockRecorder(
        columns,
        [
            (number[slot.path], slot.is_after, np.dtype(schema[slot.path].np_dtype.type), schema[slot.path].shape)
            for slot in slots
        ],
        (number["terminated"], number["truncated"], number[reward]),
        index.table,
        log.limits,
        log.places,
        log.retention,
        frame_stack=layout.frame_stack,
        next_step=layout.autoreset == NEXT_STEP,
        fills_zeros=layout.padding == "zeros",
    )


def _refuse_reset(what: str) -> NoReturn:
    raise StackError(
        f"{what}: expected the first step of an episode, as the one before had ended, but next_obs is not obs moved on by one "
        "frame: probably it is the reset of an environment in next-step mode, whose obs is the last one of the episode before. "
        "That row is no step: leave it out; or give ReplayBuffer autoreset='next_step', which does so; or make the environments "
        "with autoreset_mode=AutoresetMode.SAME_STEP, and add their final observations"
    )
