"""What every import and export share: filling a store, going on after a kill, and refusing what does not fit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.commands.cli import main
from diskbuffer.formats import Contents, EpisodeData, Format, export, import_, registry
from diskbuffer.formats.blocks import Wanted, blocks
from diskbuffer.formats.filling import fill
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import Appender
from tests.amounts import examples
from tests.formats import episodes as made
from tests.formats import interrupted
from tests.recording.test_transforms import model


class Written:
    """A target that keeps each episode in a file, as numpy's arrays."""

    def __init__(self, path: Path, contents: Contents) -> None:
        path.mkdir(exist_ok=True)
        self._path = path
        self.held = len(list(path.glob("*.npz")))

    def write(self, episode: EpisodeData) -> None:
        columns: Any = {name.replace("/", "."): np.asarray(rows[:]) for name, rows in episode.columns.items()}
        np.savez(self._path / f"{self.held}.part", **columns)
        os.replace(self._path / f"{self.held}.part.npz", self._path / f"{self.held:05}.npz")
        self.held += 1

    def finish(self) -> None:
        (self._path / "whole").touch()

    def close(self) -> None:
        pass


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Format], None]:
    def put(given: Format) -> None:
        monkeypatch.setattr(registry, "find", lambda name: given)
        monkeypatch.setattr("diskbuffer.formats.importing.find", lambda name: given)
        made.read_here(monkeypatch)
        monkeypatch.setattr("diskbuffer.formats.exporting.find", lambda name: given)

    return put


def source(found: list[EpisodeData], **more: Any) -> Format:
    contents = Contents(made.COLUMNS, len(found), sum(one.steps for one in found), **more)
    return Format("given", "", read=lambda path: made.Given(found, contents))


