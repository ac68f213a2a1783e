"""What `ReplayBuffer.add` and `extend` do under the lock, from what users give to committed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index import ENDED, HEAD, Index
from diskbuffer.recording import steps
from diskbuffer.recording.bulk import Block, check_stacks, same_rows
from diskbuffer.recording.inputs import check_names, fit, flatten, shape_of
from diskbuffer.recording.interrupts import Uninterrupted
from diskbuffer.recording.log import Log
from diskbuffer.recording.staging import Kept, Staging
from diskbuffer.schema import CHECKSUM
from diskbuffer.store.checksums import NOT_YET, OBS, STEP, row_checksums
from diskbuffer.store.store import Store

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
NEXT_STEP, SAME_STEP, DISABLED = "next_step", "same_step", "disabled"
_BLOCK_BYTES = 32 * 1024**2  # of a column that `extend` puts together at a time


class Recorder:
    """Turn steps into rows of a store that is open for writing. The store's lock must be held in every call.

    Parameters
    ----------
    store : Store
    index : Index
        Kept up with every row.
    frame_stack, zeros
        Of stacks that are given: how many frames, and whether an episode's first is filled up with zeros.
    autoreset : {"next_step", "same_step", "disabled"}
        How vector environments go on after an episode's end.
    newest : callable
        ``newest(path)`` returns the stack (streams, frame_stack, ...) that each stream ends with.
    """

    def __init__(
        self, store: Store, index: Index, frame_stack: int, zeros: bool, autoreset: str, newest: Callable[[str], Array]
    ) -> None:
        layout = store.layout
        self._layout, self._schema, self._index, self._newest = layout, layout.schema.recorded, index, newest
        self._envs = slice(layout.n_envs)  # the streams that `add` writes
        self._stack, self._zeros = frame_stack, zeros
        self.log = Log(store, index)
        tails = self.log.writer.tails
        self._staging = Staging(
            self._schema, layout.n_envs, frame_stack, self._zeros, tails, lambda path: newest(path)[: layout.n_envs]
        )
        self._cut = np.zeros(layout.streams, np.bool_)
        self._events = np.zeros((layout.streams, 2), np.int64)
        self._next_step, self._same_step = autoreset == NEXT_STEP, autoreset == SAME_STEP
        self._crowded = True

    # One step of every stream

    def add(self, obs: Any, next_obs: Any, values: dict[str, Any], info: Any) -> int:
        """Record a step of every stream; return how many there were, as reset steps are none."""
        staging = self._staging
        staging.put_values(values)
        if self._same_step:
            next_obs = self._with_final_obs(next_obs, info, staging.ended())
        cut, kept = staging.put_observations(obs, next_obs, self._running, self._cut[self._envs])
        try:
            return self._record(cut, kept)
        except BaseException:
            with Uninterrupted():
                self._take_stock()
            raise

    def _record(self, cut: Bools, kept: Kept) -> int:
        staging, table = self._staging, self._index.table[self._envs]
        if self._crowded:
            with Uninterrupted():
                self.log.make_room()
        code = steps.record(
            table,
            staging.sources,
            staging.flags,
            self.log.writer.bases,
            self.log.writer.lengths,
            self.log.limits,
            self._layout.segment_rows,
            self._layout.tail_rows,
            self._layout.salt,
            self._next_step,
            cut,
            self._events,
        )
        self._crowded = bool(code & 1)
        if code & 2:
            with Uninterrupted():
                self._note_starts()
        staging.recorded(kept)
        self.log.added += code >> 2
        if self.log.added >= self.log.retention.look_at:
            with Uninterrupted():
                self.log.evict()
        return int(code >> 2)

    def _note_starts(self) -> None:
        """Have the index know of the episodes that the last step started."""
        for stream in np.flatnonzero(self._events[:, 0] == steps.STARTED).tolist():
            self._index.start_episode(stream, int(self._events[stream, 1]))
            self._cut[stream] = False
        self._events[:, 0] = steps.WENT_ON

    def _take_stock(self) -> None:
        """After a Ctrl-C or an error at any instant: if a step was recorded, note what follows from it."""
        self._note_starts()
        self.log.count()
        self._staging.forget()
        self._crowded = True

    def _running(self) -> tuple[Bools, Bools]:
        """Return which streams have an episode that is not over, and in which a reset step may come, as one is."""
        table = self._index.table[self._envs]
        ended = table[:, ENDED] != 0
        return (table[:, HEAD] >= 0) & ~ended, ended & self._next_step

    def cut_off(self, streams: Iterable[int]) -> None:
        """End the running episodes of some streams, and have their next step start one, whatever its observation."""
        table = self._index.table
        for stream in streams:
            head = int(table[stream, HEAD])
            if head >= 0 and not table[stream, ENDED]:
                nothing = {
                    path: np.zeros((1, *self._schema[path].shape), self._schema[path].np_dtype) for path in self._schema.step
                }
                self._put_last(stream, head, nothing | {"is_last": np.ones(1, np.bool_)})
                table[stream, ENDED] = 1
            self._cut[stream] = True

    def _with_final_obs(self, next_obs: Any, info: Any, ended: Bools) -> Any:
        """Put the observations that ended episodes in place of those that the environments were reset to."""
        if not ended.any():
            return next_obs
        if not isinstance(info, dict) or "final_obs" not in info:
            raise InputError(
                "this buffer's environments reset in the same step (AutoresetMode.SAME_STEP): next_obs is then the next "
                "episode's first observation, and the real last one is in the info of step(). Give it: add(..., info=info)"
            )
        final, found = info["final_obs"], flatten({"next_obs": next_obs})
        replaced = {path: np.array(value) for path, value in found.items()}
        for env in np.flatnonzero(ended).tolist():
            last = flatten({"next_obs": final[env]} if not isinstance(final, dict) else {"next_obs": _item(final, env)})
            check_names(last, found)
            for path, value in last.items():
                replaced[path][env] = value
        return _nest(replaced)["next_obs"]

    # Many steps of one stream

    def extend(self, values: dict[str, Any], obs: Any, next_obs: Any, env: int, *, cut: bool = False) -> int:
        """Record arrays of steps; return how many there were. `cut` starts an episode. See `ReplayBuffer.extend`."""
        columns = self._fit_steps(values)
        n = len(columns["terminated"])
        before, after = self._fit_observations(obs, next_obs, n)
        if n == 0:
            return 0
        if cut:
            self.cut_off([env])
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
                    env,
                )
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

    def _extend_block(self, columns: dict[str, Array], before: dict[str, Array], after: dict[str, Array], env: int) -> int:
        ended = columns["terminated"] | columns["truncated"]
        same = self._follow_on(before, after, env)
        running_before = np.append(self._index.table[env, ENDED] == 0, ~ended[:-1])
        if self._next_step:
            idle = ~ended & (columns[self._reward].reshape(len(ended), -1) == 0).all(axis=1)
            keep = ~(same & ~running_before & idle)
            if not keep.all():  # resets of a vector environment
                columns, before, after = ({p: a[keep] for p, a in d.items()} for d in (columns, before, after))
                ended = ended[keep]
                if not len(ended):
                    return 0
                same = self._follow_on(before, after, env)
                running_before = np.append(self._index.table[env, ENDED] == 0, ~ended[:-1])
        goes_on = same & running_before
        for path in self._schema.obs:
            if before[path].ndim > len(self._schema[path].shape) + 1:
                check_stacks(path, before[path], after[path], goes_on, self._zeros)
                before[path], after[path] = before[path][:, -1], after[path][:, -1]
        self._write(Block(int(self._index.heads[env]), goes_on, ended), columns, before, after, env)
        self._cut[env] = False
        return len(ended)

    @property
    def _reward(self) -> str:
        return next(path for path in self._schema.step if path.split("/")[0] == "reward")

    def _follow_on(self, before: dict[str, Array], after: dict[str, Array], env: int) -> Bools:
        """Tell which steps start at the observation that the one before led to, the first one at the stream's newest."""
        n = len(next(iter(before.values()))) if before else 0
        if not before:
            raise InputError("extend needs obs, in a store that has observations")
        same = np.ones(n, np.bool_)
        for path, obs in before.items():
            same[1:] &= same_rows(obs[1:], after[path][:-1])
            if self._index.heads[env] < 0 or self._cut[env]:
                same[0] = False
            else:
                stacked = obs.ndim > len(self._schema[path].shape) + 1
                newest = self._newest(path)[env]
                same[0] &= same_rows(obs[:1], newest[None] if stacked else newest[None, -1])[0]
        return same

    def _write(
        self, block: Block, columns: dict[str, Array], before: dict[str, Array], after: dict[str, Array], env: int
    ) -> None:
        """Write a block's rows, segment by segment, each committed before the next."""
        writer, index = self.log.writer, self._index
        self._crowded = True
        self._staging.forget()
        rows = {path: block.rows(array, None) for path, array in columns.items()}
        rows |= {path: block.rows(before[path], after[path]) for path in self._schema.obs}
        rows["is_last"] = block.is_last(cut=not block.goes_on[0])
        rows[CHECKSUM] = np.stack([self._checksums(env, block.head, rows, word) for word in (OBS, STEP)], axis=1)
        if not block.ended[-1]:
            rows[CHECKSUM][-1, STEP] ^= NOT_YET
        done = block.head
        while done < block.new_head:
            n = min(self.log.make_room_for_rows(env), block.new_head - done)
            some = slice(done + 1 - block.head, done + 1 - block.head + n)
            try:
                if done == block.head and done >= 0:  # what was done at the newest row, or that it is an episode's last
                    self._put_last(env, done, {path: rows[path][:1] for path in (*self._schema.step, "is_last")})
                for path, values in rows.items():
                    writer.put(path, env, done + 1, values[some])
            except BaseException:
                writer.take_back(env, done)
                if done >= 0:
                    writer.vouch_for_newest(env, done, over=bool(index.table[env, ENDED]))
                raise
            done += n
            steps_before = index.steps_before(env, max(0, done - n))
            index.start_episodes(env, block.starts[(block.starts > done - n) & (block.starts <= done)])
            index.advance(env, done, bool(rows["is_last"][done - block.head]))
            writer.commit(env, done)
            self.log.settle(env, index.steps_before(env, done) - steps_before)

    def _put_last(self, stream: int, head: int, values: dict[str, Array]) -> None:
        """Write what was done at a stream's newest row: (1, ...) of each column."""
        for path, value in values.items():
            self.log.writer.put_last(path, stream, head, value[0])
        self.log.writer.vouch_last(stream, head, int(self._checksums(stream, head, values, STEP)[0]))

    def _checksums(self, stream: int, first: int, rows: dict[str, Array], word: int) -> npt.NDArray[np.uint32]:
        n = len(rows["is_last"])
        return row_checksums(self._schema, self._layout.salt, stream, first, n, rows, word)


def _item(values: dict[str, Any], env: int) -> dict[str, Any]:
    return {name: _item(value, env) if isinstance(value, dict) else value[env] for name, value in values.items()}


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split("/")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return nested
