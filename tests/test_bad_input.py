"""Bad input: each a typed error that says what was expected and what was found, and the buffer as it was."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import diskbuffer as db
from diskbuffer.store.format import layout
from tests.support.experience import Experience, Feeder

SHAPE = (34, 33)
FRAME = np.full(SHAPE, 7, np.uint8)
OPTIONS: dict[str, Any] = {
    "columns": {
        "obs": db.Column(SHAPE, "uint8"),
        "action": db.Column((), "int16"),
        "small": db.Column((2,), "float32"),
        "masked": db.Column((), "bool"),
        "loose": db.Column((), "float32", allow_nan=True),
    },
    "seed": 5,
}


def step(t: int, **other: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "obs": FRAME + np.uint8(t % 100),
        "action": t,
        "reward": t / 2,
        "next_obs": FRAME + np.uint8((t + 1) % 100),
        "terminated": t % 10 == 9,
        "truncated": False,
        "small": [t, -t],
        "masked": t % 3 == 0,
        "loose": float("nan"),
    }
    return values | other


def steps(n: int, **other: Any) -> dict[str, Any]:
    rows = [step(t) for t in range(n)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} | other


def everything(buffer: db.ReplayBuffer) -> dict[str, Any]:
    """All that a buffer answers, for comparing before and after."""
    stats = buffer.stats()
    found: dict[str, Any] = {name: stats[name] for name in ("steps", "added", "episodes", "segments")}
    found["draws"] = buffer.state_dict()
    if len(buffer):
        ids = buffer.episodes.start
        found["batch"] = {name: value.numpy().tobytes() for name, value in buffer.at(ids).items()}
        starts, lengths = buffer.episodes.start, buffer.episodes.length
        ids = np.concatenate([np.arange(0, n) * buffer.n_envs + s for s, n in zip(starts, lengths, strict=True)])
        found["all"] = {name: value.numpy().tobytes() for name, value in buffer.at(ids).items()}
    return found


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(tmp_path / "store", **OPTIONS) as buffer:
        for t in range(25):
            buffer.add(**step(t))
        yield buffer


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[db.ReplayBuffer]:
    """A buffer that all tests of bad calls use, one after the other."""
    with db.ReplayBuffer(tmp_path_factory.mktemp("used") / "store", **OPTIONS) as buffer:
        for t in range(25):
            buffer.add(**step(t))
        yield buffer


@contextlib.contextmanager
def as_before(buffer: db.ReplayBuffer) -> Iterator[None]:
    """Whatever is done in the block, the buffer is as before afterwards, and goes on."""
    before = everything(buffer)
    yield
    assert everything(buffer) == before
    n, episodes = len(buffer), len(buffer.episodes)
    buffer.add(**step(n))
    assert len(buffer) == before["steps"] + 1
    assert len(buffer.episodes) == episodes + (n % 10 == 0)  # the running one went on, or after its end another begins
    batch = buffer.at(buffer.steps()[-1:])
    assert batch["action"].item() == n
    np.testing.assert_array_equal(batch["obs"][0].numpy(), step(n)["obs"])


@pytest.fixture
def unchanged(used: db.ReplayBuffer) -> Iterator[db.ReplayBuffer]:
    with as_before(used):
        yield used


BAD_STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "obs of another shape": ({"obs": np.zeros((33, 34), np.uint8)}, r"obs.*\(34, 33\).*\(33, 34\)"),
    "next_obs of another shape": ({"next_obs": np.zeros(3, np.uint8)}, r"next_obs.*\(34, 33\).*\(3,\)"),
    "two environments": ({"obs": np.zeros((2, *SHAPE), np.uint8)}, r"obs.*\(34, 33\).*\(2, 34, 33\)"),
    "two rewards": ({"reward": [1.0, 2.0]}, r"reward.*\(2,\)"),
    "obs of floats that do not fit": ({"obs": np.full(SHAPE, 0.5)}, r"obs.*0\.5.*uint8"),
    "obs too large for its dtype": ({"obs": np.full(SHAPE, 256)}, "obs.*256.*uint8"),
    "obs below zero": ({"next_obs": np.full(SHAPE, -1)}, "next_obs.*-1.*uint8"),
    "obs of strings": ({"obs": np.full(SHAPE, "a")}, "obs.*uint8"),
    "obs of objects": ({"obs": np.full(SHAPE, object())}, "obs.*uint8"),
    "ragged obs": ({"obs": [[1, 2], [3]]}, "obs"),
    "ragged reward": ({"reward": [[1, 2], [3]]}, "reward"),
    "action too large": ({"action": 40_000}, "action.*40000.*int16"),
    "action too large for any integer": ({"action": 2**70}, "action.*int16"),
    "half an action": ({"action": 0.5}, r"action.*0\.5.*int16"),
    "action of two": ({"action": [1, 2]}, r"action.*\(2,\)"),
    "an action that is not there": ({"action": None}, "action"),
    "reward too large": ({"reward": 1e39}, "reward.*float32"),
    "reward NaN": ({"reward": float("nan")}, "reward.*NaN"),
    "reward NaN of numpy": ({"reward": np.float32("nan")}, "reward.*NaN"),
    "reward of infinity": ({"reward": float("inf")}, "reward.*infinity"),
    "reward of infinity of numpy": ({"reward": np.float32("-inf")}, "reward.*infinity"),
    "infinity in an array": ({"small": np.array([1, -np.inf], np.float32)}, "small.*infinity"),
    "complex reward": ({"reward": 1j}, "reward.*float32"),
    "reward of text": ({"reward": "much"}, "reward.*float32"),
    "NaN in an array": ({"small": np.array([1, np.nan], np.float32)}, "small.*NaN"),
    "NaN in a list": ({"small": [1, float("nan")]}, "small.*NaN"),
    "NaN as an integer": ({"action": float("nan")}, "action.*int16"),
    "infinity as an integer": ({"action": float("inf")}, "action.*int16"),
    "terminated of two": ({"terminated": 2}, "terminated.*2.*bool"),
    "truncated of text": ({"truncated": "no"}, "truncated.*bool"),
    "mask between": ({"masked": 0.5}, r"mask.*0\.5.*bool"),
    "obs missing": ({"obs": None}, "obs"),
    "obs nested": ({"obs": {"pixels": FRAME}}, "obs"),
    "unknown column": ({"log_prob": 1.0}, "unknown column 'log_prob'.*'action'"),
    "is_last given": ({"is_last": True}, "is_last"),
    "unknown column of nothing": ({"log_prob": None}, "unknown column 'log_prob'.*'action'"),
    "unknown column of an empty dict": ({"others": {}}, "unknown column 'others'.*'action'"),
    "a dtype that NumPy has not": ({"small": torch.zeros(2, dtype=torch.bfloat16)}, r"small.*bfloat16; give \.float\(\)"),
}


@pytest.mark.parametrize("what", BAD_STEPS)
def test_a_bad_step_is_refused_and_the_buffer_as_it_was(what: str, unchanged: db.ReplayBuffer) -> None:
    change, message = BAD_STEPS[what]
    with pytest.raises(db.InputError, match=message):
        unchanged.add(**step(25, **change))


def test_a_missing_column_is_named(unchanged: db.ReplayBuffer) -> None:
    some = step(25)
    del some["masked"], some["small"]
    with pytest.raises(db.InputError, match="missing column 'small', 'masked'"):
        unchanged.add(**some)


N = 6
BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "a single step": (step(25), "leading axis"),
    "one obs too few": ({"obs": np.zeros((N - 1, *SHAPE), np.uint8)}, r"obs.*\(6, 34, 33\).*\(5, 34, 33\)"),
    "a trajectory without its last obs": ({"next_obs": None}, r"obs.*\(7, 34, 33\).*\(6, 34, 33\).*one observation more"),
    "next_obs and a trajectory": ({"obs": np.zeros((N + 1, *SHAPE), np.uint8)}, r"obs.*\(6, 34, 33\).*\(7, 34, 33\)"),
    "no obs": ({"obs": None}, "missing.*obs"),
    "an obs that is no array": ({"obs": 3.0, "next_obs": None}, r"obs.*\(7, 34, 33\).*\(\)"),
    "an action too few": ({"action": np.zeros(N - 1)}, r"action.*\(6,\).*\(5,\)"),
    "an action too few for a trajectory": (
        {"obs": np.zeros((N + 1, *SHAPE), np.uint8), "next_obs": None, "action": np.zeros(N - 1)},
        r"action.*\(6,\).*\(5,\)",
    ),
    "a reward too few": ({"reward": np.zeros(N - 1)}, r"reward.*\(6,\).*\(5,\)"),
    "terminated too long": ({"terminated": np.zeros(N + 1, bool)}, r"terminated.*\(6,\).*\(7,\)"),
    "no action": ({"action": None}, "missing.*action"),
    "ragged action": ({"action": [[1, 2], [3]]}, "action"),
    "ragged obs": ({"obs": [[1, 2], [3]]}, "obs"),
    "unknown column": ({"log_prob": np.zeros(N)}, "unknown column 'log_prob'"),
    "infinity in a reward": ({"reward": np.array([1, 2, np.inf, 4, 5, 6])}, "reward.*infinity"),
    "NaN in a reward": ({"reward": np.array([1, 2, 3, 4, 5, np.nan])}, "reward.*NaN"),
    "an action that does not fit": ({"action": np.array([1, 2, 3, 4, 5, 70_000])}, "action.*70000.*int16"),
    "obs of another dtype": ({"next_obs": np.full((N, *SHAPE), 1.5)}, r"next_obs.*1\.5.*uint8"),
    "an environment that is not there": ({"env": 1}, "env.*1"),
    "an environment below zero": ({"env": -1}, "env.*-1"),
    "an environment by name": ({"env": "0"}, "env"),
    "unknown column of nothing": ({"log_prob": {}}, "unknown column 'log_prob'"),
}


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_bad_arrays_are_refused_and_the_buffer_as_it_was(what: str, unchanged: db.ReplayBuffer) -> None:
    change, message = BAD_ARRAYS[what]
    with pytest.raises(db.InputError, match=message):
        unchanged.extend(**steps(N, **change))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_kept_where_they_are_allowed(buffer: db.ReplayBuffer, number: float) -> None:
    buffer.add(**step(25, loose=number))
    np.testing.assert_array_equal(buffer.at([buffer.episodes.start[-1] + 5])["loose"].numpy(), [number])


@pytest.mark.parametrize("n", [1, 3])
def test_a_wrong_number_of_environments_is_refused(n: int, tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store") as buffer:
        feed = Feeder(world, buffer)
        feed.add(5)
        frames = np.ones((n, *SHAPE), np.uint8)
        with pytest.raises(db.InputError, match=rf"obs.*\(2, 34, 33\).*\({n}, 34, 33\)"):
            buffer.add(frames, [1, 2], [1, 2], frames, [False] * 2, [False] * 2)
        two = np.ones((2, *SHAPE), np.uint8)
        with pytest.raises(db.InputError, match=rf"action.*\(2,\).*\({n},\)"):
            buffer.add(two, [1] * n, [1, 2], two, [False] * 2, [False] * 2)
        with pytest.raises(db.InputError, match="obs"):
            buffer.add(two[0], [1, 2], [1, 2], two[0], [False] * 2, [False] * 2)
        feed.add(5)
        assert world.check(buffer) == 20


@pytest.mark.parametrize("envs", [1, -2, [0, 3], "all"])
def test_cutting_off_an_environment_that_is_not_there_is_refused(envs: Any, unchanged: db.ReplayBuffer) -> None:
    with pytest.raises(db.InputError):
        unchanged.cut_off(envs)


# Stacks


def rolling(first: int, n: int = 4) -> Any:
    return np.stack([FRAME + np.uint8(max(t, 0)) for t in range(first - n + 1, first + 1)])


@pytest.fixture
def stacked(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    columns = {"obs": db.Column(SHAPE, "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "stacked", columns=columns, frame_stack=4) as buffer:
        for t in range(12):
            buffer.add(rolling(t), t, 1.0, rolling(t + 1), False, False)
        yield buffer


BAD_STACKS: dict[str, tuple[Any, Any, str]] = {
    "next_obs does not move on": (rolling(12), rolling(12), "next_obs is not obs moved on by one frame"),
    "next_obs moves two": (rolling(12), rolling(14), "next_obs is not obs moved on by one frame"),
}


@pytest.mark.parametrize("what", BAD_STACKS)
def test_a_stack_that_does_not_roll_is_refused(what: str, stacked: db.ReplayBuffer) -> None:
    obs, next_obs, message = BAD_STACKS[what]
    before = everything(stacked)
    with pytest.raises(db.errors.StackError, match=f"expected a rolling stack of 4 frames.*{message}"):
        stacked.add(obs, 1, 1.0, next_obs, False, False)
    with pytest.raises(db.errors.StackError, match="obs of step 0 of the arrays: expected a rolling stack of 4 frames"):
        stacked.extend(obs[None], [1], [1.0], next_obs[None])
    assert everything(stacked) == before
    stacked.add(rolling(12), 12, 1.0, rolling(13), True, False)
    assert stacked.episodes[0] == (0, 0, 13, "terminated", "", 0)
    np.testing.assert_array_equal(stacked.at([12])["obs"][0].numpy(), rolling(12))


def test_a_stack_and_a_frame_in_one_step_are_refused(stacked: db.ReplayBuffer) -> None:
    with pytest.raises(db.InputError, match="both be single frames, or both stacks"):
        stacked.add(rolling(12), 1, 1.0, rolling(13)[-1], False, False)
    with pytest.raises(db.InputError, match=r"\(3, 34, 33\).*stacks of frames, \(1, 4, 34, 33\)|\(4, 34, 33\)"):
        stacked.add(rolling(12, 3), 1, 1.0, rolling(13, 3), False, False)
    assert len(stacked) == 12


def test_a_refused_stack_does_not_undo_a_cut_off(stacked: db.ReplayBuffer) -> None:
    stacked.cut_off()
    obs, next_obs, _ = BAD_STACKS["next_obs moves two"]
    with pytest.raises(db.errors.StackError):
        stacked.extend(obs[None], [1], [1.0], next_obs[None])
    frame = FRAME + np.uint8(12)
    stacked.add(frame, 1, 1.0, FRAME, False, False)  # what the last episode ended with, but another episode
    assert stacked.episodes.ending.tolist() == ["cut off", "running"]


# Opening

GOOD: dict[str, Any] = {"columns": {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}}
BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "mode w": ({"mode": "w"}, "mode.*'w'.*no mode that wipes"),
    "no mode": ({"mode": None}, "mode"),
    "capacity 0": ({"capacity": 0}, "capacity.*0"),
    "capacity below 0": ({"capacity": -5}, "capacity.*-5"),
    "half a capacity": ({"capacity": 2.5}, r"capacity.*2\.5"),
    "capacity true": ({"capacity": True}, "capacity.*True"),
    "capacity as text": ({"capacity": "1000"}, "capacity.*'1000'"),
    "no environments": ({"n_envs": 0}, "n_envs.*0"),
    "environments in floats": ({"n_envs": 2.0}, r"n_envs.*2\.0"),
    "no frames in the stack": ({"frame_stack": 0}, "frame_stack.*0"),
    "a stack as text": ({"frame_stack": "4"}, "frame_stack.*'4'"),
    "capacity too small for the stack": ({"capacity": 3, "frame_stack": 4}, "capacity.*4.*3"),
    "padding": ({"padding": "edge"}, "padding.*'edge'"),
    "autoreset": ({"autoreset": "NextStep"}, "autoreset.*'NextStep'"),
    "segment_rows no power of two": ({"segment_rows": 12}, "segment_rows.*12"),
    "segment_rows too small": ({"segment_rows": 4}, "segment_rows.*4"),
    "segment_rows in floats": ({"segment_rows": 8.0}, r"segment_rows.*8\.0"),
    "chunk_rows that no chunk has": ({"chunk_rows": 3}, "chunk_rows.*3"),
    "chunk_rows in floats": ({"chunk_rows": 4.0}, r"chunk_rows.*4\.0"),
    "no threads": ({"threads": 0}, "threads.*0"),
    "threads as text": ({"threads": "2"}, "threads.*'2'"),
    "seed below 0": ({"seed": -1}, "seed.*-1"),
    "seed as text": ({"seed": "x"}, "seed.*'x'"),
    "nothing to create from": ({"columns": None}, "env=.*columns="),
    "only extra columns": ({"columns": None, "extra": {"x": db.Column()}}, "extra="),
    "no environment": ({"columns": None, "env": object()}, "gymnasium.Env.*object"),
    "two descriptions": ({"env": object()}, "one of"),
    "one space only": ({"columns": None, "observation_space": object()}, "both"),
    "columns that are none": ({"columns": {"obs": ((3,), "float32")}}, "diskbuffer.Column.*tuple"),
    "a name that is none": ({"columns": {"obs": db.Column(), "an action": db.Column()}}, "identifier.*'an action'"),
    "a name with an underscore": ({"columns": {"obs": db.Column(), "_x": db.Column()}}, "'_x'"),
    "a path upwards": ({"columns": {"obs": db.Column(), "../x": db.Column()}}, r"'\.\./x'"),
    "a name that batches use": ({"columns": {"obs": db.Column(), "steps": db.Column()}}, "'steps'"),
    "a column in a column": ({"columns": {"obs": db.Column(), "obs/x": db.Column()}}, "'obs/x'.*inside"),
    "a flag that is no bool": ({"columns": {"obs": db.Column(), "terminated": db.Column()}}, "'terminated'.*bool"),
    "an extra column that is there": ({"extra": {"action": db.Column()}}, "'action'"),
    "an argument misspelt": ({"capacty": 5}, "no argument capacty=; did you mean capacity[?]"),
    "an argument of others": ({"zzz": 5}, "no argument zzz=; did you mean .*, capacity, .* or writer[?]"),
    "a place in a bucket of another kind": ({"path": "gs://bucket/store"}, "`diskbuffer copy`.*s3://BUCKET/PATH alone"),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_a_bad_option_is_refused_and_nothing_created(what: str, tmp_path: Path) -> None:
    change, message = BAD_OPTIONS[what]
    with pytest.raises(db.InputError, match=message):
        db.ReplayBuffer(**({"path": tmp_path / "store"} | GOOD | change))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["seed below 0", "threads as text", "no frames in the stack", "two descriptions"])
def test_a_bad_option_does_not_leave_a_store_locked(what: str, tmp_path: Path) -> None:
    db.ReplayBuffer(tmp_path / "store", **GOOD).close()
    held = []  # the traceback would keep the buffer, and so a lock that was not given back
    try:
        db.ReplayBuffer(tmp_path / "store", **(GOOD | BAD_OPTIONS[what][0]))
    except Exception as error:  # noqa: BLE001  which one, the test above tells
        held.append(error)
    assert held
    db.ReplayBuffer(tmp_path / "store").close()


@pytest.mark.parametrize("dtype", ["O", "U5", "M8[s]", "float128", "V4", "nonsense"])
def test_a_dtype_that_cannot_be_stored_is_refused(dtype: str) -> None:
    with pytest.raises(db.errors.SchemaError, match="dtype"):
        db.Column((), dtype)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (-1,), "ab", None, 2.5])
def test_a_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(db.errors.SchemaError):
        db.Column(shape)


OTHERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another column": (
        {"columns": {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}},
        ["obs: stored float32[3], asked for float32[4]"],
    ),
    "a column more and one less": (
        {"columns": {"obs": db.Column((3,), "float32"), "deed": db.Column((2,), "int8")}},
        ["action: stored int64[], asked for nothing", "deed: stored nothing, asked for int8[2]"],
    ),
    "another capacity": ({"capacity": 200}, ["capacity: stored 100, asked for 200"]),
    "other environments": ({"n_envs": 5}, ["n_envs: stored 2, asked for 5"]),
    "other segments": ({"segment_rows": 64}, ["segment_rows: stored 8, asked for 64"]),
    "all at once": (
        {"capacity": 7, "n_envs": 1, "columns": {**GOOD["columns"], "reward": db.Column((2,), "float64")}},
        [
            "reward: stored float32[], asked for float64[2]",
            "capacity: stored 100, asked for 7",
            "n_envs: stored 2, asked for 1",
        ],
    ),
}


def test_how_several_environments_reset_must_be_said_when_a_store_is_made(tmp_path: Path) -> None:
    path, columns = tmp_path / "store", {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    for writer in (None, "one"):
        with pytest.raises(db.InputError, match=r"n_envs=2 does not say.*autoreset='next_step'.*'same_step'.*'disabled'"):
            db.ReplayBuffer(path, columns=columns, n_envs=2, writer=writer)
    assert not path.exists()
    db.ReplayBuffer(path, columns=columns, n_envs=2, autoreset="same_step").close()
    with db.ReplayBuffer(path, columns=columns, n_envs=2) as buffer, pytest.raises(db.InputError, match="info"):
        buffer.add([1, 2], [1, 2], [1.0, 2.0], [2, 3], [True, False], [False, False])


@pytest.mark.some(6)
@pytest.mark.parametrize("mode", ["a", "r", "r+"])
@pytest.mark.parametrize("what", OTHERS)
def test_another_schema_is_refused_and_the_difference_shown(what: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    db.ReplayBuffer(path, 100, n_envs=2, autoreset="next_step", segment_rows=8, **GOOD).close()
    change, differences = OTHERS[what]
    with pytest.raises(db.errors.SchemaError) as caught:
        db.ReplayBuffer(path, **change, mode=mode)  # type: ignore[arg-type]
    assert str(path) in str(caught.value)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert [line for line in lines if ": stored " in line] == differences
    db.ReplayBuffer(
        path, 100, n_envs=2, autoreset="next_step", segment_rows=8, **GOOD
    ).close()  # as it is, it opens, and nobody holds it


def test_a_capacity_too_small_for_the_stack_is_refused_at_reopening_too(tmp_path: Path) -> None:
    db.ReplayBuffer(tmp_path / "store", 3, **GOOD).close()
    with pytest.raises(db.InputError, match=r"capacity.*4.*3"):
        db.ReplayBuffer(tmp_path / "store", frame_stack=4)


# Paths


def make_a_file(path: Path) -> None:
    path.write_text("precious")


def make_a_directory_of_files(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("precious")


def make_a_group(path: Path) -> None:
    zarr.open_group(str(path), mode="w", zarr_format=3).create_array("obs", shape=(3,), dtype="uint8")


def make_an_array(path: Path) -> None:
    zarr.create_array(str(path), shape=(3,), dtype="uint8", zarr_format=3)


def make_an_old_group(path: Path) -> None:
    zarr.open_group(str(path), mode="w", zarr_format=2).create_array("obs", shape=(3,), dtype="uint8")


def make_an_old_array(path: Path) -> None:
    zarr.create_array(str(path), shape=(3,), dtype="uint8", zarr_format=2)


def contents(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("mode", ["a", "r", "r+", "w-"])
@pytest.mark.parametrize(
    "make", [make_a_file, make_a_directory_of_files, make_a_group, make_an_array, make_an_old_group, make_an_old_array]
)
def test_what_is_no_store_is_refused_and_left_alone(make: Callable[[Path], None], mode: str, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    make(path)
    before = contents(path)
    with pytest.raises(db.errors.NotAStoreError, match="thing"):
        db.ReplayBuffer(path, mode=mode, **GOOD)  # type: ignore[arg-type]
    assert contents(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["thing"]


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("there", [False, True])
def test_a_store_that_must_be_there_and_is_not_is_missed(mode: str, there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "store").mkdir()
    with pytest.raises(db.errors.NotAStoreError, match="there is no store at"):
        db.ReplayBuffer(tmp_path / "store", mode=mode, **GOOD)  # type: ignore[arg-type]
    assert (tmp_path / "store").exists() == there


def test_whoever_reads_too_early_is_told_to_wait_and_not_to_make_a_store(tmp_path: Path) -> None:
    with pytest.raises(db.errors.NotAStoreError, match=r"nothing is yet.*wait=60") as raised:
        db.ReplayBuffer(tmp_path / "store", mode="r", wait=0.1)
    assert "mode 'a'" not in str(raised.value)


@pytest.mark.parametrize("wait", [-1, float("nan"), "60", True])
def test_a_wait_that_is_no_seconds_is_refused(wait: Any, tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match="wait must be seconds, 0 or more, or None for no wait, found"):
        db.ReplayBuffer(tmp_path / "store", mode="r", wait=wait)


@pytest.mark.parametrize("mode", ["a", "r+", "w-"])
def test_whoever_writes_does_not_wait(mode: Any, tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match=re.escape(f"with mode='r', found mode='{mode}'; leave")):
        db.ReplayBuffer(tmp_path / "store", mode=mode, wait=1, **GOOD)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [make_a_file, make_a_directory_of_files, make_a_group])
def test_nobody_waits_where_something_else_is(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "thing")
    with pytest.raises(db.errors.NotAStoreError, match="thing"):
        db.ReplayBuffer(tmp_path / "thing", mode="r", wait=float("inf"))


def test_a_store_that_must_be_new_and_is_not_is_refused(tmp_path: Path) -> None:
    db.ReplayBuffer(tmp_path / "store", mode="w-", **GOOD).close()
    before = contents(tmp_path / "store")
    with pytest.raises(db.errors.NotAStoreError, match="already"):
        db.ReplayBuffer(tmp_path / "store", mode="w-", **GOOD)
    assert contents(tmp_path / "store") == before


def test_an_empty_directory_and_missing_parents_are_room_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        with db.ReplayBuffer(path, **GOOD) as buffer:
            buffer.add([1, 2, 3], 1, 1, [2, 3, 4], False, False)
            assert len(buffer) == 1


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    make_a_file(tmp_path / "file")
    with pytest.raises((db.errors.NotAStoreError, NotADirectoryError, FileExistsError)):
        db.ReplayBuffer(tmp_path / "file" / "store", **GOOD)
    assert (tmp_path / "file").read_text() == "precious"


def _attributes(metadata: Any) -> Any:
    return metadata["attributes"]["diskbuffer"]


DAMAGE: dict[str, Callable[[Any], Any]] = {
    "a list": lambda m: [m],
    "a number": lambda m: 5,
    "no attributes": lambda m: {**m, "attributes": {}},
    "attributes that are text": lambda m: {**m, "attributes": "diskbuffer"},
    "no format": lambda m: _attributes(m).pop("format") and m,
    "no columns": lambda m: _attributes(m).pop("columns") and m,
    "columns in a list": lambda m: _attributes(m).update(columns=[1, 2]) or m,
    "a column without a dtype": lambda m: _attributes(m)["columns"]["obs"].pop("dtype") and m,
    "a column of another dtype": lambda m: _attributes(m)["columns"]["obs"].update(dtype="object") or m,
    "a shape of text": lambda m: _attributes(m)["columns"]["obs"].update(shape="ab") or m,
    "a path out of the store": lambda m: _attributes(m)["columns"].update({"../../x": {"shape": [], "dtype": "int8"}}) or m,
    "no streams": lambda m: _attributes(m).update(streams=0) or m,
    "streams below 0": lambda m: _attributes(m).update(streams=-1) or m,
    "capacity of text": lambda m: _attributes(m).update(capacity="many") or m,
    "capacity 0": lambda m: _attributes(m).update(capacity=0) or m,
    "segment_rows 12": lambda m: _attributes(m).update(segment_rows=12) or m,
    "segment_rows 2**40": lambda m: _attributes(m).update(segment_rows=2**40) or m,
    "frame_stack 0": lambda m: _attributes(m).update(frame_stack=0) or m,
    "padding that is none": lambda m: _attributes(m).update(padding="edge") or m,
    "autoreset that is none": lambda m: _attributes(m).update(autoreset=7) or m,
    "no slots": lambda m: _attributes(m).pop("slots") and m,
    "slots below 0": lambda m: _attributes(m).update(slots=-1) or m,
    "slots of text": lambda m: _attributes(m).update(slots="x") or m,
    "slots in a list": lambda m: _attributes(m).update(slots=[1, 2]) or m,
    "salt below 0": lambda m: _attributes(m).update(salt=-1) or m,
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "store"
    with db.ReplayBuffer(path, 100, **GOOD) as buffer:
        for t in range(20):
            buffer.add([t, 0, 0], t, 1, [t + 1, 0, 0], False, False)
    return path


def copy_with(pristine: Path, tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    (path / "zarr.json").write_bytes(data)
    return path


def check_refused(path: Path, error: type[db.DiskBufferError], message: str) -> None:
    before = contents(path)
    for mode in ("r", "a", "r+"):
        with pytest.raises(error, match=message):
            db.ReplayBuffer(path, mode=mode)
    assert contents(path) == before


@pytest.mark.some(12)
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_metadata_is_refused(what: str, pristine: Path, tmp_path: Path) -> None:
    damaged = DAMAGE[what](json.loads((pristine / "zarr.json").read_bytes()))
    sign(damaged)
    check_refused(copy_with(pristine, tmp_path, json.dumps(damaged).encode()), db.errors.NotAStoreError, "store")


def sign(metadata: Any) -> None:
    """Make the checksum right, as a stranger can."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        attributes = metadata["attributes"]["diskbuffer"]
        attributes.pop("checksum")
        attributes["checksum"] = layout.checksum_of_json(attributes)


