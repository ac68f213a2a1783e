"""The commands, as users call them: on stores of every kind, damaged or not, something useful and never a traceback."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import diskbuffer as db
from diskbuffer.commands import app
from diskbuffer.commands.cli import main
from soak.damage import contents, damage
from tests.support.experience import Experience
from tests.support.specimens import KINDS, adopt, copy_while_open, make
from tests.support.writers import Writers

FLOATS = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float32")}
PIXELS = {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")}
DICT = {"obs/camera": db.Column((20, 20, 3), "uint8"), "obs/joints": db.Column((3,), "float64"), "action": db.Column((), "int16")}


class Told:
    """What a command said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> None:
        capsys.readouterr()
        self.code = main([str(argument) for argument in arguments])
        self.out, self.err = capsys.readouterr()
        assert "Traceback" not in self.out + self.err

    def json(self) -> Any:
        def refuse(_: str) -> None:
            raise AssertionError("NaN is no JSON")

        return json.loads(self.out, parse_constant=refuse)


def each(path: Path, to: Path) -> Iterator[list[str | Path]]:
    """Yield command lines that look into a store."""
    yield ["info", path]
    yield ["info", path, "--json"]
    yield ["episodes", path]
    yield ["episodes", path, "--where", "length > 3 and not tag == 'x'", "--sort", "return", "--json"]
    yield ["show", path]
    yield ["show", path, "--json"]
    yield ["show", path, "--out", to / "shown.png"]
    yield ["check", path, "--quiet"]
    yield ["marks", path]
    yield ["snapshot", path, to / "snapshot"]


