"""A kill at any instant of an `add`: bytes of its rows are there or not, in any order, until the segments' lengths change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db
from diskbuffer.schema.nested import flatten
from tests.frozen.stores import PIXELS, VECTORS, play
from tests.support.specimens import adopt, copy_while_open

ENVS, STEPS, LENGTHS = 2, 90, "_segments/length/c.0.0"
Places = npt.NDArray[np.int64]
Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Noted:
    """In place of a buffer: note how it is called."""

    n_envs = ENVS

    def __init__(self) -> None:
        self.calls: Calls = []

    def add(self, *args: Any, **how: Any) -> None:
        self.calls.append(("add", args, how))

    def cut_off(self, *args: Any) -> None:
        self.calls.append(("cut_off", args, {}))


def make(buffer: db.ReplayBuffer, calls: Calls) -> None:
    for name, args, how in calls:
        getattr(buffer, name)(*args, **how)


def told(buffer: db.ReplayBuffer, env: int | None = None) -> dict[str, Any]:
    """Return all steps and episodes, of one environment or of all."""
    steps = buffer.steps()
    steps = steps[steps % ENVS == env] if env is not None else steps
    found = {path: values.tolist() for path, values in flatten(buffer.at(steps, numpy=True)).items()} if len(steps) else {}
    mine = buffer.episodes.stream == env if env is not None else slice(None)
    return found | {name: getattr(buffer.episodes, name)[mine].tolist() for name in ("start", "length", "ending")}


def changed(before: Path, after: Path) -> dict[str, Places] | None:
    """Return where files differ, (n,) int64; None where a segment began, was packed, or was sealed: these have an order."""
    names = [{str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()} for root in (before, after)]
    found = dict[str, Places]()
    for name in sorted(names[0]):
        if names[0] != names[1] or (before / name).stat().st_size != (after / name).stat().st_size:
            return None
        one, other = (np.frombuffer((root / name).read_bytes(), np.uint8) for root in (before, after))
        found[name] = np.flatnonzero(one != other)
        is_of_others = (name.startswith("obs/c.") and name.endswith(".0.0")) or name.startswith("_segments/sealed/")
        if len(found[name]) and is_of_others:
            return None
    return found


def torn(before: Path, after: Path, at: dict[str, Places], to: Path, rng: np.random.Generator, counts: bool) -> None:
    """Build a store of which some changed bytes are there, and no length; where rows may count, all of them, and some lengths."""
    shutil.copytree(before, to)
    for name, places in at.items():
        new, contents = (after / name).read_bytes(), bytearray((before / name).read_bytes())
        if name != LENGTHS:
            chosen = places if counts else places[rng.random(len(places)) < rng.random()]
        else:
            chosen = places[np.isin(places // 8, _some(np.unique(places // 8), contents, rng)) & counts]
        for place in chosen.tolist():
            contents[place] = new[place]
        (to / name).write_bytes(contents)
    adopt(to)


def _some(slots: Places, lengths: bytearray, rng: np.random.Generator) -> Places:
    """Return some of the slots whose lengths have changed; of a stream's new segment only after that of the one before."""
    is_new = np.array([not any(lengths[8 * slot : 8 * slot + 8]) for slot in slots.tolist()], np.bool_)
    return slots[~is_new & (rng.random(len(slots)) < 0.5)]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("columns", [PIXELS, VECTORS], ids=["pixels", "vectors"])
def test_a_kill_within_an_add_leaves_all_of_a_step_or_nothing_of_it(
    mode: Any, columns: dict[str, db.Column], tmp_path: Path, any_seed: int, amount: Callable[[int, int], int]
) -> None:
    rng, noted = np.random.default_rng(any_seed), Noted()
    play(noted, columns, STEPS, mode, 1)  # type: ignore[arg-type]
    calls, how = noted.calls, {"n_envs": ENVS, "autoreset": mode, "segment_rows": 32, "threads": 1}
    with db.ReplayBuffer(tmp_path / "whole", columns=columns, **how) as buffer:
        make(buffer, calls)
        expected = told(buffer)
    buffer = db.ReplayBuffer(tmp_path / "store", columns=columns, **how)
    kills = sorted(rng.choice(len(calls), amount(4, 60), replace=False).tolist())
    done = 0
    for n, call in enumerate(kills):
        make(buffer, calls[done:call])
        before, after, left = (tmp_path / f"{what}-{n}" for what in ("before", "after", "left"))
        copy_while_open(buffer.path, before)
        was = [told(buffer, env) for env in range(ENVS)]
        make(buffer, calls[call : call + 1])
        copy_while_open(buffer.path, after)
        done, now, at = call + 1, [told(buffer, env) for env in range(ENVS)], changed(before, after)
        if at is None:
            continue
        torn(before, after, at, left, rng, counts=False)
        with db.ReplayBuffer(left, mode="r", threads=1) as reader:
            for env in range(ENVS):  # that an episode is cut off is a bit of a row that counts already
                assert told(reader, env) == was[env] or (calls[call][0] == "cut_off" and told(reader, env) == now[env])
        with db.ReplayBuffer(left, mode="r+", threads=1) as again:
            make(again, calls[call:])
            assert told(again) == expected
        assert db.check(left, progress=False).ok
        shutil.rmtree(left)
        torn(before, after, at, left, rng, counts=True)
        for how_opened in ("r", "r+"):
            with db.ReplayBuffer(left, mode=how_opened, threads=1) as opened:
                for env in range(ENVS):
                    assert told(opened, env) in (was[env], now[env])
        shutil.rmtree(left)
        shutil.copytree(after, left)
        adopt(left)
        with db.ReplayBuffer(left, mode="r+", threads=1) as again:
            make(again, calls[call + 1 :])
            assert told(again) == expected
        for path in (before, after, left):
            shutil.rmtree(path)
    buffer.close()
