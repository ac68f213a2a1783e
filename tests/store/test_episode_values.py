"""Values of episodes: what is given is there, whatever becomes of the process, the disk or the store, and of no other episode."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import google_crc32c
import numpy as np
import pytest
import torch

import diskbuffer as db
from diskbuffer.errors import CorruptionError, InputError, ReadOnlyError
from diskbuffer.index import named_values
from diskbuffer.plugin import Reader
from diskbuffer.store import episode_values
from diskbuffer.store.system.files import Files
from tests.support.workloads import boot

COLUMNS = {"obs": db.Column((), "float32"), "action": db.Column((), "int64")}
LENGTH = f"{episode_values._DIRECTORY}"


def add_episode(buffer: db.ReplayBuffer, steps: int = 3, env: int = 0, *, over: bool = True) -> None:
    flags = np.arange(steps) == steps - 1
    obs, zeros = np.arange(steps + 1, dtype=np.float32), np.zeros(steps)
    buffer.extend(obs=obs, action=zeros.astype(int), reward=zeros, terminated=flags & over, env=env)


def opened(path: Path, episodes: int = 0, **options: Any) -> db.ReplayBuffer:
    buffer = db.ReplayBuffer(path, columns=COLUMNS, flush_every=None, **options)
    for _ in range(episodes):
        add_episode(buffer)
    return buffer


def found(buffer: db.ReplayBuffer) -> dict[int, dict[str, Any]]:
    """Return the values of each episode, by its id, as both ways of reading tell them."""
    of_each = {episode.id: episode.values for episode in buffer.episodes}
    table = buffer.episodes.values
    for at, id_ in enumerate(of_each):
        for name, column in table.items():
            missing = {"b": False, "i": None, "f": np.nan, "T": ""}[column.dtype.kind]
            np.testing.assert_equal(column[at], of_each[id_].get(name, missing))
    return of_each


def file_of(path: Path) -> Path:
    return max((path / LENGTH).glob("episode_values.*"), key=lambda file: int(file.suffix[1:]))


# Everything by chance


class Model:
    """A plain dict beside a store that evicts, clears, goes back to marks, and is flushed, copied, closed and opened."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        self.path, self.rng = path, rng
        self.buffer = self.open()
        self.given: dict[int, dict[str, Any]] = {}
        self.marks: dict[str, dict[int, dict[str, Any]]] = {}
        self.newest = 0  # of the files of values

    def open(self, **options: Any) -> db.ReplayBuffer:
        return opened(self.path, capacity=200, n_envs=2, autoreset="disabled", segment_rows=16, **options)

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 8))):
            add_episode(self.buffer, int(self.rng.integers(1, 12)), int(self.rng.integers(2)), over=self.rng.random() < 0.9)

    def give(self) -> None:
        episodes = self.buffer.episodes
        over = np.flatnonzero(episodes.ending != "running")
        some = episodes[self.rng.permutation(over)[: int(self.rng.integers(0, 5))]]
        names = self.rng.choice(["success", "score", "count", "text"], 2, replace=False)
        columns = {name: [self.value(name) for _ in range(len(some))] for name in names.tolist()}
        assert some.set_values(**columns) == len(some)
        for at, id_ in enumerate(some.id.tolist()):
            row = self.given.setdefault(id_, {}) | {name: values[at] for name, values in columns.items()}
            self.given[id_] = {name: value for name, value in row.items() if value is not None}

    def value(self, name: str) -> Any:
        if self.rng.random() < 0.2:
            return None
        number = int(self.rng.integers(1000))
        return {"success": number % 2 == 0, "score": number / 7, "count": number, "text": f"text {number} ü" * (number % 9)}[name]

    def flush(self) -> None:
        self.buffer.flush()
        if self.given:
            self.newest = max(self.newest, int(file_of(self.path).suffix[1:]))

    def reopen(self) -> None:
        self.buffer.close()
        self.buffer = self.open()

    def clear(self) -> None:
        self.buffer.clear()

    def mark(self) -> None:
        self.buffer.copies.mark("m", replace=True)
        self.marks["m"] = {id_: dict(row) for id_, row in self.given.items()}

    def go_back(self) -> None:
        if self.marks:
            self.buffer.close()
            self.buffer = self.open(mark="m")
            self.given = {id_: dict(row) for id_, row in self.marks["m"].items()}

    def snapshot(self) -> None:
        place = self.path.with_name(f"snapshot{self.rng.integers(2**62)}")
        by_reader = self.rng.random() < 0.5
        if by_reader:
            with db.ReplayBuffer(self.path, mode="r") as reader:
                reader.copies.snapshot(place)
        else:
            self.buffer.copies.snapshot(place)
        with db.ReplayBuffer(place) as copy:
            self.check(copy)
            if len(copy.episodes):
                copy.episodes[:1].set_values(success=True)

    def check(self, buffer: db.ReplayBuffer) -> None:
        assert found(buffer) == {id_: self.given.get(id_, {}) for id_ in buffer.episodes.id.tolist()}