def fill(path: Path, columns: dict[str, db.Column], n_envs: int = 1, steps: int = 40, **options: Any) -> None:
    rng = np.random.default_rng(0)

    def values(column: db.Column, n: int) -> Any:
        found = rng.integers(0, 9, (n, *column.shape)) + (rng.random() if column.np_dtype.kind == "f" else 0)
        return found.astype(column.np_dtype)

    def nested(n: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, column in columns.items():
            top, _, inner = name.partition("/")
            value = values(column, n + (top == "obs"))
            if inner:
                found.setdefault(top, {})[inner] = value
            else:
                found[top] = value
        return found

    with db.ReplayBuffer(path, columns=columns, n_envs=n_envs, autoreset="next_step", segment_rows=16, **options) as buffer:
        for env in range(n_envs if steps else 0):
            for n in (steps // 4, steps - steps // 4):
                buffer.extend(**nested(n), reward=np.ones(n, np.float32), terminated=np.arange(n) == n - 1, env=env)


def picture(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


KINDS_OF_STORES: dict[str, dict[str, Any]] = {
    "dict observations": {"columns": DICT},
    "floats only": {"columns": FLOATS},
    "64 environments": {"columns": FLOATS, "n_envs": 64},
    "pixels": {"columns": PIXELS, "frame_stack": 3},
    "a ring": {"columns": PIXELS, "steps": 200, "capacity": 64},
    "empty": {"columns": PIXELS, "steps": 0},
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS_OF_STORES)
def test_every_command_on_every_kind_of_store(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, given = tmp_path / "store", KINDS_OF_STORES[kind]
    fill(path, **given)
    before = contents(path)
    for line in each(path, tmp_path):
        told = Told(capsys, *line)
        if kind == "empty" and "--out" in line:
            assert (told.code, told.out) == (2, "")
            assert "no episode yet" in told.err
            continue
        assert told.code == 0, (line, told.err)
        assert told.out
        if "--json" in line:
            told.json() if kind != "empty" or line[0] != "show" else None
    assert contents(path) == before
    with db.ReplayBuffer(path, mode="r") as buffer:
        found = Told(capsys, "info", path, "--json").json()
        figures = buffer.stats()
        assert (found["steps"], found["added"], found["capacity"]) == tuple(figures[k] for k in ("steps", "added", "capacity"))
        assert found["disk"]["total"] == figures["disk_bytes"]
        assert found["disk"]["raw"] == figures["raw_bytes"]
        assert [column["name"] for column in found["columns"]] == [*buffer.columns]
        assert found["episodes"]["count"] == len(buffer.episodes) == len(Told(capsys, "episodes", path, "--json").json())
    if kind != "empty":
        height, width, _ = picture(tmp_path / "shown.png").shape
        assert width >= 1000
        assert height > 200


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_stores_that_are_damaged_at_random(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], any_seed: int, amount: Any
) -> None:
    """Bits are flipped, files removed, cut, emptied, swapped, filled with garbage; nothing may be raised, or changed."""
    rng = np.random.default_rng(any_seed)
    make(tmp_path / "pristine", kind, any_seed)
    files = {name: data for name, data in contents(tmp_path / "pristine").items() if data}
    for _ in range(amount(1, 5)):
        path = tmp_path / "damaged"
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(tmp_path / "snapshot", ignore_errors=True)
        shutil.copytree(tmp_path / "pristine", path)
        adopt(path)
        for _ in range(int(rng.integers(1, 3))):
            names = sorted(name for name in files if (path / name).exists())
            name, other = rng.choice(names, 2, replace=False).tolist()
            what = str(rng.choice(["flip", "flip", "cut", "delete", "empty", "garbage", "swap"]))
            at = int(rng.integers(len(files[name])))
            damage({"what": what, "file": name, "other": other, "at": at, "bit": int(rng.integers(8)), "kind": kind}, path, path)
        before = contents(path)
        told = {line[0]: Told(capsys, *line) for line in each(path, tmp_path)}
        assert contents(path) == before
        assert all(one.code in (0, 1, 2) for one in told.values())
        for one in told.values():
            assert one.out.strip() or one.err.strip() or one.code == 0
        if told["check"].code == 0:  # nothing is wrong that counts
            codes, nothing = [told[name].code for name in ("info", "episodes", "show")], "has no episode yet" in told["show"].err
            assert codes == [0, 0, 2 if nothing else 0], (told["info"].err, told["show"].err)


@pytest.mark.parametrize("name", ["zarr.json", "_segments/stream", "is_last/c.0", "reward/c.0"])
def test_a_store_that_cannot_be_opened_is_shown_once_it_is_repaired(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    fill(path, PIXELS, steps=200)
    shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    for command in ("info", "episodes", "show", "stats", *(["view"] if name != "reward/c.0" else ())):
        told = Told(capsys, command, path)
        assert (told.code, told.out) == (1, ""), command
        assert name in told.err
        assert f"Run: diskbuffer check {path}" in told.err
    assert Told(capsys, "check", path, "--repair", "--quiet").code == 0
    for command in ("info", "episodes", "show", "stats"):
        assert Told(capsys, command, path).code == 0, command
    steps = Told(capsys, "info", path, "--json").json()["steps"]
    assert steps == 200 if name in ("zarr.json", "_segments/stream") else 180 < steps < 200


def ways_to_damage(path: Path, rng: np.random.Generator) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Yield what may happen to a store's files and directories: a file of each array, whatever number it has."""

    def delete(place: Path) -> None:
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    def cut(file: Path) -> None:
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])

    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)

    def misplace(directory: Path) -> None:
        shutil.rmtree(directory)
        directory.write_text("no directory")

    found: dict[str, list[str]] = {}
    for name in sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.stat().st_size):
        found.setdefault(re.sub(r"\d+", "N", name), []).append(name)
    for names in found.values():
        for word, way in (("delete", delete), ("cut", cut), ("flip", flip)):
            name = str(rng.choice(names))
            yield f"{word} {name}", partial(_apply, way, name)
    for name in sorted(str(place.relative_to(path)) for place in path.rglob("*") if place.is_dir()):
        yield f"delete {name}", partial(_apply, delete, name)
        yield f"misplace {name}", partial(_apply, misplace, name)


def _apply(way: Callable[[Path], object], name: str, path: Path) -> None:
    way(path / name)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sealed", "not sealed", "a ring", "killed"])