@pytest.mark.parametrize(("name", "value"), [("capacity", 99), ("padding", "zeros"), ("tags", ["a"]), ("slots", 9), ("salt", 5)])
def test_metadata_that_was_changed_is_refused(name: str, value: Any, pristine: Path, tmp_path: Path) -> None:
    metadata = json.loads((pristine / "zarr.json").read_bytes())
    _attributes(metadata)[name] = value
    check_refused(copy_with(pristine, tmp_path, json.dumps(metadata).encode()), db.CorruptionError, "checksum")


def test_what_only_other_tools_read_is_mended(pristine: Path, tmp_path: Path) -> None:
    metadata = json.loads((pristine / "zarr.json").read_bytes())
    del metadata["consolidated_metadata"]
    path = copy_with(pristine, tmp_path, json.dumps(metadata).encode())
    (path / "obs" / "zarr.json").write_bytes(b"")
    with db.ReplayBuffer(path) as buffer:
        assert len(buffer) == 20
        assert np.asarray(zarr.open_group(buffer.path, mode="r")["obs"])[3, 0] == 3


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"\xff\xfe{}", b'{"zarr_format": 3,', b"[" * 100_000])
def test_metadata_that_is_no_json_is_refused(data: bytes, pristine: Path, tmp_path: Path) -> None:
    check_refused(copy_with(pristine, tmp_path, data), db.errors.NotAStoreError, "store")


