"""What `ReplayBuffer.add` and `extend` do under the lock, from what users give to committed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.index import NO_LEADS, Index
from diskbuffer.index.lookup import ENDED, HEAD
from diskbuffer.recording import kernel
from diskbuffer.recording.blocks import Block, lead_frames, lead_rows, refuse_what_does_not_roll, same_rows, starts_of
from diskbuffer.recording.cut_offs import CutOffs
from diskbuffer.recording.staging import Kept, Staging, Told
from diskbuffer.recording.stream_log import Log
from diskbuffer.recording.values import check_names, fit, flatten, shape_of
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.schema import CHECKSUM, key_of
from diskbuffer.store.format.checksums import NOT_YET, OBS, STEP, row_checksums
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

    Attributes
    ----------
    log : Log
    cut_offs : CutOffs
        How many episodes ended without a flag.
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
        self.cut_offs = CutOffs()
        self._cut = np.zeros(layout.streams, np.bool_)
        self._leads: dict[int, tuple[int, int]] = {}  # by stream: lead-ins that are written, and whose episodes are to come
        self._events = np.zeros((layout.streams, 2), np.int64)
        self._next_step, self._same_step = autoreset == NEXT_STEP, autoreset == SAME_STEP
        self._crowded = True

    # One step of every stream

    def add(self, obs: Any, next_obs: Any, values: dict[str, Any], info: Any, new_episode: Any = None) -> int:
        """Record a step of every stream; return how many there were, as reset steps are none."""
        self.cut_offs.warn_if_due()
        staging = self._staging
        staging.put_values(values)
        if self._same_step:
            next_obs = self._with_final_obs(next_obs, info, staging.ended())
        told = self._cut[self._envs].view(np.int8) if new_episode is None else self._told(new_episode)
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
        told = np.where(_flags("new_episode", new_episode, envs), kernel.START, goes_on)
        return np.where(self._cut[self._envs], kernel.START, told).astype(np.int8)

    def _put_leads(self, streams: list[int], kept: Kept) -> None:
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
            self._write_rows(stream, head, rows, np.arange(head + 1, head + 1 + n), NO_LEADS)
            if cut:
                self.cut_offs.note(1)

    def _record(self, told: Told, kept: Kept) -> int:
        staging, table = self._staging, self._index.table[self._envs]
        if self._crowded:
            with Uninterrupted():
                self.log.make_room()
        code = kernel.record(
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
            told,
            self._events,
        )
        self._crowded = bool(code & 1)
        if code & 2:
            with Uninterrupted():
                self._note_starts()
        staging.recorded(kept, told)
        self.log.added += code >> 2
        self.cut_offs.steps += code >> 2
        if self.log.added >= self.log.retention.look_at:
            with Uninterrupted():
                self.log.evict()
        return int(code >> 2)

    def _note_starts(self) -> None:
        """Have the index know of the episodes that the last step started."""
        for stream in np.flatnonzero(self._events[:, 0] >= kernel.STARTED).tolist():
            position = int(self._events[stream, 1])
            self._index.start_episode(stream, position)
            lead = self._leads.pop(stream, None)
            if lead is not None:
                self._index.add_leads(stream, np.array([lead], np.int64))
            self._cut[stream] = False
        self.cut_offs.note(int((self._events[:, 0] == kernel.CUT_OFF).sum()))
        self._events[:, 0] = kernel.WENT_ON

    def _take_stock(self) -> None:
        """After a Ctrl-C or an error at any instant: if a step was recorded, note what follows from it."""
        self._note_starts()
        for stream in self._leads:  # written, and then no episode came to be
            head = int(self._index.heads[stream])
            if head >= 0:
                self.log.writer.vouch_for_newest(stream, head, over=bool(self._index.table[stream, ENDED]))
        self._leads.clear()
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
                self.cut_offs.asked_for += 1
            self._cut[stream] = True

    def clear(self, *, protected: bool) -> None:
        """Let go of every step. Episodes that run are cut off; what comes next starts others."""
        table = self._index.table
        streams = range(self._layout.streams if protected else self._layout.n_envs)
        self.cut_off(s for s in streams if table[s, HEAD] >= 0 and not table[s, ENDED])
        self.log.clear(streams)

    def _with_final_obs(self, next_obs: Any, info: Any, ended: Bools) -> Any:
        """Put the observations that ended episodes in place of those that the environments were reset to."""
        if not ended.any():
            return next_obs
        final, found = _final_obs(info, ended), flatten({"next_obs": next_obs})
        replaced = {path: np.array(value) for path, value in found.items()}
        for env in np.flatnonzero(ended).tolist():
            last = flatten({"next_obs": final[env]} if not isinstance(final, dict) else {"next_obs": _item(final, env)})
            check_names(last, found)
            for path, value in last.items():
                replaced[path][env] = value
        return _nest(replaced)["next_obs"]

    # Many steps of one stream

    def extend(
        self, values: dict[str, Any], obs: Any, next_obs: Any, env: int, new_episode: Any = None, *, cut: bool = False
    ) -> int:
        """Record arrays of steps; return how many there were. `cut` starts an episode. See `ReplayBuffer.extend`."""
        self.cut_offs.warn_if_due()
        columns = self._fit_steps(values)
        n = len(columns["terminated"])
        before, after = self._fit_observations(obs, next_obs, n)
        if not _is_given(next_obs):
            _refuse_an_end_within(columns)
        told = None if new_episode is None else _flags("new_episode", new_episode, n)
        if told is not None and np.ndim(new_episode) == 0:
            told[1:] = False
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
                    None if told is None else told[part],
                    env,
                )
        if cut:  # nothing can go on behind it
            self.cut_off([env])
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
        self, columns: dict[str, Array], before: dict[str, Array], after: dict[str, Array], told: Bools | None, env: int
    ) -> int:
        ended = columns["terminated"] | columns["truncated"]
        running_before = np.append(self._index.table[env, ENDED] == 0, ~ended[:-1])
        same = self._follow_on(before, after, told, running_before, env)
        if self._next_step:
            idle = ~ended & (columns[self._reward].reshape(len(ended), -1) == 0).all(axis=1)
            keep = ~(same & ~running_before & idle)
            if not keep.all():  # resets of a vector environment
                columns, before, after = ({p: a[keep] for p, a in d.items()} for d in (columns, before, after))
                ended, told = ended[keep], None if told is None else told[keep]
                if not len(ended):
                    return 0
                running_before = np.append(self._index.table[env, ENDED] == 0, ~ended[:-1])
                same = self._follow_on(before, after, told, running_before, env)
        goes_on = same & running_before
        head = int(self._index.heads[env])
        block, leading = self._with_leads(head, goes_on, ended, before, after)
        cut_off = running_before & ~goes_on
        cut_off[0] &= head >= 0
        self._write(block, columns, before, after, leading, env)
        self.cut_offs.steps += len(ended)
        self.cut_offs.note(int(cut_off.sum()))
        return len(ended)

    def _with_leads(
        self, head: int, goes_on: Bools, ended: Bools, before: dict[str, Array], after: dict[str, Array]
    ) -> tuple[Block, dict[str, list[Array]]]:
        """Find what needs a lead-in, and return what is to be written, and lead-ins' frames; stacks become single frames."""
        stacked = [path for path in self._schema.obs if before[path].ndim > len(self._schema[path].shape) + 1]
        wanted = np.zeros(len(ended), np.bool_)
        for path in stacked:
            refuse_what_does_not_roll(path, before[path], after[path])
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

    @property
    def _reward(self) -> str:
        return next(path for path in self._schema.step if path.split("/")[0] == "reward")

    def _follow_on(
        self, before: dict[str, Array], after: dict[str, Array], told: Bools | None, running_before: Bools, env: int
    ) -> Bools:
        """Tell which steps start at the observation that the one before led to, the first one at the stream's newest.

        `told` tells which do not, where the caller knows.
        """
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
        if told is not None:  # by the caller, but for what comes after an episode's end, which cannot go on
            told_same = ~told
            told_same[0] &= bool(self._index.heads[env] >= 0 and not self._cut[env])
            same = np.where(running_before, told_same, same & told_same)
        return same

    def _write(
        self,
        block: Block,
        columns: dict[str, Array],
        before: dict[str, Array],
        after: dict[str, Array],
        leading: dict[str, list[Array]],
        env: int,
    ) -> None:
        """Write a block's rows."""
        rows = {path: block.values(array) for path, array in columns.items()}
        rows |= {path: block.observations(before[path], after[path], leading[path]) for path in self._schema.obs}
        rows["is_last"], leads, first = block.flags(cut=not block.goes_on[0])
        rows["truncated"] |= leads
        rows["terminated"] |= first
        self._write_rows(env, block.head, rows, block.starts, block.lead_ins)

    def _write_rows(
        self, env: int, head: int, rows: dict[str, Array], starts: npt.NDArray[np.int64], leads: npt.NDArray[np.int64]
    ) -> None:
        """Write rows behind a stream's newest, segment by segment, each committed before the next.

        Parameters
        ----------
        env, head : int
            The stream, and the position of its newest row.
        rows : dict of str to (1 + n, ...) array
            All columns but the checksum: first what was done at the newest row, or that it is an episode's last, then n rows.
        starts : (m,) int64
            Where episodes start among these.
        leads : (k, 2) int64
            Lead-ins among these, as `Index.add_leads` takes them.
        """
        writer, index = self.log.writer, self._index
        self._crowded = True
        self._staging.forget()
        rows[CHECKSUM] = np.stack([self._checksums(env, head, rows, word) for word in (OBS, STEP)], axis=1)
        if not rows["is_last"][-1]:
            rows[CHECKSUM][-1, STEP] ^= NOT_YET
        done, new_head = head, head + len(rows["is_last"]) - 1
        try:
            while done < new_head:
                n = min(self.log.make_room_for_rows(env), new_head - done)
                some = slice(done + 1 - head, done + 1 - head + n)
                if done == head and done >= 0:
                    self._put_last(env, done, {path: rows[path][:1] for path in (*self._schema.step, "is_last")})
                for path, values in rows.items():
                    writer.put(path, env, done + 1, values[some])
                done += n
                steps_before = index.steps_before(env, max(0, done - n))
                index.start_episodes(env, starts[(starts > done - n) & (starts <= done)])
                if len(leads):
                    index.add_leads(env, leads[(leads[:, 0] > done - n) & (leads[:, 0] <= done)])
                index.advance(env, done, bool(rows["is_last"][done - head]))
                writer.commit(env, done)
                self._cut[env] = False
                self.log.settle(env, index.steps_before(env, done) - steps_before)
        except BaseException:  # what was committed stays; if that ends within a lead-in, its rows are nobody's
            committed = int(index.heads[env])
            writer.take_back(env, committed)
            if committed >= 0:
                writer.vouch_for_newest(env, committed, over=bool(index.table[env, ENDED]))
            raise

    def _put_last(self, stream: int, head: int, values: dict[str, Array]) -> None:
        """Write what was done at a stream's newest row: (1, ...) of each column."""
        for path, value in values.items():
            self.log.writer.put_last(path, stream, head, value[0])
        self.log.writer.vouch_last(stream, head, int(self._checksums(stream, head, values, STEP)[0]))

    def _checksums(self, stream: int, first: int, rows: dict[str, Array], word: int) -> npt.NDArray[np.uint32]:
        n = len(rows["is_last"])
        return row_checksums(self._schema, self._layout.salt, stream, first, n, rows, word)


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


def _flags(name: str, value: Any, n: int) -> Bools:
    """Return a flag, or one for each of `n`, as an array of them."""
    flags = np.asarray(value)
    if flags.dtype != np.bool_ or flags.shape not in ((), (n,)):
        raise InputError(f"{name} must be None, True or False, or {n} of these, found {flags.dtype} of shape {flags.shape}")
    return np.array(np.broadcast_to(flags, (n,)))


def _item(values: dict[str, Any], env: int) -> dict[str, Any]:
    return {name: _item(value, env) if isinstance(value, dict) else value[env] for name, value in values.items()}


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = map(key_of, path.split("/"))
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return nested