@given(seed=st.integers(0, 10**6), streams=st.integers(1, 3), final=st.booleans(), kills=st.integers(0, 3))
@examples(2, 40)
def test_any_episodes_are_stored_as_they_are_however_often_it_was_interrupted(
    tmp_path_factory: pytest.TempPathFactory, seed: int, streams: int, final: bool, kills: int
) -> None:
    path = tmp_path_factory.mktemp("stores") / "store"
    random = np.random.default_rng(seed)
    episodes = made.some(int(random.integers(1, 12)), seed, longest=60, final=final)
    episodes = [
        replace(one, stream=int(random.integers(streams)), tag=str(random.choice(["", "good", "bad"]))) for one in episodes
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.formats.rows.BLOCK", int(random.integers(1, 30)) * 1300)  # bytes: a few rows
        for kill in range(kills + 1):
            left = int(random.integers(0, 1 + sum(one.steps for one in episodes))) if kill < kills else 10**9

            def told(steps: int) -> None:
                nonlocal left
                left -= steps
                if left < 0:
                    raise KeyboardInterrupt

            with contextlib.suppress(KeyboardInterrupt), Appender(path, columns=made.COLUMNS, n_envs=streams) as appender:
                fill(appender, blocks(episodes, Wanted.by(appender)), told)
    found = made.read(path)
    for stream in range(streams):
        mine = [one for one in found if one["stream"] == stream]
        made.assert_same(mine, made.expected([one for one in episodes if one.stream == stream]))
    assert db.check(path).ok


def test_an_import_moves_the_store_to_its_place_when_it_is_whole(tmp_path: Path, register: Callable[[Format], None]) -> None:
    episodes = made.some(5)
    register(source(episodes, metadata={"from": "a test"}))
    path = import_("given", tmp_path / "source", tmp_path / "store", progress=False)
    made.assert_same(made.read(path), made.expected(episodes))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store"]
    with db.ReplayBuffer(path) as buffer:
        assert buffer.metadata == {"from": "a test"}


@pytest.mark.parametrize("command", [False, True])
def test_an_import_transforms_pictures_and_what_comes_of_it_is_copied_as_it_is(
    command: bool, tmp_path: Path, register: Callable[[Format], None], capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = made.some(5)
    register(source(episodes))
    path, again = tmp_path / "store", tmp_path / "again"
    if command:
        transform = ["--transform", "obs/camera=resize:4x5,greyscale"]
        assert main(["import", "given", str(tmp_path / "source"), str(path), "--quiet", *transform]) == 0
        assert main(["import", "given", str(tmp_path / "source"), str(again), "--quiet", "--transform", "camera"]) != 0
        assert "such as --transform obs=resize:84x84, found 'camera'" in capsys.readouterr().err
    else:
        transforms = {"obs/camera": (db.Resize(4, 5), db.Greyscale())}
        import_("given", tmp_path / "source", path, transforms=transforms, progress=False)
    smaller = [
        replace(
            one,
            columns={
                **one.columns,
                "obs/camera": model(np.asarray(one.columns["obs/camera"][:]), (db.Greyscale(), db.Resize(4, 5))),
            },
        )
        for one in episodes
    ]
    made.assert_same(made.read(path), made.expected(smaller))
    stored = StoreSource(path)
    register(Format("given", "", read=lambda path: stored))
    import_("given", path, again, progress=False)
    made.assert_same(made.read(again), made.expected(smaller))
    with db.ReplayBuffer(again) as buffer:
        assert buffer.columns["obs/camera"].transforms == (db.Greyscale(), db.Resize(4, 5))


def test_an_import_with_other_transforms_than_the_one_that_was_stopped_begins_anew_where_it_is_told_to(
    tmp_path: Path, register: Callable[[Format], None]
) -> None:
    register(source(made.some(3)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.plugin.Appender.commit", interrupted.stop)
        with pytest.raises(KeyboardInterrupt):
            import_("given", tmp_path, tmp_path / "store", transforms={"obs/camera": db.Resize(4, 5)}, progress=False)
    assert (tmp_path / ".store.unfinished").is_dir()
    smaller: dict[str, Any] = {"transforms": {"obs/camera": db.Resize(4, 6)}, "progress": False}
    with pytest.raises(db.InputError, match=r"\.store\.unfinished has what a run with other options.*restart=True"):
        import_("given", tmp_path, tmp_path / "store", **smaller)
    import_("given", tmp_path, tmp_path / "store", **smaller, restart=True)
    import_("given", tmp_path, tmp_path / "fresh", **smaller)
    made.assert_same(made.read(tmp_path / "store"), made.read(tmp_path / "fresh"))


def test_what_fails_goes_on_once_it_can(tmp_path: Path, register: Callable[[Format], None]) -> None:
    episodes = made.some(6)
    broken = [*episodes[:4], replace(episodes[4], columns={**episodes[4].columns, "action": np.zeros((1, 3), np.float32)})]
    register(source(broken))
    with pytest.raises(db.errors.SourceError, match="episode 4"):
        import_("given", tmp_path / "source", tmp_path / "store", progress=False)
    register(source(episodes))
    with db.ReplayBuffer(tmp_path / ".store.unfinished" / "data", mode="r") as left:
        assert len(left) == sum(one.steps for one in episodes[:4])
    path = import_("given", tmp_path / "source", tmp_path / "store", progress=False)
    made.assert_same(made.read(path), made.expected(episodes))
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_nothing_is_overwritten(tmp_path: Path, register: Callable[[Format], None]) -> None:
    register(source(made.some(1)))
    (tmp_path / "store").write_text("mine")
    with pytest.raises(db.InputError, match="already"):
        import_("given", tmp_path / "source", tmp_path / "store", progress=False)
    assert (tmp_path / "store").read_text() == "mine"


def test_losses_are_named_until_they_are_allowed(tmp_path: Path, register: Callable[[Format], None]) -> None:
    episodes = made.some(2)
    contents = Contents(made.COLUMNS)
    losses = {"seeds": "episodes have seeds", "text": "steps have texts"}
    register(Format("given", "", read=lambda path: made.Given(episodes, contents, losses)))
    with pytest.raises(db.errors.LossError, match=r"allow_loss=\['text', 'seeds'\]") as raised:
        import_("given", tmp_path / "source", tmp_path / "store", allow_loss=["seeds"], progress=False)
    assert "steps have texts" in str(raised.value)
    assert "episodes have seeds" not in str(raised.value)
    import_("given", tmp_path / "source", tmp_path / "store", allow_loss=["seeds", "text"], progress=False)


def test_options_that_a_format_has_not_are_errors_that_name_those_that_it_has(
    tmp_path: Path, register: Callable[[Format], None]
) -> None:
    store = made.store_of(tmp_path / "source", made.some(1))

    def write(path: Path, contents: Contents, *, fps: int = 30) -> Written:
        return Written(path, contents)

    register(replace(source(made.some(1)), write=write))
    with pytest.raises(db.InputError, match="'speed' here; it has fps"):
        export("given", store, tmp_path / "target", progress=False, speed=3)
    with pytest.raises(db.InputError, match="'speed' here; it has none"):
        import_("given", store, tmp_path / "target", progress=False, speed=3)
    export("given", store, tmp_path / "target", progress=False, fps=3)


def test_pickles_are_read_only_when_trusted(tmp_path: Path, register: Callable[[Format], None]) -> None:
    register(replace(source(made.some(1)), pickles=True))
    with pytest.raises(db.InputError, match="trust"):
        import_("given", tmp_path / "source", tmp_path / "store", progress=False)
    import_("given", tmp_path / "source", tmp_path / "store", trust=True, progress=False)


def test_an_export_goes_on_with_the_episodes_that_are_written(tmp_path: Path, register: Callable[[Format], None]) -> None:
    episodes = made.some(6)
    store = made.store_of(tmp_path / "store", episodes)
    register(Format("given", "", write=Written))
    with pytest.MonkeyPatch.context() as patched:
        write = Written.write

        def failing(self: Written, episode: EpisodeData) -> None:
            if self.held == 3:
                raise OSError(28, "No space left on device")
            write(self, episode)

        patched.setattr(Written, "write", failing)
        with pytest.raises(OSError, match="No space"):
            export("given", store, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / ".out.unfinished" / "data").iterdir()}
    assert len(times) == 3
    export("given", store, tmp_path / "out", progress=False)
    files = sorted((tmp_path / "out").glob("*.npz"))
    assert [file.stat().st_mtime_ns for file in files[:3]] == sorted(times.values())
    for file, one in zip(files, made.expected(episodes), strict=True):
        with np.load(file) as arrays:
            for name in made.COLUMNS:
                np.testing.assert_array_equal(arrays[name.replace("/", ".")], one[name])


def test_where_and_columns_choose_what_is_exported(tmp_path: Path, register: Callable[[Format], None]) -> None:
    episodes = made.some(9)
    store = made.store_of(tmp_path / "store", episodes)
    register(Format("given", "", write=Written))
    export("given", store, tmp_path / "out", where="ending == 'truncated'", columns=["obs/state"], progress=False)
    files = sorted((tmp_path / "out").glob("*.npz"))
    assert len(files) == 3
    with np.load(files[1]) as arrays:
        assert sorted(arrays) == ["obs.state", "terminated", "truncated"]
        np.testing.assert_array_equal(arrays["obs.state"], episodes[4].columns["obs/state"][:])
    with pytest.raises(db.InputError, match="no episodes"):
        export("given", store, tmp_path / "none", where="length > 1000", progress=False)


KILLED = """
import sys
sys.path.insert(0, {root!r})
import episodes as made
import pytest
from diskbuffer.formats import Contents, Format, importing
class Slow(made.Given):
    def episodes(self):
        for one in super().episodes():
            print("episode", flush=True)
            sys.stdin.readline()
            yield one
found = made.some(60)
given = Format("given", "", read=lambda path: Slow(found, Contents(made.COLUMNS)))
importing.find = lambda name: given
made.read_here(pytest.MonkeyPatch())
importing.import_("given", "source", {store!r}, progress=False)
"""


@pytest.mark.nightly
def test_an_import_that_is_killed_is_finished_without_doubles(tmp_path: Path) -> None:
    code = KILLED.format(root=str(Path(__file__).parent), store=str(tmp_path / "store"))
    for after in (7, 25):
        interrupted.killed(code, after, cwd=tmp_path)
        assert not (tmp_path / "store").exists()
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=tmp_path)
    made.assert_same(made.read(tmp_path / "store"), made.expected(made.some(60)))
