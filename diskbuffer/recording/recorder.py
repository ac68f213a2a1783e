"""What `ReplayBuffer.add` does under the lock, from what users give to committed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import int64

from diskbuffer.errors import InputError
from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.index.streams import NO_LEADS
from diskbuffer.native import objects
from diskbuffer.native.arrays import address_of
from diskbuffer.native.compiling import entry_point
from diskbuffer.nested import flatten, one_of, put
from diskbuffer.recording import kernel
from diskbuffer.recording.blocks import lead_frames, lead_rows
from diskbuffer.recording.cut_offs import CutOffs
from diskbuffer.recording.flat_steps import FlatSteps
from diskbuffer.recording.given import EVERY_STEP, Given, record_given
from diskbuffer.recording.pictures import Pictures
from diskbuffer.recording.row_writer import RowWriter
from diskbuffer.recording.staging import Prepared, Staging, Told
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.recording.trajectories import Trajectories
from diskbuffer.recording.values import check_names, flags
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.store.format.layout import NEXT_STEP, SAME_STEP, Layout

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


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
    cut_offs : CutOffs
        How many episodes ended without a flag.
    flat : FlatSteps or None
        What `record_from` can be called for, where there is something.
    """

    def __init__(self, layout: Layout, log: StreamLog, index: Index, newest: Callable[..., Array]) -> None:
        self._layout, self._schema, self._log, self._index = layout, layout.schema.recorded, log, index
        self._envs = slice(layout.n_envs)  # the streams that `add` writes
        self._stack, self._zeros = layout.frame_stack, layout.padding == "zeros"
        self._segments, tails = log.writer.segments, log.writer.tail.addresses

        def given(path: str, only: int | None = None) -> Array:
            """Return the newest frames, as they were given, where a shard has others by now: what failed is taken back first."""
            log.writer.settle()
            return newest(path, only)

        def newest_frame(path: str) -> Array:
            """Return the last of these; of a flat column out of the open segments, without a plan: in a tenth of the time."""
            if path in layout.chunks_of:
                return given(path)[: layout.n_envs, -1]
            found = np.zeros((layout.n_envs, *layout.schema[path].shape), layout.schema[path].np_dtype)
            for stream, head in enumerate(index.heads[: layout.n_envs].tolist()):
                if head >= 0:
                    found[stream] = log.writer.segments.flat(path, stream, head)[head % layout.segment_rows]
            return found

        self._staging = Staging(
            self._schema, layout.n_envs, self._stack, self._zeros, tails, lambda path: given(path)[: layout.n_envs], newest_frame
        )
        self.cut_offs = CutOffs()
        self._rows = RowWriter(layout, log, index, self.cut_offs)
        self.flat: FlatSteps | None = None
        if not layout.packed:
            self.flat = FlatSteps(layout, log, index, self.cut_offs, self._rows.cut, self._staging.sources, self._staging.flags)
        self._trajectories = Trajectories(layout, index, self._rows, self.cut_offs, given, self.flat)
        pictures = Pictures(self._schema, layout.n_envs)
        self._pictures = pictures if pictures else None
        self._leads: dict[int, tuple[int, int]] = {}  # by stream: lead-ins that are written, and whose episodes are to come
        self._events = np.zeros((layout.streams, 2), np.int64)
        self._next_step, self._same_step = layout.autoreset == NEXT_STEP, layout.autoreset == SAME_STEP
        self._crowded = True
        self._cut = self._rows.cut[self._envs].view(np.int8)
        self._cut_address = address_of(self._cut)
        self._scratch = np.zeros(2 * kernel.step_bytes(self._staging.sources), np.uint8)
        self._go_on_all = np.full(layout.n_envs, kernel.GO_ON, np.int8)
        self._arrays: dict[int, Array] = {
            kernel.TABLE: index.table,
            kernel.SOURCES: self._staging.sources,
            kernel.FLAGS: self._staging.flags,
            kernel.BASES: self._segments.bases,
            kernel.LENGTHS: self._segments.lengths,
            kernel.LIMITS: log.limits,
            kernel.EVENTS: self._events,
            kernel.SCRATCH: self._scratch,
            kernel.GO_ON_ALL: self._go_on_all,
        }  # which stay where they are
        numbers = (layout.n_envs, layout.streams, len(self._schema), layout.segment_rows, layout.tail_rows, layout.salt)
        self._job = np.zeros(kernel.JOB_FIELDS, np.int64)
        self._job[: kernel.TABLE] = *numbers, self._next_step, len(self._scratch) // 2
        self._job[list(self._arrays)] = [array.ctypes.data for array in self._arrays.values()]
        # The same for values that are read where the caller has them.
        self._in_place = self._staging.sources.copy()
        self._given = Given(self._schema, layout.n_envs, self._in_place, self._staging.stacks, self._stack)
        self._job_in_place = self._job.copy()
        self._job_in_place[[kernel.SOURCES, kernel.GIVEN]] = self._in_place.ctypes.data, self._given.table.ctypes.data
        self._at_job, self._at_job_in_place = address_of(self._job), address_of(self._job_in_place)
        self._record_given = None if objects.TUPLE_ITEMS == 0 else entry_point(record_given, int64, int64, int64)

    # One step of every stream

    def add(
        self, obs: Any, next_obs: Any, step: tuple[Any, ...], more: dict[str, Any], info: Any, new_episode: Any = None
    ) -> int:
        """Record a step of every stream; return how many there were, as reset steps are none.

        `step` has action, reward, terminated and truncated, `more` all other columns.
        """
        self.cut_offs.warn_if_due()
        told = self._cut if new_episode is None else self._told(new_episode)
        if not self._same_step:
            if self._pictures is not None:
                obs, next_obs = self._pictures.of_step(obs, next_obs)
            added = self._add_in_place(obs, next_obs, step, more, told)
            if added >= 0:
                return added
        return self._add_staged(obs, next_obs, dict(zip(EVERY_STEP, step, strict=True)) | more, info, told)

    def add_as_given(self, obs: Any, next_obs: Any, step: tuple[Any, ...], more: dict[str, Any]) -> int:
        """Do as `add` where that takes no conversion; if it does, or there is something to warn of, nothing, and return -1."""
        if self._same_step or self._pictures is not None or self.cut_offs.due:
            return -1
        return self._add_in_place(obs, next_obs, step, more, self._cut)

    def _add_in_place(self, obs: Any, next_obs: Any, step: tuple[Any, ...], more: dict[str, Any], told: Told) -> int:
        given = self._given.pick(obs, next_obs, step, more)
        if given is None:
            return -1
        try:
            return self._record_in_place(told, given)
        except BaseException:
            with Uninterrupted():
                self._take_stock()
            raise

    def _add_staged(self, obs: Any, next_obs: Any, values: dict[str, Any], info: Any, told: Told) -> int:
        """Record what is to be checked column by column."""
        staging = self._staging
        staging.put_values(values)
        if self._same_step:
            next_obs = self._with_final_obs(next_obs, info, staging.ended())
            if self._pictures is not None:
                obs, next_obs = self._pictures.of_step(obs, next_obs)
        told, leads, kept = staging.put_observations(obs, next_obs, self._running, told)
        try:
            if leads is not None:
                with Uninterrupted():
                    self._put_leads(np.flatnonzero(leads).tolist(), kept)
                    return self._record(told, kept)
            return self._record(told, kept)
        except BaseException:
            with Uninterrupted():
                self._take_stock()
            raise

    def _told(self, new_episode: Any) -> Told:
        """Return how a step of every stream begins, as `kernel.record` takes it; `cut_off` comes first."""
        envs = self._layout.n_envs
        goes_on = np.where(self._index.table[self._envs, ENDED] != 0, kernel.COMPARE, kernel.GO_ON)  # or it cannot
        told = np.where(flags("new_episode", new_episode, envs), kernel.START, goes_on)
        return np.where(self._rows.cut[self._envs], kernel.START, told).astype(np.int8)

    def _put_leads(self, streams: list[int], kept: Prepared) -> None:
        """Write lead-ins in some streams, for the episodes that start there with the next step."""
        for stream in streams:
            head = int(self._index.heads[stream])
            cut = head >= 0 and not self._index.table[stream, ENDED]
            frames = self._stack - 1
            n = int(lead_rows(np.array([head + 1]), np.ones(1, np.bool_), frames, self._layout.segment_rows)[0])
            rows = {}
            for path in self._schema.step:
                rows[path] = np.zeros((n + 1, *self._schema[path].shape), self._schema[path].np_dtype)
            for path, stacked, _, now in kept:
                shape = (self._layout.n_envs, *((self._stack,) if stacked else ()), *self._schema[path].shape)
                given = now.reshape(shape)[stream]
                rows[path] = np.concatenate(
                    [
                        np.zeros((1, *self._schema[path].shape), now.dtype),
                        lead_frames(given, frames, n, self._zeros, stacked=stacked),
                    ]
                )
            rows["is_last"] = np.ones(n + 1, np.bool_)
            rows["truncated"][1:], rows["terminated"][1] = True, True
            self._leads[stream] = head + 1 + n, head + 1
            self._forget_what_is_prepared()
            self._rows.append(stream, head, rows, np.arange(head + 1, head + 1 + n), NO_LEADS)
            if cut:
                self.cut_offs.note(1)

    def _record_in_place(self, told: Told, given: tuple[Any, ...]) -> int:
        """Record values where the caller has them, if they are as the columns hold them; if not, nothing, and return -1."""
        if self._crowded:
            self._make_room()
        assert self._record_given is not None
        at = self._cut_address if told is self._cut else address_of(told)
        code = self._record_given(self._at_job_in_place, id(given), at)
        return -1 if code < 0 else self._recorded(code)  # others, or NaN

    def _make_room(self) -> None:
        with Uninterrupted():
            self._log.make_room()
            self._crowded = False

    def _record(self, told: Told, kept: Prepared) -> int:
        if self._crowded:
            self._make_room()
        code = kernel.record(self._at_job, address_of(told))
        if code < 0:
            self._staging.refuse_nan(-1 - code, kept)
        self._staging.recorded(kept, told)
        return self._recorded(code)

    def _recorded(self, code: int) -> int:
        """Note what `kernel.record` did; return how many steps that were."""
        if code & 1:
            self._crowded = True
        if code & 2:
            with Uninterrupted():
                self._note_starts()
        steps, log = code >> 2, self._log
        log.added += steps
        self.cut_offs.steps += steps
        if log.added >= log.retention.look_at:
            with Uninterrupted():
                log.evict()
        return steps

    def _note_starts(self) -> None:
        """Have the index know of the episodes that the last step started."""
        for stream in np.flatnonzero(self._events[:, 0] >= kernel.STARTED).tolist():
            position = int(self._events[stream, 1])
            self._index.start_episode(stream, position)
            lead = self._leads.pop(stream, None)
            if lead is not None:
                self._index.add_leads(stream, np.array([lead], np.int64))
            self._rows.cut[stream] = False
        self.cut_offs.note(int((self._events[:, 0] == kernel.CUT_OFF).sum()))
        self._events[:, 0] = kernel.WENT_ON

    def _take_stock(self) -> None:
        """After a Ctrl-C or an error at any instant: if a step was recorded, note what follows from it."""
        self._note_starts()
        for stream in self._leads:  # written, and then no episode came to be
            self._rows.undo_newest(stream)
        self._leads.clear()
        self._log.count()
        self._forget_what_is_prepared()

    def _forget_what_is_prepared(self) -> None:
        """Make room and compare anew at the next step, as rows are written in another way."""
        self._staging.forget()
        self._crowded = True

    def _running(self) -> tuple[Bools, Bools]:
        """Return which streams have an episode that is not over, and in which a reset step may come, as one is."""
        table = self._index.table[self._envs]
        ended = table[:, ENDED] != 0
        return (table[:, HEAD] >= 0) & ~ended, ended & self._next_step

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
        """Record arrays of steps of one stream; return how many there were.

        `cut` makes them episodes of their own, and with `any_stack` the last may lead to any stack.
        """
        self._forget_what_is_prepared()
        if self._pictures is not None:
            obs, next_obs = self._pictures.of_steps(obs, next_obs)
        return self._trajectories.extend(values, obs, next_obs, env, new_episode, cut=cut, any_stack=any_stack)

    def record_from(self, places: npt.NDArray[np.int64], n: int, stream: int) -> npt.NDArray[np.int64]:
        """Record `n` steps of one stream, whose values lie at `places`; return their positions. See `FlatSteps.record`."""
        assert self.flat is not None
        self.cut_offs.warn_if_due()
        self._forget_what_is_prepared()
        with Uninterrupted():
            return self.flat.record(places, n, stream)

    def newest_step(self, stream: int) -> int:
        """Return the position of a stream's newest step."""
        return int(self._index.heads[stream]) - 1

    def cut_off(self, streams: Iterable[int]) -> None:
        """End the running episodes of some streams, and have their next step start one, whatever its observation."""
        for stream in streams:
            self._rows.cut_off(stream)

    def clear(self, *, protected: bool) -> None:
        """Drop every step. Episodes that run are cut off; what comes next starts others."""
        table = self._index.table
        streams = range(self._layout.streams if protected else self._layout.n_envs)
        self.cut_off(s for s in streams if table[s, HEAD] >= 0 and not table[s, ENDED])
        self._log.clear(streams)

    def _with_final_obs(self, next_obs: Any, info: Any, ended: Bools) -> Any:
        """Put the observations that ended episodes in place of those that the environments were reset to."""
        if not ended.any():
            return next_obs
        final, found = _final_obs(info, ended), flatten({"next_obs": next_obs})
        replaced = {path: np.array(value) for path, value in found.items()}
        for env in np.flatnonzero(ended).tolist():
            last = flatten({"next_obs": one_of(final, env)})
            check_names(last, found)
            for path, value in last.items():
                replaced[path][env] = value
        nested: dict[str, Any] = {}
        for path, value in replaced.items():
            put(nested, path, value)
        return nested["next_obs"]


def _final_obs(info: Any, ended: Bools) -> Any:
    """Return the observations that ended episodes, as Gymnasium's vectors have them, or those of Stable-Baselines3."""
    if isinstance(info, dict) and "final_obs" in info:
        return info["final_obs"]
    if isinstance(info, list | tuple) and len(info) == len(ended):
        found = [each.get("terminal_observation") if isinstance(each, dict) else None for each in info]
        if all(found[env] is not None for env in np.flatnonzero(ended)):
            return found
    raise InputError(
        "this buffer's environments reset in the same step (AutoresetMode.SAME_STEP): next_obs is then the next "
        "episode's first observation, and the real last one is in the info of step(). Give it: add(..., info=info)"
    )