@pytest.mark.parametrize("seed", range(2))
def test_values_are_those_of_a_dict(seed: int, tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    rng = np.random.default_rng(seed)
    often = {"add": 8, "give": 10, "flush": 3, "reopen": 1, "clear": 0.3, "mark": 0.5, "go_back": 0.3, "snapshot": 0.7}
    shares = np.array([*often.values()]) / sum(often.values())
    with mock.patch.object(episode_values, "_SMALL", 200), mock.patch.object(named_values, "_FEW", 2):
        model = Model(tmp_path / "store", rng)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            for _ in range(amount(500, 50)):
                call = str(rng.choice([*often], p=shares))
                getattr(model, call)()
                if rng.random() < 0.4:
                    model.check(model.buffer)
                if call == "go_back" and model.marks:
                    reader.close()
                    reader = db.ReplayBuffer(tmp_path / "store", mode="r")
                reader.refresh()
                if rng.random() < 0.4:
                    model.check(reader)
        reader.close()
        model.buffer.close()
    assert db.check(tmp_path / "store", progress=False).ok
    assert model.newest > 0  # it was written anew


# What may be given


def test_every_kind_of_value_comes_back_as_it_was(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "success": True,
        "count": -(2**62),
        "score": 0.1,
        "infinite": float("inf"),
        "text": "fold the towel, ünïcode \N{ROBOT FACE} \n\t\"', },\n{",
        "long": "ü" * 32 * 1024,
        "empty": "",
    }
    with opened(tmp_path / "store", 2) as buffer:
        buffer.episodes[:1].set_values(**values, none=None, numpy=np.float32(0.5), tensor=torch.tensor(3), no_number=float("nan"))
        buffer.episodes[1:].set_values(numpy=np.array([2.5]), tensor=torch.tensor([4]))
    with opened(tmp_path / "store") as buffer:
        first = buffer.episodes[0].values
        assert np.isnan(first.pop("no_number"))
        assert first == values | {"numpy": 0.5, "tensor": 3}
        assert {name: type(value) for name, value in first.items()} == {
            **{name: type(value) for name, value in values.items()},
            "numpy": float,
            "tensor": int,
        }
        assert buffer.episodes[1].values == {"numpy": 2.5, "tensor": 4}
        assert buffer.episodes.values["tensor"].dtype == np.int64
        assert buffer.episodes.values["count"].dtype == np.float64  # as one has none


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is none of Python's": ({"a b": 1}, "name must be an identifier.*found 'a b'"),
    "a name that conditions know": ({"length": 1}, "none of .*found 'length'"),
    "a keyword": ({"return": 1}, "found 'return'"),
    "a list for each": ({"x": [[1], [2], [3]]}, "x: expected True, False, a number"),
    "too few": ({"x": [1, 2]}, "one for each of 3 episodes, found 2"),
    "a large integer": ({"x": 2**63}, "number of 64 bits"),
    "a long text": ({"x": "ü" * 32 * 1024 + "x"}, "65,536 bytes"),
    "half a character": ({"x": "\ud800"}, "UTF-8"),
    "bytes": ({"x": b"x"}, "found b'x'"),
    "two kinds": ({"x": [True, 1, "a"]}, "of one kind"),
    "another kind than before": ({"success": 1.0}, "'success' must be true or false"),
    "NUL": ({"x": "a\0b"}, "without NUL"),
    "a name that Python reads as another": ({"\ufb01": 1}, "identifier"),
    "a large integer beside a float": ({"x": [2**53 + 1, 0.5, None]}, "not exact beyond"),
    "a float beside a large integer": ({"large": [0.5, None, None]}, "not exact beyond"),
    "too many names": ({f"x{n}": n for n in range(65)}, "64 names"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_a_value_is_refused_and_nothing_is_given(what: str, tmp_path: Path) -> None:
    values, message = WRONG[what]
    with opened(tmp_path / "store", 3) as buffer:
        buffer.episodes.set_values(success=[True, False, None], large=2**60 + 1)
        before = found(buffer)
        with pytest.raises(InputError, match=message):
            buffer.episodes.set_values(fine=1, **values)
        assert found(buffer) == before
        buffer.episodes.set_values(fine=2)
    with opened(tmp_path / "store") as buffer:
        assert found(buffer) == {id_: row | {"fine": 2} for id_, row in before.items()}


def test_an_episode_that_runs_or_is_gone_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 30, capacity=20, segment_rows=8) as buffer:
        old = buffer.episodes[:]
        add_episode(buffer, over=False)
        with pytest.raises(InputError, match=r"not over, and can be given values once it is"):
            buffer.episodes.set_values(success=True)
        for _ in range(10):
            add_episode(buffer)
        with pytest.raises(InputError, match="evicted since"):
            old.set_values(success=True)
        assert not buffer.episodes.values
        with db.ReplayBuffer(buffer.path, mode="r") as reader, pytest.raises(ReadOnlyError, match=r"episodes.set_values\(\)"):
            reader.episodes.set_values(success=True)


def test_steps_name_their_episodes_and_an_order_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 5) as buffer:
        assert buffer.episodes.of(buffer.steps()[-4:]).set_values(last=[False, True]) == 2
        buffer.episodes[[3, 0]].set_values(place=[10, 20])
        assert [row.get("last") for row in found(buffer).values()] == [None, None, None, False, True]
        assert [row.get("place") for row in found(buffer).values()] == [20, None, None, 10, None]
        some = buffer.episodes[buffer.episodes.values["last"]]
        assert set(buffer.sample(8, db.Uniform(episodes=some))["steps"].tolist()) <= {*range(16, 19)}


