"""A run that was stopped, and a source that is another by then: what comes of the same call is what the source has now."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.columns.columns import Columns
from diskbuffer.formats import export, import_
from diskbuffer.formats.stored import StoreSource
from tests.amounts import examples
from tests.formats import episodes as made
from tests.support.specimens import contents

SEEDS = st.integers(0, 10**6)
STOPS: list[BaseException] = [KeyboardInterrupt(), OSError(28, "No space left on device"), db.InputError("a NaN")]


@contextlib.contextmanager
def stopping(random: np.random.Generator, what: type, name: str, most: int) -> Iterator[None]:
    """Have a method raise at a random call: a run that is stopped, that runs out of disk, or that fails."""
    error = STOPS[int(random.integers(len(STOPS)))]
    with stopped_at(int(random.integers(0, most)), what, name, error):
        yield


@contextlib.contextmanager
def stopped_at(left: int, what: type, name: str, error: BaseException) -> Iterator[None]:
    """Have a method raise when it was called so often."""
    function = getattr(what, name)

    def call(*args: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return function(*args, **named)

    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(type(error)):
        made.read_here(patched, 300)  # a few rows
        patched.setattr(what, name, call)
        yield


# Imports


def robomimic(path: Path, random: np.random.Generator, lengths: list[int]) -> None:
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(lengths):
            demo = file.create_group(f"data/demo_{number}")
            demo["obs"], demo["actions"] = random.normal(size=(steps, 4)), random.normal(size=(steps, 2))
            demo["rewards"] = random.normal(size=steps)


def maniskill(path: Path, random: np.random.Generator, lengths: list[int]) -> None:
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(lengths):
            demo = file.create_group(f"traj_{number}")
            demo["obs"], demo["actions"] = random.normal(size=(steps + 1, 4)), random.normal(size=(steps, 2))
    seeds = [{"episode_id": number, "episode_seed": int(random.integers(1000))} for number in range(len(lengths))]
    path.with_suffix(".json").write_text(json.dumps({"episodes": seeds}))


def drqv2(path: Path, random: np.random.Generator, lengths: list[int]) -> None:
    path.mkdir(exist_ok=True)
    for file in path.iterdir():
        file.unlink()
    for number, steps in enumerate(lengths):
        arrays: Any = {"observation": random.normal(size=(steps + 1, 4)), "action": random.normal(size=(steps + 1, 2))}
        arrays |= {"reward": random.normal(size=(steps + 1, 1)), "discount": np.ones((steps + 1, 1))}
        np.savez(path / f"0_{number}_{steps}.npz", **arrays)


FORMATS: dict[str, Callable[[Path, np.random.Generator, list[int]], None]] = {
    "robomimic": robomimic,
    "maniskill": maniskill,
    "drqv2": drqv2,
}


def gone_on(call: Callable[..., Any], *given: Any, **options: Any) -> None:
    """Go on with what an earlier run has left, or begin anew where it is told that this is of something else."""
    try:
        call(*given, **options)
    except db.InputError as error:
        if "begin anew" not in str(error):
            raise
        call(*given, **options, restart=True)


@examples(2, 60)
@given(seed=SEEDS, format=st.sampled_from(sorted(FORMATS)))
def test_an_import_that_was_stopped_never_mixes_two_sources(
    tmp_path_factory: pytest.TempPathFactory, seed: int, format: str
) -> None:
    path, random = tmp_path_factory.mktemp("resuming"), np.random.default_rng(seed)
    lengths = random.integers(1, 30, int(random.integers(1, 6))).tolist()
    source = path / "source.h5"
    FORMATS[format](source, random, lengths)
    for _ in range(int(random.integers(1, 3))):
        with stopping(random, db.ReplayBuffer, "extend", 12):
            gone_on(import_, format, source, path / "store", progress=False)
        if (path / "store").exists():
            return
        change = random.integers(4)
        if change == 0:
            lengths = [*lengths, 3]
        if change <= 1:
            FORMATS[format](source, random, lengths)  # the same sizes, where there are as many
        elif change == 2 and format == "maniskill":
            maniskill(path / "other.h5", random, lengths)
            os.replace(path / "other.json", source.with_suffix(".json"))
    gone_on(import_, format, source, path / "store", progress=False)
    import_(format, source, path / "fresh", progress=False)
    made.assert_same(made.read(path / "store"), made.read(path / "fresh"))
    assert not (path / ".store.unfinished").exists()


def test_a_source_with_the_size_and_the_time_of_another_is_told_from_it_by_its_content(tmp_path: Path) -> None:
    source = tmp_path / "source.h5"
    robomimic(source, np.random.default_rng(0), [5, 5, 5])
    before = source.stat()
    with stopped_at(2, db.ReplayBuffer, "extend", KeyboardInterrupt()):
        import_("robomimic", source, tmp_path / "store", progress=False)
    assert (tmp_path / ".store.unfinished").exists()
    robomimic(source, np.random.default_rng(1), [5, 5, 5])
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    with pytest.raises(db.InputError, match="or of something else by now"):
        import_("robomimic", source, tmp_path / "store", progress=False)
    import_("robomimic", source, tmp_path / "store", restart=True, progress=False)
    import_("robomimic", source, tmp_path / "fresh", progress=False)
    made.assert_same(made.read(tmp_path / "store"), made.read(tmp_path / "fresh"))


def test_an_import_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, extend, calls = tmp_path / "source.h5", db.ReplayBuffer.extend, 0
    robomimic(source, np.random.default_rng(0), [5, 5, 5])

    def counted(*args: Any, **named: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return extend(*args, **named)

    monkeypatch.setattr(db.ReplayBuffer, "extend", counted)
    with pytest.raises(KeyboardInterrupt):
        import_("robomimic", source, tmp_path / "store", progress=False)
    import_("robomimic", source, tmp_path / "store", progress=False)
    assert calls == 4  # and the one that was stopped: the first two are not there again


@pytest.mark.parametrize("format", ["robomimic", "drqv2"])
def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, extend, calls = tmp_path / "source.h5", db.ReplayBuffer.extend, 0
    FORMATS[format](source, np.random.default_rng(0), [5, 5, 5])

    def changing(*args: Any, **named: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            last = source if source.is_file() else sorted(source.iterdir())[-1]
            with last.open("ab") as file:
                file.write(b"\0" * 8)
        return extend(*args, **named)

    monkeypatch.setattr(db.ReplayBuffer, "extend", changing)
    with pytest.raises(db.errors.SourceError, match="changed while it was read"):
        import_(format, source, tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()


def test_after_an_error_the_same_import_with_another_option_works(tmp_path: Path) -> None:
    source = tmp_path / "source.h5"
    robomimic(source, np.random.default_rng(0), [5, 5])
    with h5py.File(source, "a") as file:
        file["data/demo_1/rewards"][2] = np.nan
    for _ in range(2):
        with pytest.raises(db.InputError, match="NaN"):
            import_("robomimic", source, tmp_path / "store", progress=False)
    import_("robomimic", source, tmp_path / "store", allow_nan=True, restart=True, progress=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["source.h5", "store"]


# Exports and copies


def store_of(path: Path, random: np.random.Generator) -> None:
    episodes = made.some(int(random.integers(2, 7)), int(random.integers(10**6)), longest=20)
    made.store_of(path, episodes)
    with db.ReplayBuffer(path, mode="r+") as buffer:
        buffer.columns.write("value", buffer.steps(), np.ones(len(buffer)))


def change(path: Path, random: np.random.Generator) -> None:
    """Change a store in one of the ways in which it stays the same in others."""
    way = int(random.integers(6))
    with db.ReplayBuffer(path, mode="r+") as buffer:
        if way == 0:
            buffer.columns.write("value", buffer.steps(), np.full(len(buffer), 2.0))
        elif way == 1:
            buffer.columns.write("value", buffer.steps()[-1:], np.array([3.0]))
        elif way == 2:
            made_of = made.some(1, int(random.integers(10**6)))[0]
            buffer.close()
            with db.ReplayBuffer(path, mode="r+", autoreset="disabled") as again:
                again.extend(**nested(made_of), new_episode=True)
        elif way == 3:
            buffer.episodes[-1:].set_tag("other")
        elif way == 4:
            buffer.columns.write("value", buffer.steps(), np.ones(len(buffer)))


def nested(episode: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, rows in episode.columns.items():
        top, _, inner = path.partition("/")
        if inner:
            found.setdefault(top, {})[inner] = rows
        else:
            found[top] = rows
    return found


@pytest.mark.nightly
@examples(2, 40)
@given(seed=SEEDS)
def test_an_export_that_was_stopped_has_derived_columns_as_they_are_now(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path, random = tmp_path_factory.mktemp("resuming"), np.random.default_rng(seed)
    store_of(path / "store", random)
    options: dict[str, Any] = {"allow_loss": ["derived", "tags"], "progress": False, "shard_mb": 1}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.formats.webdataset.ShardWriter._add", adding_small_shards())
        for _ in range(2):
            with stopping(random, StoreSource, "read", 60):
                gone_on(export, "webdataset", path / "store", path / "out", **options)
            if (path / "out").exists():
                return
            change(path / "store", random)
        gone_on(export, "webdataset", path / "store", path / "out", **options)
        export("webdataset", path / "store", path / "fresh", **options)
    assert contents(path / "out") == contents(path / "fresh")


def adding_small_shards() -> Any:
    """Return `ShardWriter._add`, for which each shard is full at once."""
    from diskbuffer.formats.webdataset import ShardWriter

    add = ShardWriter._add

    def adding(self: ShardWriter, *args: Any) -> None:
        self._largest = 1
        add(self, *args)

    return adding


@examples(1, 40)
@given(seed=SEEDS)
def test_a_copy_that_was_stopped_has_derived_columns_as_they_are_now(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path, random = tmp_path_factory.mktemp("resuming"), np.random.default_rng(seed)
    store_of(path / "store", random)
    options: dict[str, Any] = {"where": "length > 0", "progress": False}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.formats.blocks.MOST_ROWS", 7)
        for _ in range(2):
            stopped = [(db.ReplayBuffer, "extend", 12), (Columns, "write", 6)][int(random.integers(2))]
            with stopping(random, *stopped):
                gone_on(editing.copy, path / "store", path / "copy", **options)
            if (path / "copy").exists():
                return
            change(path / "store", random)
        gone_on(editing.copy, path / "store", path / "copy", **options)
        editing.copy(path / "store", path / "fresh", **options)
    made.assert_same(made.read(path / "copy"), made.read(path / "fresh"))


@pytest.mark.nightly
def test_a_derived_column_that_is_written_while_it_is_read_is_warned_of(tmp_path: Path) -> None:
    store_of(tmp_path / "store", np.random.default_rng(0))
    read, calls = StoreSource.read, 0

    def writing(self: StoreSource, path: str, *args: Any) -> Any:
        nonlocal calls
        calls += path == "value"
        if path == "value" and calls == 2:
            change_values(tmp_path / "store", 2.0)
        return read(self, path, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreSource, "read", writing)
        with pytest.warns(UserWarning, match="value was written while it was read"):
            editing.copy(tmp_path / "store", tmp_path / "copy", where="length > 0", progress=False)
        change_values(tmp_path / "store", 1.0)
        calls = 0
        with pytest.warns(UserWarning, match="value was written while it was read"):
            export("webdataset", tmp_path / "store", tmp_path / "out", allow_loss=["derived"], progress=False)


def change_values(path: Path, value: float) -> None:
    with db.ReplayBuffer(path, mode="r+") as buffer:
        buffer.columns.write("value", buffer.steps(), np.full(len(buffer), value))


@pytest.mark.nightly
def test_an_export_of_several_writers_goes_on_only_with_the_same_episodes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        made.store_of(tmp_path / "store", made.some(3, seed), writer=name)
        made.store_of(tmp_path / "other", made.some(3, seed + 5, longest=1), writer=name)
    found = [StoreSource(tmp_path / name).fingerprint() for name in ("store", "store", "other")]
    assert found[0] == found[1] != found[2]


@pytest.mark.nightly
def test_a_copy_does_not_go_on_with_a_store_that_parted_from_its_source(tmp_path: Path) -> None:
    """A snapshot has the source's number, and what both record later lies at the same positions."""
    store, other = tmp_path / "store", tmp_path / "other"
    columns = {"obs": db.Column((2,), "float32")}
    with db.ReplayBuffer(store, columns=columns) as buffer:
        buffer.copies.snapshot(other)
    for path, value in ((store, 1.0), (other, 2.0)):
        with db.ReplayBuffer(path, mode="r+") as buffer:
            for _ in range(3):
                obs = np.arange(6, dtype=np.float32)[:, None] + np.full((6, 2), value, np.float32)
                buffer.extend(obs, reward=np.full(5, value), truncated=np.arange(5) == 4, new_episode=True)
    with stopped_at(1, db.ReplayBuffer, "extend", KeyboardInterrupt()):
        editing.copy(store, tmp_path / "copy", where="length > 0", progress=False)
    assert (tmp_path / ".copy.unfinished").exists()
    with pytest.raises(db.InputError, match="or begin anew: restart=True"):
        editing.copy(other, tmp_path / "copy", where="length > 0", progress=False)
    editing.copy(other, tmp_path / "copy", where="length > 0", restart=True, progress=False)
    made.assert_same(made.read(tmp_path / "copy"), made.read(other))