def test_every_command_on_every_kind_of_damage(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], any_seed: int
) -> None:
    """What is shown is what was recorded, all else is told; a repair then mends the store."""
    rng, pristine, path = np.random.default_rng(any_seed), tmp_path / "pristine", tmp_path / "store"
    options: dict[str, Any] = {"capacity": 100} if kind == "a ring" else {}
    fill(pristine, PIXELS, n_envs=2, steps=10 if kind == "not sealed" else 120, **options)
    with db.ReplayBuffer(pristine) as buffer:
        buffer.episodes[:1].set_tag("some")
        if kind == "killed":
            copy_while_open(pristine, tmp_path / "killed")
    pristine = tmp_path / "killed" if kind == "killed" else pristine
    rows = {(row["stream"], row["start"], row["length"]): row for row in Told(capsys, "episodes", pristine, "--json").json()}
    every = list(ways_to_damage(pristine, rng))
    for at in rng.permutation(len(every))[:10].tolist():
        what, apply = every[at]
        for place in (path, tmp_path / "snapshot"):
            shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(pristine, path)
        adopt(path)
        apply(path)
        before = contents(path)
        lines: list[list[str | Path]] = [*each(path, tmp_path), ["stats", path], ["episodes", path, "--json"]]
        told = {str(line[0]): Told(capsys, *line) for line in lines}
        assert contents(path) == before, what
        codes = {command: one.code for command, one in told.items()}
        assert codes["check"] in (0, 1), (what, told["check"].err)
        looking = [told[command] for command in ("info", "episodes", "show", "stats")]
        assert all(one.code in (0, codes["check"]) for one in looking), (what, codes, told["episodes"].err)
        assert all(one.out.strip() if one.code == 0 else "diskbuffer check" in one.out + one.err for one in looking), what
        for row in told["episodes"].json() if told["episodes"].code == 0 else ():
            whole = rows.get((row["stream"], row["start"], row["length"]))
            assert whole is None or (whole["return"], whole["ending"]) == (row["return"], row["ending"]), what
            assert row["return"] == row["length"], what  # each reward is 1
        repaired = Told(capsys, "check", path, "--repair", "--quiet")
        assert repaired.code == 0, (what, repaired.err)
        assert [Told(capsys, command, path).code for command in ("info", "episodes", "show", "check")] == [0, 0, 0, 0], what


