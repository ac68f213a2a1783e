"""Blocks of steps, laid out as steps are one by one; rows compared by value, and stacks of frames that roll."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.recording.blocks import (
    Block,
    lead_frames,
    lead_rows,
    refuse_what_does_not_roll,
    same_rows,
    same_stacks,
    starts_of,
)
from diskbuffer.recording.equality import all_zero, float_bytes, same_values
from tests.amounts import examples


def slowly(head: int, goes_on: list[bool], ended: list[bool], cut: bool) -> dict[str, Any]:
    """Lay steps out one by one, as `add` does; a row is (whose obs, whose next_obs, whose step)."""
    rows: list[list[int | None]] = [[None, None, None]]  # the newest before
    last, positions, starts = [cut], [], []
    for t, (on, over) in enumerate(zip(goes_on, ended, strict=True)):
        if not on:
            if t:
                last[-1] = True
            rows.append([None, None, None])
            last.append(False)
            starts.append(head + len(rows) - 1)
        rows[-1][0], rows[-1][2] = t, t
        positions.append(head + len(rows) - 1)
        rows.append([None, t, None])
        last.append(over)
    return {"rows": rows, "last": last, "positions": positions, "starts": starts, "new_head": head + len(rows) - 1}


@examples(80, 2000)
@given(st.integers(-1, 50), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.booleans())
def test_a_block_of_steps_is_laid_out_as_steps_are_one_by_one(head: int, steps: list[tuple[bool, bool]], cut: bool) -> None:
    ended = [over for _, over in steps]
    goes_on = [on and not before for (on, _), before in zip(steps, [head < 0, *ended[:-1]], strict=True)]
    none = np.zeros(len(steps), np.int64)
    block, expected = Block(head, np.array(goes_on), np.array(ended), none), slowly(head, goes_on, ended, cut)
    assert block.positions.tolist() == expected["positions"]
    assert block.starts.tolist() == expected["starts"]
    assert block.new_head == expected["new_head"]
    assert [flags.tolist() for flags in block.flags(cut)] == [expected["last"], *[[False] * len(expected["last"])] * 2]
    values, following = np.arange(len(steps)) + 100, np.arange(len(steps)) + 200
    of_steps = [0 if step is None else step + 100 for _, _, step in expected["rows"]]
    assert block.values(values).tolist() == of_steps
    # What a step led to is what the next one starts at; the newest row before has its own.
    observed = [0] + [o + 100 if o is not None else o for o, _, _ in expected["rows"][1:]]
    for step in range(len(steps)):
        observed[int(block.positions[step]) + 1 - head] = step + 200
    assert block.observations(values, following, []).tolist() == observed


@examples(80, 2000)
@given(
    head=st.integers(-1, 20),
    steps=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12),
    frames=st.integers(1, 5),
)
def test_frames_before_an_episode_have_rows_of_their_own(head: int, steps: list[tuple[bool, bool]], frames: int) -> None:
    goes_on = np.array([on for on, _ in steps])
    wanted = ~goes_on & np.array([own for _, own in steps])
    plain = Block(head, goes_on, np.zeros(len(steps), np.bool_), np.zeros(len(steps), np.int64))
    block = Block(head, goes_on, plain.ended, lead_rows(plain.positions, wanted, frames, 8))
    at, leading, starts = head, list[int](), list[int]()
    for step in range(len(steps)):
        if not goes_on[step]:
            at += 1
        if wanted[step]:
            rows = frames + ((at + frames) % 8 == 0)
            leading += range(at, at + rows)
            starts += [*range(at, at + rows), at + rows]
            assert block.lead_ins[int(wanted[:step].sum())].tolist() == [at + rows, at]
            at += rows
            assert at % 8  # no episode's first row is alone in a segment
        elif not goes_on[step]:
            starts.append(at)
        assert block.positions[step] == at
        at += 1
    assert block.new_head == at
    assert block.lead_rows.tolist() == leading
    assert block.starts.tolist() == starts
    last, are_leading, first = block.flags(False)
    assert (np.flatnonzero(are_leading) + head).tolist() == leading
    assert last[are_leading].all()
    assert (np.flatnonzero(first) + head).tolist() == block.lead_ins[:, 1].tolist()


@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_before_a_stack_is_its_frames_and_before_these_its_filling(zeros: bool) -> None:
    stack = np.array([[5, 6], [7, 8], [9, 9]])
    filling = [0, 0] if zeros else [5, 6]
    assert lead_frames(stack, 2, 3, zeros, stacked=True).tolist() == [filling, [5, 6], [7, 8]]
    assert lead_frames(stack[2], 2, 2, zeros, stacked=False).tolist() == [[0, 0] if zeros else [9, 9]] * 2


def test_rows_are_compared_by_value() -> None:
    a = np.array([[0.0, 1.0], [np.nan, 2.0], [3.0, 4.0], [np.nan, 1.0], [np.inf, 1.0]])
    b = np.array([[-0.0, 1.0], [-np.nan, 2.0], [3.0, 5.0], [1.0, 1.0], [-np.inf, 1.0]])
    for dtype in ("float16", "float32", "float64", "complex64", "complex128"):
        assert same_rows(a.astype(dtype), b.astype(dtype)).tolist() == [True, True, False, False, False]
        for left, right, same in zip(a.astype(dtype), b.astype(dtype), [True, True, False, False, False], strict=True):
            width = float_bytes(np.dtype(dtype))
            assert same_values(left.ctypes.data, right.ctypes.data, left.nbytes, width) == same
            assert all_zero(left.ctypes.data, left.nbytes // 2, width) == (left[0] == 0)
            assert all_zero(right.ctypes.data, left.nbytes // 2, width) == (right[0] == 0)
    assert same_rows(a[:0], b[:0]).tolist() == []
    assert same_rows(a[::-1], a[::-1]).all()


@pytest.mark.parametrize("zeros", [False, True])
def test_stacks_that_roll_pass_and_each_other_is_found(zeros: bool) -> None:
    frames = np.arange(1, 8, dtype=np.uint8)[:, None] * np.ones(5, np.uint8)
    padded = np.concatenate([np.zeros((2, 5), np.uint8) if zeros else frames[[0, 0]], frames])
    stacks = np.stack([padded[t : t + 3] for t in range(7)])
    obs, next_obs = stacks[:-1], stacks[1:]
    same, rolls = same_stacks(obs, next_obs)
    refuse_what_does_not_roll("obs", rolls, 3)
    assert same.all()
    for step in range(6):
        for wrong in (next_obs.copy(), np.asfortranarray(next_obs)):
            wrong[step, 0] += 1
            same, rolls = same_stacks(obs, wrong)
            assert np.flatnonzero(~same).tolist() == ([step + 1] if step < 5 else [])
            with pytest.raises(db.StackError, match=f"obs of step {step} .*not obs moved on by one frame"):
                refuse_what_does_not_roll("obs", rolls, 3)
        wrong = next_obs.copy()
        wrong[step, 2] += 1  # the newest frame, which nothing is known of
        same, rolls = same_stacks(obs, wrong)
        assert rolls.all()
        assert np.flatnonzero(~same).tolist() == ([step + 1] if step < 5 else [])
    assert starts_of(obs, zeros).tolist() == [True] + [False] * 5