# Conditions


def test_conditions_know_values(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 4) as buffer:
        buffer.episodes.set_values(success=[True, False, None, True], score=[1, 2, None, 3], task=["fold", "", None, "unfold"])
        buffer.flush()
    table, expected = (
        Reader(tmp_path / "store").episodes(),
        {
            "success": [0, 3],
            "not success": [1, 2],
            "success == False": [1, 2],
            "success == None": [2],
            "success != None": [0, 1, 3],
            "score > 1": [1, 3],
            "score != 2": [0, 2, 3],
            "score is None": [2],
            "score in (1, 3)": [0, 3],
            "'fold' in task": [0, 3],
            "task == 'fold'": [0],
            "task == None": [2],
            "task == ''": [1, 2],
            "success and score > 1 and length == 3": [3],
        },
    )
    for condition, rows in expected.items():
        assert np.flatnonzero(table.where(condition)).tolist() == rows, condition
    for condition, message in {"sucess": "did you mean 'success'", "task > 'a'": "a text", "score == 'a'": "a number"}.items():
        with pytest.raises(InputError, match=message):
            table.where(condition)
    assert table.sort("task").episode.tolist() == table.episode[[1, 2, 0, 3]].tolist()
    assert [row["score"] for row in table.to_rows()] == [1, 2, None, 3]