def test_info_tells_what_pictures_became(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transform = (db.Greyscale(), db.Resize(34, 33))
    columns = {"obs": db.Column((34, 33), "uint8", transform=transform), "action": db.Column((), "int64")}
    db.ReplayBuffer(tmp_path / "store", columns=columns).close()
    found = {column["name"]: column for column in Told(capsys, "info", tmp_path / "store", "--json").json()["columns"]}
    assert found["obs"]["transforms"] == "greyscale,resize:34x33"
    assert found["action"]["transforms"] is None
    shown = Told(capsys, "info", tmp_path / "store").out
    assert "transforms" in shown
    assert "greyscale" in shown


@pytest.mark.nightly
def test_a_damaged_frame_is_left_out_of_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    fill(path, PIXELS, steps=100)
    with db.ReplayBuffer(path) as buffer:
        buffer.flush(recompress=True)
    sealed = path / "obs" / "c.0.0.0"
    data = bytearray(sealed.read_bytes())
    data[40] ^= 1
    sealed.write_bytes(data)
    told = Told(capsys, "show", path, "0", "--out", tmp_path / "a.png")
    assert told.code == 1
    assert "Some of this is damaged" in told.err
    assert picture(tmp_path / "a.png").shape[1] > 100


@pytest.mark.parametrize("command", ["info", "episodes", "show", "check", "marks", "snapshot"])
def test_what_is_no_store(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("x")
    (tmp_path / "zarr").mkdir()
    (tmp_path / "zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    more = [str(tmp_path / "to")] if command == "snapshot" else []
    for path in ("file", "full", "zarr", "nothing", "file/below", "https://a.b/c"):
        told = Told(capsys, command, path if ":" in path else tmp_path / path, *more)
        assert told.code == 2
        assert told.out == ""
        assert len(told.err) > 20


@pytest.mark.some(2)
@pytest.mark.parametrize("command", ["info", "episodes", "show", "stats", "plan"])
def test_a_directory_of_stores_and_one_in_a_store(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    make(tmp_path / "runs" / "b", "flat, closed", 0)
    shutil.copytree(tmp_path / "runs" / "b", tmp_path / "runs" / "a")
    told = Told(capsys, command, tmp_path / "runs")
    assert f"runs is no store, but a directory of stores; give the path of one, such as {tmp_path}/runs/a" in told.err
    told = Told(capsys, command, tmp_path / "runs" / "a" / "obs")
    assert f"runs/a/obs is inside of the store {tmp_path}/runs/a; give that path" in told.err


def test_an_environment_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, "check-env", "CartPole-v1", "--episodes", "2", "--envs", "2")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("CartPole-v1: 2 environments, ")
    assert told.out.splitlines()[-1] == "Nothing odd was found."
    told = Told(capsys, "check-env", f"{__name__}:odd_environment", "--steps", "10", "--json")
    assert told.code == 1
    assert [finding["name"] for finding in told.json()["findings"]] == ["dtype of observations", "no end"]
    for arguments, said in ((("NoSuch-v0",), "cannot be made"), (("CartPole-v1", "--steps", "0"), "--steps must be")):
        told = Told(capsys, "check-env", *arguments)
        assert (told.code, told.out) == (2, "")
        assert said in told.err


def odd_environment() -> Any:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs.astype(np.float64), env.observation_space)


@pytest.mark.nightly
def test_a_store_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], writers: Writers) -> None:
    path = tmp_path / "store"
    writers.start(path, Experience(2), "add", capacity=300, segment_rows=16)
    writers.wait_for(5)
    for line in each(path, tmp_path):
        told = Told(capsys, *line)
        assert told.code == 0, (line, told.err)
    found = Told(capsys, "info", path, "--json").json()
    assert found["left"] == "open"
    assert found["writer"]["pid"] > 0
    writers.kill()
    found = Told(capsys, "info", path, "--json").json()
    assert (found["left"], found["writer"]) == ("killed", None)
    shutil.rmtree(tmp_path / "snapshot")
    for line in each(path, tmp_path):
        assert Told(capsys, *line).code == 0


# Single commands


ESCAPES = "\x1b[31m\x9b5m\u202e\x07"


@pytest.mark.nightly
def test_what_a_terminal_would_act_upon_is_written_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = tmp_path / f"name {ESCAPES}"
    hostile.mkdir()
    (hostile / f"{ESCAPES}.npz").write_bytes(b"")
    path = hostile / "store"
    fill(path, FLOATS)
    with db.ReplayBuffer(path) as buffer:
        buffer.episodes[:1].set_tag(f"tag {ESCAPES}")
    (tmp_path / "no store").mkdir()
    lines: list[list[str | Path]] = [
        ["import", "dreamer", hostile, tmp_path / "new"],
        ["info", tmp_path / f"missing {ESCAPES}"],
        ["check", tmp_path / f"missing {ESCAPES}"],
        *(line for line in each(path, tmp_path) if line[0] != "snapshot"),
        ["stats", path],
        ["stats", path, "--json"],
    ]
    for line in lines:
        told = Told(capsys, *line)
        assert re.search(r"[^\n\x20-\x7e\xa0-\uffff]|\u202e", told.out + told.err) is None, line
    rows = Told(capsys, "episodes", path, "--json").json()
    assert f"tag {ESCAPES}" in {row["tag"] for row in rows}


