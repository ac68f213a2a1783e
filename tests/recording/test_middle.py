"""Recording from the middle of an episode, and observations that are not bit for bit the last ones."""

from __future__ import annotations

import hashlib
import shutil
import sys
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from tests.support.specimens import copy_while_open
from tests.test_model import Part, World

Array = np.ndarray[Any, Any]
COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


def filled(path: Path, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, columns=COLUMNS, **options)


def frames(n: int, first: int = 0) -> Array:
    return np.asarray(np.arange(first, first + n)[:, None] + np.array([1, 1000]), np.float32)


def stacks(n: int, first: int = 0) -> Array:
    """n + 1 stacks of three frames, the first of which begins with the frame `first`."""
    given = frames(n + 3, first)
    return np.stack([given[t : t + 3] for t in range(n + 1)])


# Stacks


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
def test_stacks_with_frames_of_their_own_are_whole_or_gone_while_a_ring_turns(length: int, rows: int, tmp_path: Path) -> None:
    """The oldest segment begins at every row of an episode, and of the frames before it."""
    parts = {"": Part((5,), "uint8", True)}
    world = World(tmp_path / "store", 2, 4, parts, 20, filling="dirty", played=5, segment_rows=rows)
    for n in range(150):
        world.add(["truncated" if n % length == length - 1 else "goes on"] * 2, "plain", n)
        if n % 4 == 3:
            world.check()
            with db.ReplayBuffer(world.path, mode="r") as reader:  # what is read from the disk is what is known in memory
                assert reader._reader.index.steps().tolist() == world.buffer._reader.index.steps().tolist()
                steps = reader.episodes.start
                assert steps.tolist() == world.buffer.episodes.start.tolist()
                assert reader.episodes.elapsed(steps).tolist() == world.buffer.episodes.elapsed(steps).tolist()
                np.testing.assert_array_equal(reader.at(steps)["obs"], world.buffer.at(steps)["obs"])
    world.buffer.close()


def test_sequences_across_episodes_tell_no_end_at_rows_before_an_episode(tmp_path: Path) -> None:
    with filled(tmp_path / "store", frame_stack=3) as buffer:
        for n in range(5):
            given = stacks(4, 100 * n)
            buffer.extend(given, np.arange(4), np.ones(4), terminated=np.arange(4) == 3)
        batch = buffer.sample(200, db.Slices(12, seed=0, crossing=True))
        ends = batch["terminated"].numpy()
        assert ends.any()
        assert (batch["reward"].numpy()[ends] == 1).all()
        assert not batch["truncated"].any()


def test_stacks_that_do_not_roll_are_refused_and_told_what_to_do(tmp_path: Path) -> None:
    given = stacks(4)
    with filled(tmp_path / "store", frame_stack=3) as buffer:
        with pytest.raises(db.errors.StackError, match="frame_stack=1"):
            buffer.add(given[0], 0, 1, given[2], False, False)
        with pytest.raises(db.errors.StackError, match=r"step 1 of the arrays.*frame_stack=1"):
            buffer.extend(given[[0, 1, 3]], [0, 1], [1, 1])
        assert len(buffer) == 0


def test_a_reset_in_next_step_mode_is_told_from_a_step_where_nobody_has_said_that_there_are_any(tmp_path: Path) -> None:
    given, other = stacks(3), stacks(3, 500)
    with filled(tmp_path / "store", frame_stack=3) as buffer:
        for t in range(3):
            buffer.add(given[t], t, 1, given[t + 1], t == 2, False)
        with pytest.raises(db.errors.StackError, match=r"leave it out.*autoreset='next_step'") as raised:
            buffer.add(given[3], 0, 0, other[0], False, False)
        assert "frame_stack=1" not in str(raised.value)
        assert buffer.add(other[0], 0, 1, other[1], False, False) == 1