@pytest.mark.parametrize(
    ("version", "advice"),
    [(1, "wrote it"), (2, "wrote it"), *((other, "newer diskbuffer") for other in (99, "two", None, 1.5, True))],
)
def test_another_format_is_refused(version: Any, advice: str, pristine: Path, tmp_path: Path) -> None:
    metadata = json.loads((pristine / "zarr.json").read_bytes())
    metadata["attributes"]["diskbuffer"] = {"format": version, "what is in it": "only the future knows"}
    path = copy_with(pristine, tmp_path, json.dumps(metadata).encode())
    check_refused(path, db.errors.FormatError, f"format {version}.*{advice}")


def table(path: Path, name: str, file: str) -> Any:
    return np.memmap(path / "_segments" / name / file, "<i8", "r+")


@pytest.mark.parametrize(
    ("name", "value"), [("length", 2**40), ("stream", 5), ("stream", -1), ("first_row", 3), ("first_row", -8)]
)
def test_a_segment_table_that_cannot_be_is_refused(name: str, value: int, pristine: Path, tmp_path: Path) -> None:
    path = copy_with(pristine, tmp_path, (pristine / "zarr.json").read_bytes())
    file = "c.0.0" if name == "length" else "c.0"
    slot = int(np.flatnonzero(table(path, "length", "c.0.0"))[0])
    table(path, name, file)[slot] = value
    for mode in ("r", "a"):
        with pytest.raises(db.CorruptionError, match="slot"):
            db.ReplayBuffer(path, mode=mode)