def test_episodes_are_filtered_sorted_and_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    fill(path, FLOATS, n_envs=5)
    with db.ReplayBuffer(path) as buffer:
        buffer.episodes[:3].set_tag("demo [bold]")
        buffer.episodes[3:4].set_tag("evil \x1b[31m")
    rows = Told(capsys, "episodes", path, "--where", "length > 20", "--sort", "stream", "--reverse", "--json").json()
    assert [row["stream"] for row in rows] == [4, 3, 2, 1, 0]
    assert {row["length"] for row in rows} == {30}
    assert [row["episode"] for row in Told(capsys, "episodes", path, "--sort", "tag", "--limit", "2", "--json").json()] == [2, 3]
    text = Told(capsys, "episodes", path, "--limit", "3").out
    assert "10 episodes" in text
    assert "3 are shown" in text
    text = Told(capsys, "episodes", path).out
    assert "demo [bold]" in text
    assert "\x1b" not in text
    assert "evil \\x1b[31m" in text
    for line, said in (
        (["--where", "lenght > 3"], "did you mean 'length'"),
        (["--sort", "size"], "episodes have no 'size'; they have episode, stream"),
        (["--limit", "-1"], "limit must be 0"),
    ):
        told = Told(capsys, "episodes", path, *line)
        assert told.code == 2
        assert said in told.err


@pytest.mark.nightly
def test_show_draws_vectors_beside_pictures_and_large_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"obs/camera": ((12, 12), "uint8"), "obs/joints": ((3,), "float32"), "obs/features": ((400,), "float32")}
    columns = {path: db.Column(*shape) for path, shape in shapes.items()} | {"action": db.Column((2,), "float32")}
    rng = np.random.default_rng(0)
    obs = {path.removeprefix("obs/"): rng.integers(0, 9, (11, *shape)).astype(dtype) for path, (shape, dtype) in shapes.items()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(obs=obs, action=rng.normal(size=(10, 2)), reward=np.ones(10), terminated=np.arange(10) == 9)
    found = Told(capsys, "show", tmp_path / "store", "--json").json()["columns"]
    assert list(found) == ["return so far", "reward", "action", "obs/joints", "obs/features"]
    assert np.array_equal(found["obs/joints"], obs["joints"][:10])
    assert np.array_equal(found["obs/features"], obs["features"][:10])
    heights = []
    for steps in ("0:10", "0:5"):
        Told(capsys, "show", tmp_path / "store", "--out", tmp_path / "a.png", "--steps", steps)
        heights.append(picture(tmp_path / "a.png").shape[0])
    assert min(heights) > 5 * 110  # five panels


@pytest.mark.nightly
def test_show_writes_pictures_and_movies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    fill(path, PIXELS)
    for name in ("a.png", "a.gif", "a.mp4"):
        assert Told(capsys, "show", path, "-1", "--out", tmp_path / name, "--steps", "3:20").out.strip() == str(tmp_path / name)
    with Image.open(tmp_path / "a.gif") as movie:
        assert getattr(movie, "n_frames", 0) == 17
    assert (tmp_path / "a.mp4").read_bytes()[4:8] == b"ftyp"
    with db.ReplayBuffer(path, mode="r") as buffer:
        frames = buffer.episode(11)["obs"].numpy()
    np.testing.assert_array_equal(picture(tmp_path / "a.gif")[..., 0], frames[3])
    found = Told(capsys, "show", path, "11", "--json").json()
    assert found["columns"]["reward"] == [1.0] * 30
    assert found["columns"]["return so far"][-1] == 30 == found["return"]
    for line, said in (
        (["9"], "there is no episode 9, or not any more. An episode's id is"),
        (["-3"], "there is no episode -3: the store has 2 episodes"),
        (["0", "--out", str(tmp_path / "a.jpg")], "must end with one of .png, .gif, .mp4"),
        (["0", "--out", str(path / "a.png")], "inside of the store"),
        (["0", "--out", str(tmp_path / "no" / "a.png")], "No such file"),
        (["0", "--column", "reward"], "those that have are: obs"),
        (["0", "--steps", "5"], "must be FROM:TO"),
        (["0", "--steps", "50:60"], "begins at 50"),
        (["0", "--out", str(tmp_path / "a.gif"), "--fps", "1000"], "fps must be"),
    ):
        told = Told(capsys, "show", path, *line)
        assert told.code == 2, line
        assert said in told.err
    db.ReplayBuffer(tmp_path / "empty", columns=FLOATS).close()
    told = Told(capsys, "show", tmp_path / "empty", "--out", tmp_path / "none.png")
    assert (told.code, (tmp_path / "none.png").exists()) == (2, False)
    assert "has no episode yet" in told.err
    assert Told(capsys, "show", tmp_path / "empty", "--json").json() is None
    fill(tmp_path / "floats", FLOATS)
    assert "no column of this store has pictures" in Told(capsys, "show", tmp_path / "floats", "--out", tmp_path / "b.mp4").err
    assert Told(capsys, "show", tmp_path / "floats", "--out", tmp_path / "b.png").code == 0


def test_check_and_marks_tell_programs_what_they_tell_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    fill(path, PIXELS)
    with db.ReplayBuffer(path) as buffer:
        buffer.copies.mark("one")
        buffer.copies.mark("two")
    assert Told(capsys, "marks", path, "--json").json() == ["one", "two"]
    assert Told(capsys, "marks", path, "--remove", "one", "--json").json() == ["two"]
    assert Told(capsys, "info", path, "--json").json()["marks"] == ["two"]
    assert Told(capsys, "check", path, "--json").json()["ok"] is True
    (path / "action" / "c.0").unlink()
    told = Told(capsys, "check", path, "--json")
    assert told.code == 1
    assert told.json()["problems"][0]["column"] == "action"
    told = Told(capsys, "check", path)
    assert told.code == 1
    assert re.search(r"column 'action', steps \d+ to \d+: .*\n.*1 problem", told.out)
    with db.ReplayBuffer(tmp_path / "other", columns=PIXELS):
        told = Told(capsys, "check", tmp_path / "other", "--repair")
        assert told.code == 2
        assert "is being written to by this process" in told.err
    assert re.search(r"1 problem; repaired: \d+ rows? dropped", Told(capsys, "check", path, "--repair", "--quiet").out)


def test_a_snapshot_is_a_store_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "store", PIXELS)
    assert Told(capsys, "snapshot", tmp_path / "store", tmp_path / "copy").out.strip() == str(tmp_path / "copy")
    assert db.check(tmp_path / "copy", progress=False).ok
    assert Told(capsys, "snapshot", tmp_path / "store", tmp_path / "copy").code == 2