# Kills, damage and failing disks

KILLED = """
import os, signal, sys, numpy as np, diskbuffer as db
buffer = db.ReplayBuffer(sys.argv[1], columns={"obs": db.Column(), "action": db.Column()}, flush_every=None)
for number in range(10):
    buffer.extend(obs=np.zeros(4), action=np.zeros(3), reward=np.zeros(3), terminated=np.arange(3) == 2)
    buffer.episodes[-1:].set_values(number=number)
    if number == 4:
        buffer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("torn", [b"", b'0123abcd {"episode": 4', b"\xff" * 100])
def test_a_kill_loses_none_also_where_it_came_while_one_was_written(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    with file_of(path).open("ab") as file:
        file.write(torn)
    assert db.check(path, progress=False).ok
    expected = [{"number": number} for number in range(10)]
    with db.ReplayBuffer(path, mode="r") as reader:
        assert [*found(reader).values()] == expected
    with db.ReplayBuffer(path, flush_every=None) as buffer:
        assert [*found(buffer).values()] == expected
        buffer.episodes[:1].set_values(number=100)
        expected[0] = {"number": 100}
    with db.ReplayBuffer(path, flush_every=None) as buffer:
        assert [*found(buffer).values()] == expected
    assert db.check(path, progress=False).ok


def test_a_damaged_line_is_told_and_repair_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, 5) as buffer:
        buffer.episodes.set_values(number=[0, 1, 2, 3, 4])
    file = file_of(path)
    lines = file.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b'"number": 2', b'"number": 7')
    file.write_bytes(b"\n".join(lines))
    with opened(path) as buffer:
        assert len(buffer.sample(4)["obs"]) == 4  # all else works
        with pytest.raises(CorruptionError, match=r"episode_values.0.*check --repair"):
            buffer.episodes.values  # noqa: B018
        with pytest.raises(CorruptionError):
            buffer.episodes.set_values(number=1)
    report = db.check(path, progress=False)
    assert [problem.path for problem in report.problems] == [file]
    assert "1 of its lines" in report.problems[0].what
    assert not db.check(path, repair=True, progress=False).ok
    assert db.check(path, progress=False).ok
    with opened(path) as buffer:
        assert [row.get("number") for row in found(buffer).values()] == [0, 1, None, 3, 4]


@pytest.mark.parametrize("episode", [-1, 2**63, 2**70])
def test_an_episode_that_cannot_be_is_told_though_its_checksum_is_right(episode: int, tmp_path: Path) -> None:
    with opened(tmp_path / "store", 1) as buffer:
        buffer.episodes.set_values(text="x" * 40)
        seed = buffer._store.layout.salt & 0xFFFFFFFF
    file = file_of(tmp_path / "store")
    before = file.read_bytes()
    line = json.dumps({"episode": episode, "values": {"text": ""}}).encode()
    line = line.replace(b'""', b'"%s"' % (b"x" * (len(before) - 10 - len(line))))
    file.write_bytes(b"%08x %s\n" % (google_crc32c.extend(seed, line), line))
    assert len(file.read_bytes()) == len(before)
    with opened(tmp_path / "store") as buffer, pytest.raises(CorruptionError, match="damaged at byte 0"):
        buffer.episodes.values  # noqa: B018


@pytest.mark.parametrize("cut", [None, 130])
def test_a_file_that_is_missing_or_cut_short_is_told_and_repaired(cut: int | None, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path, 5) as buffer:
        buffer.episodes.set_values(number=[0, 1, 2, 3, 4])
    file = file_of(path)
    if cut is None:
        file.unlink()
    else:
        os.truncate(file, cut)
    with pytest.raises(CorruptionError, match="values of episodes"):
        opened(path)
    with pytest.raises(CorruptionError, match="values of episodes"):
        Reader(path).episodes()
    assert len(db.check(path, progress=False).problems) == 1
    db.check(path, repair=True, progress=False)
    assert db.check(path, progress=False).ok
    with opened(path) as buffer:
        kept = [row.get("number") for row in found(buffer).values()]
        assert kept == ([None] * 5 if cut is None else [0, 1, None, None, None])


@pytest.mark.parametrize("has_some", [True, False])
@pytest.mark.parametrize("can_be_cut", [True, False])
def test_a_disk_that_fails_while_values_are_written_gives_none(can_be_cut: bool, has_some: bool, tmp_path: Path) -> None:
    real, truncate = Files.pwrite, Files.truncate

    def half(self: Files, fd: int, data: Any, offset: int) -> None:
        real(self, fd, bytes(data)[: len(data) * 2 // 3], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    def cut(self: Files, name: str, size: int) -> None:
        if not can_be_cut:
            raise OSError(errno.EIO, "Input/output error")
        truncate(self, name, size)

    with opened(tmp_path / "store", 6) as buffer, db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        if has_some:
            buffer.episodes[:2].set_values(number=1)
        before = found(buffer)
        failing = mock.patch.object(Files, "pwrite", half), mock.patch.object(Files, "truncate", cut)
        with failing[0], failing[1], pytest.raises(OSError, match="No space left"):
            buffer.episodes.set_values(number=2)
        reader.refresh()
        seen = found(reader)
        assert found(buffer) == before
        assert seen == before or not can_be_cut
        buffer.episodes[2:].set_values(number=3)  # lines as long as those that failed, which the reader may have seen
        expected = [*before.values()][:2] + [{"number": 3}] * 4
        assert [*found(buffer).values()] == expected
        assert [*found(reader).values()] == expected
    with opened(tmp_path / "store") as buffer:
        assert [*found(buffer).values()] == expected


def test_a_power_loss_goes_back_to_the_last_flush_and_no_episode_gets_anothers_values(tmp_path: Path) -> None:
    with boot(1), opened(tmp_path / "store", 4) as buffer:
        buffer.episodes.set_values(number=[0, 1, 2, 3])
        buffer.flush()
        add_episode(buffer)
        buffer.episodes.set_values(number=[10, 11, 12, 13, 14])
        shutil.copytree(buffer.path, tmp_path / "copy")
    with boot(2):
        with db.ReplayBuffer(tmp_path / "copy", mode="r") as reader:
            assert [*found(reader).values()] == [{"number": number} for number in range(4)]
        with opened(tmp_path / "copy", 1) as buffer:
            assert [*found(buffer).values()] == [*({"number": number} for number in range(4)), {}]


def test_episodes_whose_ids_are_given_again_have_no_values(tmp_path: Path) -> None:
    """The power goes when all that was flushed of a ring was evicted: nothing is left, and positions begin anew."""
    with boot(1), opened(tmp_path / "store", 4, capacity=16, segment_rows=8) as buffer:
        buffer.episodes.set_values(number=[0, 1, 2, 3])
        buffer.flush()
        for _ in range(20):
            add_episode(buffer)
        shutil.copytree(buffer.path, tmp_path / "copy")
    with boot(2), opened(tmp_path / "copy", 4) as buffer:
        assert buffer.episodes.id.tolist()[0] == 0
        assert [*found(buffer).values()] == [{}] * 4


def test_a_fork_reads_what_its_writer_goes_on_to_give(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 3) as buffer:
        buffer.episodes.set_values(number=1)
        ready, go = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.read(ready, 1)
                buffer.refresh()
                right = [*found(buffer).values()] == [{"number": 2}, {"number": 1}, {"number": 1}]
                os._exit(0 if right else 1)
            finally:
                os._exit(2)
        buffer.episodes[:1].set_values(number=2)
        os.write(go, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for fd in (ready, go):
            os.close(fd)


def test_what_a_name_had_once_does_not_bind_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 3) as buffer:
        buffer.episodes.set_values(success="yes", **{f"x{n}": n for n in range(63)})
        with pytest.raises(InputError, match="must be a text"):
            buffer.episodes.set_values(success=True)
        buffer.episodes.set_values(**dict.fromkeys(["success", *(f"x{n}" for n in range(63))]))
        buffer.episodes.set_values(success=True, other=1, x0="a text")
        expected = {id_: {"success": True, "other": 1, "x0": "a text"} for id_ in buffer.episodes.id.tolist()}
        assert found(buffer) == expected
    with opened(tmp_path / "store") as buffer:
        assert found(buffer) == expected


def test_large_integers_stay_exact_and_conditions_know_them(tmp_path: Path) -> None:
    nanoseconds = 1_790_000_000_000_000_001
    with opened(tmp_path / "store", 4) as buffer:
        buffer.episodes[:3].set_values(ns=[nanoseconds, nanoseconds + 3, -(2**63)])
        buffer.episodes.set_values(operator="Ada")
        add_episode(buffer, over=False)
        assert buffer.episodes[0].values == {"ns": nanoseconds, "operator": "Ada"}
        buffer.flush()
        table = Reader(buffer.path).episodes()
        for condition, rows in {
            f"ns == {nanoseconds}": [0],
            f"ns != {nanoseconds}": [1, 2, 3, 4],
            f"ns > {nanoseconds}": [1],
            f"ns <= {nanoseconds}": [0, 2],
            "not ns < 0": [0, 1, 3, 4],
        }.items():
            assert np.flatnonzero(table.where(condition)).tolist() == rows, condition


def test_an_episode_that_is_given_two_has_the_later(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 2) as buffer:
        buffer.episodes.set_values(x=1)
        buffer.episodes[[0, 0]].set_values(x=[2, 1])
        assert buffer.episodes[0].values == {"x": 1}


def test_a_reader_is_told_that_its_writer_went_back_and_gets_no_other_episodes_values(tmp_path: Path) -> None:
    with opened(tmp_path / "store", 2) as buffer:
        buffer.copies.mark("begin")
        add_episode(buffer)
        buffer.episodes.set_values(number=1)
        buffer.flush()
        reader = db.ReplayBuffer(tmp_path / "store", mode="r")
        last = reader.episodes[-1]
        assert last.values == {"number": 1}
    with opened(tmp_path / "store", mark="begin") as buffer:
        with pytest.raises(CorruptionError, match="went back to a mark"):
            last.values  # noqa: B018
        add_episode(buffer)
        buffer.episodes.set_values(number=2)
        with pytest.raises(CorruptionError, match="went back to a mark"):
            last.values  # noqa: B018
    reader.close()


def test_values_given_while_the_file_is_written_anew_are_in_it(tmp_path: Path) -> None:
    real, calls = Files.create, list[str]()

    def create(self: Files, name: str, size: int, *, reserve: bool) -> int:
        fd = real(self, name, size, reserve=reserve)
        if "episode_values" in name and name.endswith(".new.tmp"):
            calls.append(name)
            giving = threading.Thread(target=lambda: buffer.episodes[:2].set_values(number=[100, 101]))
            giving.start()
            giving.join(timeout=20)
            assert not giving.is_alive()  # the store is not locked for the time that this takes
        return fd

    with opened(tmp_path / "store", 4) as buffer:
        for number in range(5):
            buffer.episodes.set_values(number=number)
        with mock.patch.object(episode_values, "_SMALL", 10), mock.patch.object(Files, "create", create):
            buffer.flush()
        assert len(calls) == 1
        expected = [{"number": number} for number in (100, 101, 4, 4)]
        assert [*found(buffer).values()] == expected
        with db.ReplayBuffer(buffer.path, mode="r") as reader:
            assert [*found(reader).values()] == expected
    with opened(tmp_path / "store") as buffer:
        assert [*found(buffer).values()] == expected


def test_a_file_that_two_threads_write_anew_at_once(tmp_path: Path) -> None:
    real, calls = Files.create, list[str]()

    def create(self: Files, name: str, size: int, *, reserve: bool) -> int:
        fd = real(self, name, size, reserve=reserve)
        if name.endswith(".new.tmp") and "episode_values" in name and not calls:
            calls.append(name)
            giving = threading.Thread(target=lambda: buffer.episodes.set_values(number="a text"))  # which writes it anew, too
            giving.start()
            giving.join(timeout=20)
        return fd

    with opened(tmp_path / "store", 4) as buffer:
        for number in range(5):
            buffer.episodes.set_values(number=number)
        buffer.episodes.set_values(number=None, other=1)
        with mock.patch.object(episode_values, "_SMALL", 10), mock.patch.object(Files, "create", create):
            buffer.flush()
        assert len(calls) == 1
        assert [*found(buffer).values()] == [{"number": "a text", "other": 1}] * 4
    with opened(tmp_path / "store") as buffer:
        assert [*found(buffer).values()] == [{"number": "a text", "other": 1}] * 4


def test_a_store_that_was_killed_before_a_new_file_was_noted_can_be_copied(tmp_path: Path) -> None:
    with boot(1), opened(tmp_path / "store", 4) as buffer:
        for number in range(5):
            buffer.episodes.set_values(number=number)
        buffer.flush()
        buffer._store.episode_values.compact(buffer._store.lock, buffer._reader.index.episode_ids, at_once=True)
        shutil.copytree(buffer.path, tmp_path / "killed")  # the note tells of the old file, and both are there
    with boot(1), db.ReplayBuffer(tmp_path / "killed", mode="r") as reader:
        for number in (1, 2):
            reader.copies.snapshot(tmp_path / f"copy {number}")
    for number in (1, 2):
        with boot(number), opened(tmp_path / f"copy {number}") as copy:
            assert [*found(copy).values()] == [{"number": 4}] * 4


def test_a_table_that_was_read_knows_of_values_once_somebody_looks_and_only_then_changes(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as buffer:
        for _ in range(2):
            add_episode(buffer)
        reader = Reader(tmp_path / "store")
        assert "good" not in reader.episodes().names()
        for given in ([True, None], [None, False]):  # nothing else changes
            for at, value in enumerate(given):
                if value is not None:
                    buffer.episodes[at : at + 1].set_values(good=value)
            assert reader.refresh()
            assert not reader.refresh()
        assert reader.episodes().values["good"].listed() == [True, False]


# Several writers


def test_each_writer_gives_values_to_its_own_and_a_reader_sees_all(tmp_path: Path) -> None:
    writers = [db.ReplayBuffer(tmp_path / "all", columns=COLUMNS, writer=f"actor-{n}", flush_every=None) for n in range(3)]
    for n, buffer in enumerate(writers):
        for _ in range(n + 1):
            add_episode(buffer)
        if n:
            buffer.episodes.set_values(number=[10 * n + at for at in range(n + 1)])
    with db.ReplayBuffer(tmp_path / "all", mode="r") as reader:
        assert [row.get("number") for row in found(reader).values()] == [None, 10, 11, 20, 21, 22]
        with pytest.raises(ReadOnlyError, match="several writers"):
            reader.episodes.set_values(number=1)
        of_all = Reader(tmp_path / "all")
        assert of_all.episodes("number > 10").values["number"].values.tolist() == [11, 20, 21, 22]
        writers[0].episodes.set_values(number=0.5)
        assert of_all.refresh()
        assert of_all.episodes().values["number"].values.tolist() == [0.5, 10, 11, 20, 21, 22]
        assert reader.episodes.values["number"].tolist() == [0.5, 10, 11, 20, 21, 22]
        writers[2].episodes.set_values(name="x")
        writers[1].episodes.set_values(name=1)
        writers[0].episodes.set_values(good=True)
        writers[1].episodes.set_values(good=0.5)
        assert reader.episodes.values["name"].tolist() == ["", "1", "1", "x", "x", "x"]  # as these do not agree
        assert reader.episodes.values["good"].tolist()[:3] == [1, 0.5, 0.5]
    for buffer in writers:
        buffer.close()