@pytest.mark.parametrize("name", ["action/c.*", "_segments/length/c.0.0", "is_last/c.*"])
@pytest.mark.parametrize("damage", ["removed", "cut short", "emptied"])
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_file_that_is_missing_or_too_short_is_a_typed_error(
    name: str, damage: str, mode: str, pristine: Path, tmp_path: Path
) -> None:
    path = copy_with(pristine, tmp_path, (pristine / "zarr.json").read_bytes())
    for file in path.glob(name):
        if damage == "removed":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-5] if damage == "cut short" else b"")
    with pytest.raises(db.CorruptionError), db.ReplayBuffer(path, mode=mode) as buffer:  # type: ignore[arg-type]
        buffer.sample(64)


def test_a_file_that_is_removed_under_its_writer_is_named(tmp_path: Path) -> None:
    buffer = db.ReplayBuffer(tmp_path / "store", **OPTIONS)
    buffer.add(**step(0))
    for file in (tmp_path / "store" / "obs").glob("c.*"):
        file.unlink()
    missing = pytest.raises(db.CorruptionError, match=r"obs/c\..* is missing; was it removed")
    with missing:
        buffer.extend(**steps(1_000))
    with missing:
        buffer.close()


# Reading


@pytest.mark.parametrize("mode", ["a", "r"])
def test_an_empty_buffer_has_nothing_to_sample(mode: str, tmp_path: Path) -> None:
    db.ReplayBuffer(tmp_path / "store", **GOOD).close()
    with db.ReplayBuffer(tmp_path / "store", mode=mode) as buffer:  # type: ignore[arg-type]
        assert len(buffer) == 0
        assert len(buffer.episodes) == 0
        assert buffer.stats()["steps"] == 0
        for _ in range(2):
            with pytest.raises(db.errors.EmptyBufferError):
                buffer.sample(8)
            with pytest.raises(db.errors.EmptyBufferError):
                next(iter(buffer.loader(8)))
        with pytest.raises(db.InputError):
            buffer.at([0])
        assert buffer.state_dict()["sample"]["batches"] == 0