@pytest.mark.parametrize(
    "line", [["nonsense"], ["info"], ["info", "a", "b", "c"], ["episodes", "x", "--limit", "many"], ["info", "x", "--y"]]
)
def test_what_is_no_command_line(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys, *line)
    assert told.code == 2
    assert told.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = Told(capsys, "--help").out
    assert all(name in text for name in app.COMMANDS)
    for name in app.COMMANDS:
        told = Told(capsys, name, "--help")
        assert told.code == 0
        assert name in told.out
        assert "False]" not in told.out
        first = (inspect.getdoc(app._function(name)) or "").partition("\n\n")[0]  # of which the list has a sentence
        assert " ".join(first.split())[:60] in " ".join(told.out.split())
    assert Told(capsys, "--version").out.strip() == f"diskbuffer {db.__version__}"


@pytest.mark.nightly
def test_nothing_slow_is_imported_to_look(tmp_path: Path) -> None:
    fill(tmp_path / "store", PIXELS)
    program = (
        "import sys; from diskbuffer.commands.cli import main; code = main(sys.argv[1:]); "
        "print(*sorted({'torch', 'zarr', 'pandas'} & sys.modules.keys()), file=sys.stderr); "
        "sys.exit(code)"
    )
    for line in (["info"], ["show", "--out", str(tmp_path / "a.png")], ["marks"]):
        arguments = [line[0], str(tmp_path / "store"), *line[1:]]
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == ""


@pytest.mark.nightly
def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    fill(tmp_path / "store", FLOATS, n_envs=64)
    line = f"{sys.executable} -m diskbuffer episodes {tmp_path / 'store'} --limit 0 --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_extra_it_is_told_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskbuffer.commands.cli._NEEDED", ("a_package_that_is_not_there", "numpy"))
    assert main(["check", str(tmp_path / "store")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "the commands need a_package_that_is_not_there: pip install 'diskbuffer[cli]'" in told.err