def test_a_reset_step_may_lead_to_any_stack(tmp_path: Path) -> None:
    """In next-step mode the reset is no step, so that nothing has to roll in it."""
    given, other = stacks(3), stacks(3, 500)
    with filled(tmp_path / "store", frame_stack=3, autoreset="next_step") as buffer:
        for t in range(3):
            buffer.add(given[t], t, 1, given[t + 1], t == 2, False)
        assert buffer.add(given[3], 0, 0, other[0], False, False) == 0
        for t in range(3):
            assert buffer.add(other[t], t, 1, other[t + 1], False, False) == 1
        batch = buffer.at(np.concatenate([e.start + np.arange(e.length) for e in map(buffer.episodes.__getitem__, range(2))]))
        np.testing.assert_array_equal(batch["obs"].numpy(), np.concatenate([given[:-1], other[:-1]]))


class Kills:
    """Copy a store at every line that the code which writes rows comes to, where it changed: what a kill there would leave."""

    FUNCTIONS = ("_add", "_commit", "make_room", "_recorded", "_note_starts")

    def __init__(self, path: Path, copies: Path) -> None:
        self.path, self.copies, self.n, self._busy, self._last = path, copies, 0, False, ""

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name not in self.FUNCTIONS or "diskbuffer" not in frame.f_code.co_filename:
            return None
        if event == "line" and not self._busy:
            self._busy = True
            copy_while_open(self.path, self.copies / "next")
            files = sorted(path for path in (self.copies / "next").rglob("*") if path.is_file())
            found = hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()
            if found == self._last:
                shutil.rmtree(self.copies / "next")
            else:
                (self.copies / "next").rename(self.copies / str(self.n))
                self.n, self._last = self.n + 1, found
            self._busy = False
        return self.trace

    def during(self, call: Callable[[], Any]) -> int:
        """Call, and return how many copies were made by then."""
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            call()
        finally:
            sys.settrace(before)
        return self.n


@pytest.mark.some(1)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("before", [2, 3, 4])
def test_a_kill_on_the_way_to_a_first_stack_leaves_no_frames_to_the_next_episode(
    before: int, at_once: bool, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    """With `before` steps in the way, the frames, or the first of two steps, cross from one segment of eight rows to the next."""
    n_envs = 1 if at_once else 2
    options: dict[str, Any] = {"n_envs": n_envs, "frame_stack": 3, "segment_rows": 8, "autoreset": "disabled"}
    kills = Kills(tmp_path / "store", tmp_path / "copies")
    (tmp_path / "copies").mkdir()
    first, middle, zeros = stacks(before, 7), stacks(2, 300), np.zeros(n_envs, bool)
    buffer = filled(tmp_path / "store", **options)
    for t in range(before):
        buffer.add(np.stack([first[t]] * n_envs), [0] * n_envs, [1] * n_envs, np.stack([first[t + 1]] * n_envs), zeros, zeros)

    def go_on() -> None:
        if at_once:
            buffer.extend(middle, [0, 0], [1, 1])
        else:
            for t in range(2):
                buffer.add(np.stack([middle[t]] * 2), [0] * 2, [1] * 2, np.stack([middle[t + 1]] * 2), zeros, zeros)

    assert kills.during(go_on) > 1
    buffer.close()
    then = frames(4, 900)
    given = np.stack([np.stack([then[max(0, t - k)] for k in (2, 1, 0)]) for t in range(4)])

    def compare(copy: db.ReplayBuffer) -> None:
        for stream in range(n_envs):
            there = int(copy.counts()[0][stream])
            assert there >= before
            batch = copy.at(copy.steps(np.arange(there)[::-1].copy(), stream))
            np.testing.assert_array_equal(batch["obs"].numpy(), np.concatenate([first[:-1], middle[:-1]])[:there])

    for n in np.random.default_rng(before).permutation(kills.n)[: amount(1, kills.n // 2)].tolist():
        with db.ReplayBuffer(tmp_path / "copies" / str(n), mode="r") as copy:
            compare(copy)
        with db.ReplayBuffer(tmp_path / "copies" / str(n), autoreset="disabled") as copy:
            compare(copy)
            for stream in range(n_envs):
                copy.extend(then, [0] * 3, [1] * 3, env=stream)
        with db.ReplayBuffer(tmp_path / "copies" / str(n), autoreset="disabled") as copy:
            for stream in range(n_envs):
                batch = copy.at(copy.steps(np.arange(3)[::-1].copy(), stream))
                np.testing.assert_array_equal(batch["obs"].numpy(), given[:-1], err_msg=f"{n}")
            assert copy.check(progress=False).ok


# Observations that differ from the last ones


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("stack", [1, 3])
def test_zeros_of_either_sign_and_nan_are_the_same_observation(stack: int, at_once: bool, tmp_path: Path) -> None:
    columns = {"obs": db.Column((3,), "float32", allow_nan=True), "action": db.Column((), "int64")}
    single = [np.array([0, t, np.nan], np.float32) for t in range(9)]
    recent: deque[Array] = deque([single[0]] * stack, stack)
    given = []
    for each in single:
        recent.append(each)
        given.append(np.stack(recent) if stack > 1 else each)
    after = np.stack(given)
    before = np.where(after == 0, np.float32(-0.0), after)
    before.view(np.uint32)[np.isnan(before)] ^= 1  # another NaN
    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=stack) as buffer:
        if at_once:
            buffer.extend(before[:-1], np.arange(8), np.ones(8), after[1:])
        else:
            for t in range(8):
                buffer.add(before[t], t, 1, after[t + 1], False, False)
        assert buffer.episodes.length.tolist() == [8]
        assert buffer.stats()["cut_off"] == 0


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "complex128"])
def test_floats_of_every_width_are_compared_by_value(dtype: str, tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,), dtype), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        zeros, negative, other = np.zeros(2, dtype), -np.zeros(2, dtype), np.array([0, 1e-7], dtype)
        assert zeros.tobytes() != negative.tobytes()
        buffer.add(zeros, 0, 1, zeros, False, False)
        buffer.add(negative, 0, 1, negative, False, False)
        buffer.add(zeros, 0, 1, zeros, False, False)
        assert buffer.episodes.length.tolist() == [3]
        buffer.add(other, 0, 1, zeros, False, False)
        assert buffer.episodes.length.tolist() == [3, 1]