def test_an_empty_buffer_can_be_sampled_once_it_is_filled(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", **GOOD) as buffer:
        loader = buffer.loader(8)
        with pytest.raises(db.errors.EmptyBufferError):
            next(iter(loader))
        buffer.add([1, 2, 3], 1, 1, [2, 3, 4], False, False)
        assert buffer.sample(8)["action"].tolist() == [1] * 8
        assert next(iter(loader))["action"].tolist() == [1] * 8


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", None])
def test_a_bad_batch_size_is_refused(size: Any, unchanged: db.ReplayBuffer) -> None:
    with pytest.raises(db.InputError, match="batch_size"):
        unchanged.sample(size)
    with pytest.raises(db.InputError, match="batch_size"):
        unchanged.loader(size)
    with pytest.raises(db.InputError, match="prefetch"):
        unchanged.loader(8, prefetch=size or 0)
    with pytest.raises(db.InputError, match="threads"):
        unchanged.loader(8, threads=0 if size is None else size)
    with pytest.raises(db.InputError, match="length"):
        unchanged.at([0], length=0 if size is None else size)


@pytest.mark.parametrize("ids", [[10**9], [-1], [10], [0.0], [[0]], 0, ["a"], [2**70], None])
def test_steps_that_are_not_there_are_refused(ids: Any, unchanged: db.ReplayBuffer) -> None:
    with pytest.raises(db.InputError, match="step"):  # 10 is the last row of the first episode, and no step
        unchanged.at(ids)


def test_a_sequence_that_reaches_beyond_its_episode_is_refused(buffer: db.ReplayBuffer) -> None:
    assert buffer.at([0], length=10)["action"].tolist() == [list(range(10))]
    with pytest.raises(db.InputError, match="no 11 steps can be read from step 0 on: its episode has 10"):
        buffer.at([0], length=11)


ID = r"Steps are ids.*episode\.steps"
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no steps": (lambda b: b.at(), f"found None.*{ID}"),
    "an episode for its steps": (lambda b: b.at(b.episodes[0]), rf"found Episode\(.*{ID}"),
    "the episodes of an episode": (lambda b: b.episodes.of(b.episodes[0]), rf"found Episode\(.*{ID}"),
    "columns that are a number": (lambda b: b.at([0], columns=3), "list of names.*found 3"),
    "columns that are a dict": (lambda b: b.at([0], columns={}), "list of names.*found {}"),
    "the column is_last": (lambda b: b.at([0], columns=["is_last"]), "'is_last'.*buffer.episodes tells"),
    "the column next_obs": (lambda b: b.at([0], columns=["next_obs"]), "'next_obs'.*comes with 'obs'"),
    "the column steps": (lambda b: b.at([0], columns=["steps"]), "'steps'.*every batch"),
    "envs without ages": (lambda b: b.at([0], envs=[0]), "envs=.*give ages="),
    "envs of all steps": (lambda b: b.steps(envs=[0]), "envs=.*give ages="),
    "an environment too many": (lambda b: b.steps([0], envs=[2]), "envs.*no environment 2.*0 to 0"),
    "gamma without n_step": (lambda b: b.at([0], gamma=0.5), "gamma=.*give n_step="),
    "numpy as text": (lambda b: b.at([0], numpy="yes"), "numpy must be True or False, found 'yes'"),
    "n_step that is a bool": (lambda b: b.at([0], n_step=True), "n_step.*True"),
    "episodes by a name": (lambda b: b.episodes["a"], "3 episodes.*found 'a'"),
    "episodes with an axis more": (lambda b: b.episodes[None], "3 episodes.*found None"),
    "episodes by a matrix": (lambda b: b.episodes[np.zeros((2, 2), int)], r"3 episodes.*found array\(\[\["),
    "an episode too many": (lambda b: b.episodes[3], "no episode number 3 of 3"),
    "an episode of none": (lambda b: b.episodes[:0][0], "no episode number 0 of 0"),
    "a table of something": (lambda b: b.episodes.to_pandas(steps=np.arange(3)), "steps must be True or False"),
    "a tag of a running episode": (lambda b: b.episodes.set_tag("a"), "step 22 is not over"),
    "a tag that is a number": (lambda b: b.episodes[:2].set_tag(3), "string.*found 3$"),
    "a tag with NUL": (lambda b: b.episodes[:2].set_tag("a\0"), "NUL.*found 'a.x00'"),
    "one episode to draw from": (lambda b: db.Uniform(episodes=b.episodes[0]), r"episodes\[3:4\] for one"),
    "no column": (lambda b: b.columns["none"], "no column 'none'; there are obs, action"),
    "no observations": (lambda b: b.columns.transformed(None), "obs.*found None"),
    "no function": (lambda b: b.columns.map(None, 4, "x"), "function must.*found None"),
    "no values": (lambda b: b.columns.returns_and_advantages(), r"'value'.*found none.*columns\.map\(\)"),
    "NaN that is written later": (lambda b: b.columns.write("x", [0], [np.nan]), r"x.*NaN.*np\.nan_to_num"),
    "a snapshot in a bucket": (lambda b: b.copies.snapshot("s3://b/x"), "diskbuffer copy PATH s3://b/x` one up"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(what: str, buffer: db.ReplayBuffer) -> None:
    call, message = MISTAKES[what]
    with as_before(buffer), pytest.raises(db.InputError, match=message) as caught:
        call(buffer)
    assert isinstance(caught.value, LookupError) == (what in ("no column", "an episode too many", "an episode of none"))
    assert set(buffer.columns) == {*OPTIONS["columns"], "reward", "terminated", "truncated", "is_last", "row_checksum"}


def test_what_is_not_there_is_looked_up_as_python_does(buffer: db.ReplayBuffer) -> None:
    assert "none" not in buffer.columns
    assert buffer.columns.get("none", 3) == 3
    one: Any = np.int64(1)
    assert buffer.at([0], length=5, n_step=one)["action"].tolist() == [[0, 1, 2, 3, 4]]


def test_a_store_that_is_gone_takes_no_tags(buffer: db.ReplayBuffer, tmp_path: Path) -> None:
    buffer.path.rename(tmp_path / "elsewhere")
    calls: list[Callable[[], Any]] = [lambda: buffer.episodes[:2].set_tag("a"), lambda: buffer.columns.write("x", [0], [1.0])]
    for call in calls:
        with pytest.raises(db.errors.NotAStoreError, match="moved, removed or replaced"):
            call()
    (tmp_path / "elsewhere").rename(buffer.path)
    assert buffer.episodes.tag_names == ()


BAD_STATES: list[Any] = [
    {},
    {"sample": {"seed": 1, "batches": 2}},
    {"sample": {"seed": 1}, "loader": {"seed": 1, "batches": 0}},
    {"sample": {"seed": "x", "batches": 0}, "loader": {"seed": 1, "batches": 0}},
    {"sample": {"seed": 1, "batches": -1}, "loader": {"seed": 1, "batches": 0}},
    {"sample": {"seed": 1, "batches": 0}, "loader": {"seed": -1, "batches": 0}},
    {"sample": 3, "loader": None},
    {"sample": {"seed": 1, "batches": 3}, "loader": {}},
    None,
]


@pytest.mark.parametrize("state", BAD_STATES)
def test_a_state_that_is_none_is_refused(state: Any, unchanged: db.ReplayBuffer) -> None:
    with pytest.raises(db.InputError):
        unchanged.load_state_dict(state)


@pytest.mark.parametrize("seed", [-1, "x", 1.5])
def test_a_bad_seed_of_a_sampler_is_refused(seed: Any) -> None:
    with pytest.raises(db.InputError, match="seed"):
        db.Uniform(seed)


# Closed, and read only

CALLS: dict[str, Callable[[db.ReplayBuffer], Any]] = {
    "add": lambda b: b.add(**step(25)),
    "extend": lambda b: b.extend(**steps(6)),
    "cut_off": lambda b: b.cut_off(),
    "flush": lambda b: b.flush(),
    "write": lambda b: b.columns.write("x", [0], [1.0]),
    "seal": lambda b: b.flush(recompress=True),
    "sample": lambda b: b.sample(4),
    "at": lambda b: b.at([0]),
    "loader": lambda b: b.loader(4),
    "refresh": lambda b: b.refresh(),
    "len": len,
    "episodes": lambda b: b.episodes,
    "stats": lambda b: b.stats(),
}
WRITING = ("add", "extend", "cut_off", "flush", "seal", "write")


@pytest.mark.parametrize("call", CALLS)
def test_use_after_close_is_refused(call: str, buffer: db.ReplayBuffer) -> None:
    buffer.close()
    with pytest.raises(db.errors.ClosedError, match=r"closed.*open it again"):
        CALLS[call](buffer)


def test_a_closed_buffer_says_so_and_closing_twice_is_fine(buffer: db.ReplayBuffer) -> None:
    buffer.close()
    buffer.close()
    assert repr(buffer).endswith("closed>")
    with db.ReplayBuffer(buffer.path) as again:
        assert len(again) == 25
        assert "25" in repr(again)


def test_a_loader_of_a_closed_buffer_raises_and_does_not_hang(buffer: db.ReplayBuffer) -> None:
    loader = buffer.loader(4)
    batches = iter(loader)
    next(batches)
    buffer.close()
    with pytest.raises(db.errors.ClosedError):
        list(itertools.islice(batches, 10))
    with pytest.raises(db.errors.ClosedError):
        next(iter(loader))


@pytest.mark.some(3)
@pytest.mark.parametrize("call", WRITING)
def test_writing_read_only_is_refused(call: str, buffer: db.ReplayBuffer) -> None:
    buffer.close()
    before = contents(buffer.path)
    with db.ReplayBuffer(buffer.path, mode="r") as reader:
        with pytest.raises(db.errors.ReadOnlyError, match=r"^[\w.]+\(\) writes to .*mode='r'\. Open it with mode='a' to write$"):
            CALLS[call](reader)
        assert len(reader) == 25
        reader.sample(5)
    assert contents(buffer.path) == before


def test_every_error_is_a_diskbuffer_error_and_what_python_calls_it() -> None:
    assert len(db.errors.__all__) == 20
    assert all(issubclass(getattr(db.errors, name), db.DiskBufferError) for name in db.errors.__all__)
    assert issubclass(db.InputError, ValueError)
    assert issubclass(db.errors.EmptyBufferError, LookupError)
    assert issubclass(db.errors.EvictedError, LookupError)
    assert issubclass(db.errors.MissingPackageError, ImportError)
    for error in (db.LockedError, db.errors.NotAStoreError, db.errors.FormatError, db.CorruptionError, db.errors.ReadOnlyError):
        assert issubclass(error, OSError)


# What a newcomer tried


@pytest.mark.nightly
def test_a_fork_may_read_and_not_write(tmp_path: Path) -> None:
    code = """
import os, sys, numpy as np, diskbuffer as db
columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
buffer = db.ReplayBuffer(sys.argv[1], columns=columns)
buffer.add(np.zeros(4), 3, 0, np.ones(4), False, True)
if os.fork() == 0:
    refused = 0
    tag, write = lambda: buffer.episodes.set_tag("a"), lambda: buffer.columns.write("x", [0], [1.0])
    add = lambda: buffer.add(np.ones(4), 5, 0, np.ones(4), False, True)
    calls = {"add": add, "flush": buffer.flush, "cut_off": buffer.cut_off, "episodes.set_tag": tag, "columns.write": write}
    for name, call in calls.items():
        try:
            call()
        except db.LockedError as error:
            refused += str(os.getppid()) in str(error) and str(error).startswith(name + "() ")
    fine = refused == 5 and (buffer.sample(4)["action"] == 3).all()
    buffer.close()
    os._exit(0 if fine else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
buffer.add(np.full(4, 7), 7, 0, np.full(4, 8), False, True)
assert sorted(set(buffer.sample(200)["action"].tolist())) == [3, 7]
try:
    db.ReplayBuffer(sys.argv[1])
except db.LockedError:
    print("locked still")
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "locked still\n"), ran.stderr


@pytest.mark.parametrize("wrong", [{"segment_rows": 2**40}, {"capacity": 10**15}, {"capacity": 2**70}])
def test_impossible_sizes_are_refused_and_nothing_is_created(wrong: dict[str, Any], tmp_path: Path) -> None:
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    with pytest.raises(db.InputError, match=next(iter(wrong))):
        db.ReplayBuffer(tmp_path / "store", columns=columns, **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [3, "x" * 300, "self", "info", "mask", "discount", "env/inner", "next_obs/x"])
def test_names_that_cannot_be_columns_are_refused(name: Any, tmp_path: Path) -> None:
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    with pytest.raises(db.errors.SchemaError):
        db.ReplayBuffer(tmp_path / "store", columns=columns, extra={name: db.Column((), "float32")})
    assert not list(tmp_path.iterdir())


def test_what_is_no_sampler_and_lengths_beyond_all_are_refused(tmp_path: Path) -> None:
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.add(np.zeros(4), 3, 0, np.ones(4), False, True)
        for call in (buffer.sample, buffer.loader):
            with pytest.raises(db.InputError, match="sampler"):
                call(4, sampler=3)  # type: ignore[arg-type]
        with pytest.raises(db.InputError, match="no sequence of 2147483648 steps"):
            buffer.at([0], length=2**31)
        assert len(buffer.at([])["steps"]) == 0


def test_tensors_that_require_grad_are_taken_for_their_values(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,)), "action": db.Column((1,))}
    grad = torch.ones(2, requires_grad=True)
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        assert buffer.add(grad, grad[:1], grad[0], grad * 2, False, False) == 1
        buffer.cut_off()
        obs = torch.arange(8.0, requires_grad=True).reshape(4, 2)
        assert buffer.extend(obs=obs, action=obs[:3, :1], reward=obs[:3, 0]) == 3
        buffer.columns.write("value", buffer.steps([0, 1]), grad)
        batch = buffer.at(buffer.steps([3, 2]))
        np.testing.assert_array_equal(batch["obs"], [[1, 1], [0, 1]])
        np.testing.assert_array_equal(batch["reward"], [1, 0])
        assert buffer.columns.map(lambda b: b["obs"][:, 0] * grad[0], 2, "mapped", progress=False) == 4
        with pytest.raises(db.InputError, match="obs"):
            buffer.add(torch.ones(3, requires_grad=True), grad[:1], grad[0], grad, False, False)
        with pytest.raises(db.InputError, match="action"):
            buffer.add(grad * 2, object(), grad[0], grad, False, False)


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "gpu", 1.5])
@pytest.mark.parametrize("what", ["loader", "batches", "map"])
def test_a_device_that_is_not_there_is_refused(what: str, device: Any, unchanged: db.ReplayBuffer) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    asked: dict[str, Any] = {
        "loader": lambda size: unchanged.loader(size, device=device),
        "batches": lambda size: unchanged.batches(size, device=device),
        "map": lambda size: unchanged.columns.map(lambda batch: batch["reward"], size, "mapped", progress=False, device=device),
    }
    with pytest.raises(db.InputError, match="device"):
        asked[what](4)


def test_a_step_of_some_of_the_environments_is_shown_to_extend(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", n_envs=5, autoreset="disabled", **GOOD) as buffer:
        zeros = np.zeros(3)
        with pytest.raises(db.InputError, match=r"add takes a step of all 5 environments at once; extend\(\.\.\., env=N\)"):
            buffer.add(np.zeros((3, 3)), zeros, zeros, np.zeros((3, 3)), zeros, zeros)
        with pytest.raises(db.InputError) as raised:
            buffer.add(np.zeros((5, 4)), np.zeros(5), np.zeros(5), np.zeros((5, 4)), np.zeros(5), np.zeros(5))
        assert "extend" not in str(raised.value)


def test_messages_count_as_people_do(tmp_path: Path) -> None:
    columns = {"obs": db.Column(()), "action": db.Column(())}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.add(1, 1, 1, 2, True, False)
        assert ": 1 step, 1 episode, 1 environment>" in repr(buffer)
        buffer.add(1, 1, 1, 2, True, False)
        assert "2 episodes" in repr(buffer)


def test_a_check_of_nothing_tells_of_no_modes(tmp_path: Path) -> None:
    with pytest.raises(db.errors.NotAStoreError, match=f"there is no store at {tmp_path / 'none'}$"):
        db.check(tmp_path / "none")