def drifting(buffer: db.ReplayBuffer, steps: int, **options: Any) -> Array:
    """Add steps whose observations a running mean changes between two looks at them; return what was stored, if all is well."""
    rng, seen = np.random.default_rng(0), []
    obs = rng.normal(size=2).astype(np.float32)
    stored = [obs]
    for t in range(steps):
        next_obs = rng.normal(size=2).astype(np.float32)
        buffer.add(obs, t, 1, next_obs, False, False, **options)
        stored.append(next_obs)
        obs = next_obs + np.float32(0.01 * (t + 1))
        seen.append(obs)
    return np.stack(stored)


def test_most_steps_that_cut_off_an_episode_are_warned_of_once(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as buffer:
        with pytest.warns(UserWarning, match="tell at its last step that it is over") as caught:
            drifting(buffer, 100)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert buffer.stats()["cut_off"] == 99
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            drifting(buffer, 100)
    with filled(tmp_path / "other") as buffer:
        buffer.extend(frames(50), np.zeros(50), np.ones(50), frames(50, 10))
        with pytest.warns(UserWarning, match="cut off an episode"):
            buffer.extend(frames(50), np.zeros(50), np.ones(50), frames(50, 10))


def test_a_warning_that_is_made_an_error_leaves_the_buffer_as_it_was(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as buffer:
        with pytest.raises(UserWarning, match="cut off an episode"):  # as the tests have every warning
            drifting(buffer, 100)
        before = buffer.stats()["added"]
        buffer.add([0, 0], 0, 1, [1, 1], False, False)
        assert buffer.stats()["added"] == before + 1


@pytest.mark.parametrize("reopened", [False, True])
def test_a_stack_is_compared_with_the_one_that_is_stored(reopened: bool, tmp_path: Path) -> None:
    """Where an episode goes on from another stack, as the caller says, what is stored is not the last ``next_obs``."""
    given = stacks(5)
    buffer = filled(tmp_path / "store", frame_stack=3)
    for t in range(2):
        buffer.add(given[t], t, 1, given[t + 1], False, False)
    changed = given + 5
    buffer.add(changed[2], 2, 1, changed[3], False, False, new_episode=False)
    if reopened:
        buffer.close()
        buffer = db.ReplayBuffer(tmp_path / "store")
    stored = np.stack([given[2, 1], given[2, 2], changed[3, 2]])
    np.testing.assert_array_equal(buffer.at([buffer.episodes[0].start + 2])["next_obs"][0].numpy(), stored)
    buffer.add(changed[3], 3, 1, changed[4], False, False)  # not what is stored, though the last next_obs
    assert buffer.stats()["cut_off"] == 1
    np.testing.assert_array_equal(buffer.at([buffer.episodes[1].start])["obs"][0].numpy(), changed[3])
    buffer.close()


def test_new_episodes_can_be_told_one_by_one(tmp_path: Path) -> None:
    same = np.zeros((2, 2), np.float32)
    with filled(tmp_path / "store", n_envs=2, autoreset="disabled") as buffer:
        for told in ([False, False], [True, False], None, [False, True]):
            buffer.add(same, [0, 0], [1, 1], same, [False, False], [False, False], new_episode=told)
        assert buffer.episodes.length.tolist() == [1, 3, 3, 1]
        assert buffer.extend(same, [0, 0], [1, 1], same, env=0, new_episode=[True, False]) == 2
        assert buffer.episodes.length.tolist() == [1, 3, 2, 3, 1]
        for bad in ([True], 1, "no", [[True, False]]):
            with pytest.raises(db.InputError, match="new_episode must be"):
                buffer.add(same, [0, 0], [1, 1], same, [False, False], [False, False], new_episode=bad)
        with pytest.raises(db.InputError, match="new_episode must be"):
            buffer.extend(same, [0, 0], [1, 1], same, env=0, new_episode=[True])


def test_a_trajectory_ends_with_its_last_step_only(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as buffer:
        for flag in ("terminated", "truncated"):
            with pytest.raises(db.InputError, match=f"{flag} is True at step 2 of 5.*next_obs"):
                buffer.extend(frames(6), np.zeros(5), np.ones(5), **{flag: np.arange(5) == 2})
        assert len(buffer) == 0
        buffer.extend(frames(6), np.zeros(5), np.ones(5), terminated=np.arange(5) == 4)
        buffer.extend(frames(5), np.zeros(5), np.ones(5), frames(5, 1), terminated=np.arange(5) == 2)
        assert buffer.episodes.length.tolist() == [5, 3, 2]


@pytest.mark.parametrize("then", ["close", "add"])
def test_an_extend_that_fails_within_a_stack_prefix_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It crossed the end of a segment, and there was no room for the next."""
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}

    def frames(first: int, n: int) -> Any:
        return np.repeat(np.arange(first, first + n, dtype=np.float32)[:, None], 2, axis=1)

    def full(*args: Any, **keywords: Any) -> Any:
        raise OSError(28, "No space left on device")

    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=4, segment_rows=256) as buffer:
        buffer.extend(frames(0, 101), np.zeros(100, int), np.ones(100))
        with monkeypatch.context() as patched:
            patched.setattr("diskbuffer.store.writing.open_segments.make_segment", full)
            buffer.extend(frames(100, 154), np.zeros(153, int), np.ones(153), terminated=np.arange(153) == 152)
            many = frames(5000, 7)
            with pytest.raises(OSError, match="No space"):
                buffer.extend(np.stack([many[k : k + 4] for k in range(4)]), np.zeros(3, int), np.ones(3))
        if then == "add":
            buffer.add(frames(9000, 1)[0], 1, 0.0, frames(9001, 1)[0], False, False)
            np.testing.assert_array_equal(buffer.at(buffer.steps([0]))["obs"][0, :, 0], [9000] * 4)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        if then == "add":
            np.testing.assert_array_equal(buffer.at(buffer.steps([0]))["obs"][0, :, 0], [9000] * 4)
        assert buffer.check(progress=False).ok
