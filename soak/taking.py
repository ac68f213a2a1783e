"""Readers beside calls that take steps away: what each of them finds was there at one moment.

Writers add steps, and clear, resize, go back to marks, and remove columns and write them anew. Each notes what there is before
and after every call. Processes beside them open the store, refresh, make snapshots and ask what `diskbuffer info` asks: all that
they find must have been there between two calls of each writer; within a call that adds, as far as that has come. One store, or
two writers in a directory.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.plugin import Reader
from soak.table import SHOWN, Row
from soak.workers import scratch

Int64 = npt.NDArray[np.int64]
ENVS, READERS, CAPACITY = 2, 3, 400
WHO = 10**9  # an action is the number of the step, from 0 on for each environment, and this times whose it is
CALLS = {
    **{"extend": 0.5, "add": 0.18, "clear": 0.14, "resize": 0.06, "write": 0.06, "remove": 0.03, "mark": 0.02, "go_back": 0.01}
}
TAKING = ("clear", "go_back")  # all at once; others take the oldest steps, while more are added
MOST = 1_000_000  # calls that are noted


class State(NamedTuple):
    """What there is between two calls."""

    lows: Int64  # the number of the oldest step, (ENVS,)
    ends: Int64  # of the newest, plus one
    since: Int64  # the number at which the steps of this life begin: the writer went back to there last
    life: int
    written: int  # the value of the column that was written last


class Notes:
    """What a writer has noted; in a file, which others map."""

    WORDS = 3 * ENVS + 3

    def __init__(self, file: Path, *, create: bool = False) -> None:
        self._all = np.memmap(file, np.int64, "w+" if create else "r", shape=(MOST + 1, self.WORDS))
        self._counts = self._all[0]

    @property
    def begun(self) -> int:
        """How many calls were begun."""
        return int(self._counts[0])

    @property
    def ended(self) -> int:
        """How many of these are over."""
        return int(self._counts[1])

    def begin(self) -> None:
        """Note that a call begins."""
        self._counts[0] += 1

    def end(self, state: State, at_once: bool) -> None:
        """Note what there is after it, and whether it takes steps away at once."""
        self._all[1 + self.begun] = [*state.lows, *state.ends, *state.since, state.life, state.written, at_once]
        self._counts[1] = self.begun

    def state(self, number: int) -> tuple[State, bool]:
        """Return what there was after a call, and whether that took steps away at once."""
        words = np.array(self._all[1 + number])
        return State(*words[: 3 * ENVS].reshape(3, ENVS), *words[3 * ENVS : -1].tolist()), bool(words[-1])

    def stretches(self, first: int, last: int) -> list[tuple[State, State]]:
        """Return, between two calls, what there was at both ends of each stretch in which nothing was taken away at once."""
        found = list[list[State]]()
        for number in range(first, last + 1):
            state, at_once = self.state(number)
            if not found or at_once:
                found.append([])
            found[-1].append(state)
        return [(states[0], states[-1]) for states in found]


# Writing


class Writer:
    """Write a store, and note what there is."""

    def __init__(self, path: Path, who: int, writer: str | None, seed: int) -> None:
        self._path, self._who, self._writer, self._rng = path, who, writer, np.random.default_rng(seed)
        self._notes = Notes(path.with_name(f"notes{who}"), create=True)
        self._ends, self._since, self._life, self._written = np.zeros(ENVS, np.int64), np.zeros(ENVS, np.int64), 1, 0
        self._values = 0  # that were written
        self._marked: tuple[Int64, int] | None = None
        self._buffer = self._made()
        self._note(False)

    def _made(self) -> db.ReplayBuffer:
        columns = {"obs": db.Column((2,), "int64"), "action": db.Column((), "int64")}
        options: dict[str, Any] = {"columns": columns, "n_envs": ENVS, "autoreset": "disabled", "segment_rows": 16, "threads": 1}
        if self._writer is not None:
            return db.ReplayBuffer(self._path, writer=self._writer, **options)
        return db.ReplayBuffer(self._path, CAPACITY, **options)

    def _note(self, at_once: bool) -> None:
        steps, lows = self._buffer.steps(), self._ends.copy()
        actions = self._buffer.at(steps)["action"].numpy() % WHO if len(steps) else steps
        for env in np.unique(steps % ENVS).tolist():
            lows[env] = actions[steps % ENVS == env].min()
        self._notes.end(State(lows, self._ends, self._since, self._life, self._written), at_once)

    def write(self) -> int:
        """Make calls until there is a file that says to stop; return how many."""
        stop = self._path.with_name("stop")
        calls = {
            name: share for name, share in CALLS.items() if self._writer is None or name not in ("resize", "mark", "go_back")
        }
        names, shares = list(calls), np.array(list(calls.values()))
        while not stop.exists() and self._notes.begun < MOST - 2:
            what = str(self._rng.choice(names, p=shares / shares.sum()))
            if what == "go_back" and self._marked is None:
                continue
            self._notes.begin()
            getattr(self, f"_{what}")()
            self._note(what in TAKING)
            time.sleep(self._rng.uniform(0, 0.004))
        self._buffer.close()
        return self._notes.ended

    def _steps(self, env: int, n: int) -> dict[str, Any]:
        numbers = self._ends[env] + np.arange(n + 1) + WHO * (self._who * ENVS + env)
        self._ends[env] += n
        return {"obs": np.stack([numbers, -numbers], axis=1), "action": numbers[:-1], "reward": np.full(n, self._life)}

    def _extend(self) -> None:
        env = int(self._rng.integers(ENVS))
        self._buffer.extend(**self._steps(env, int(self._rng.integers(1, 120))), env=env)

    def _add(self) -> None:
        for _ in range(int(self._rng.integers(1, 20))):
            every = [self._steps(env, 1) for env in range(ENVS)]
            obs, action, reward = (np.stack([one[name] for one in every]) for name in ("obs", "action", "reward"))
            nothing = np.zeros(ENVS, bool)
            self._buffer.add(obs[:, 0], action[:, 0], reward[:, 0], obs[:, 1], nothing, nothing)

    def _clear(self) -> None:
        self._buffer.clear()

    def _resize(self) -> None:
        self._buffer.resize(int(self._rng.integers(CAPACITY // 4, CAPACITY)))

    def _write(self) -> None:
        self._values += 1
        self._written = self._values
        steps = self._buffer.steps()
        self._buffer.columns.write("value", steps, np.full(len(steps), self._written))

    def _remove(self) -> None:
        if "value" in self._buffer.columns:
            self._buffer.columns.remove("value")

    def _mark(self) -> None:
        self._buffer.copies.mark("mark", replace=True)
        self._marked = self._ends.copy(), self._written

    def _go_back(self) -> None:
        assert self._marked is not None
        self._buffer.close()
        self._buffer = db.ReplayBuffer(self._path, mark="mark", threads=1)
        ends, self._written = self._marked
        self._ends, self._since, self._life = ends.copy(), ends.copy(), self._life + 1


def write(path: Path, who: int, writer: str | None, seed: int) -> int:
    """Be a writer in a process of its own."""
    try:
        made = Writer(path, who, writer, seed)
        path.with_name(f"ready{who}").touch()
        return made.write()
    finally:
        path.with_name("stop").touch()


# Reading


class Found(NamedTuple):
    """What a reader finds of all environments: actions, rewards, and values of the column, (n,) each."""

    action: Int64
    reward: Int64
    value: Int64


def read_all(buffer: db.ReplayBuffer) -> Found:
    """Return all that a buffer has."""
    batch = buffer.at(buffer.steps()) if len(buffer) else {}
    nothing = np.empty(0, np.int64)
    action, reward = (np.array(batch.get(name, nothing), np.int64) for name in ("action", "reward"))
    return Found(action, reward, np.array(batch.get("value", np.zeros(len(action))), np.int64))


def wrong(found: Found, who: int, stretches: list[tuple[State, State]]) -> str:
    """Return what is wrong with what was found of a writer's environments, whatever the moment; nothing where one fits."""
    every = list[str]()
    for first, last in stretches:
        told = list[str]()
        for env in range(ENVS):
            mine = found.action // WHO == who * ENVS + env
            numbers, lives, values = found.action[mine] % WHO, found.reward[mine], found.value[mine]
            order = np.argsort(numbers)
            numbers, lives, values = numbers[order], lives[order], values[order]
            low, end = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (int(first.ends[env]), int(first.ends[env]))
            fits = first.lows[env] <= low <= last.lows[env] and first.ends[env] <= end <= last.ends[env]
            if len(numbers) != end - low or not fits:
                told.append(
                    f"environment {env}: {len(numbers)} steps from {low} to {end}; oldest {first.lows[env]} to {last.lows[env]}, "
                    f"ends {first.ends[env]} to {last.ends[env]}"
                )
            if ((lives == last.life) != (numbers >= last.since[env])).any() or (lives > last.life).any():
                told.append(f"environment {env}: steps of other lives than {last.life} from {last.since[env]} on")
            if ((values != 0) & ((values < first.written - 1) | (values > last.written))).any():
                told.append(f"environment {env}: values {np.unique(values)}, written {first.written} to {last.written}")
        if not told:
            return ""
        every.append("; ".join(told))
    return "; or ".join(every)


def count_is_wrong(found: int, stretches: list[tuple[State, State]]) -> str:
    """Return what is wrong with how many steps were found, whatever the moment; nothing where one fits."""
    for first, last in stretches:
        if max(0, (first.ends - last.lows).sum()) <= found <= (last.ends - first.lows).sum():
            return ""
    return f"{found} steps"


class Readers:
    """Read in every way, by turns, and compare with what was noted."""

    def __init__(self, path: Path, writers: int, seed: int) -> None:
        self._path, self._rng = path, np.random.default_rng(seed)
        self._notes = [Notes(path.with_name(f"notes{who}")) for who in range(writers)]
        self._copy = path.with_name(f"copy{seed}")
        self._open: db.ReplayBuffer | None = None
        self.counts, self.told = Counter[str](), list[str]()

    def read(self, seconds: float) -> None:
        """Read once, and then for so long."""
        ways = ["open_it", "refresh", "refresh", "refresh", "snapshot"] + ["info"] * (len(self._notes) == 1)
        self._read(ways[0])  # which imports all that there is to import
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._read(str(self._rng.choice(ways)))
        self._close()

    def _read(self, how: str) -> None:
        before = [notes.ended for notes in self._notes]
        try:
            found = getattr(self, f"_{how}")()
        except (db.errors.EvictedError, db.InputError):
            self.counts["readings of what was evicted by then"] += 1
            return
        except db.LockedError:  # of several writers, one process at a time makes a snapshot
            self.counts["snapshots beside another process's"] += 1
            return
        except Exception as error:  # noqa: BLE001  every other one is counted
            self._close()
            if isinstance(error, db.CorruptionError) and "open it again" in str(error):
                self.counts["readings beside one that goes back to a mark"] += 1
            else:
                self._tell(how, traceback.format_exc(limit=-4))
            return
        after = [notes.begun for notes in self._notes]
        while any(notes.ended < begun for notes, begun in zip(self._notes, after, strict=True)):
            if self._path.with_name("stop").exists():
                return
            time.sleep(0.001)
        self.counts[how] += 1
        for who, notes in enumerate(self._notes):
            stretches = notes.stretches(before[who], after[who])
            if what := wrong(found, who, stretches) if isinstance(found, Found) else count_is_wrong(found, stretches):
                self._tell(how, what)

    def _tell(self, how: str, what: str) -> None:
        self.counts["wrong"] += 1
        self.told = [*self.told, f"{how}: {what}"][:SHOWN]

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None

    def _open_it(self) -> Found:
        with db.ReplayBuffer(self._path, mode="r", threads=1) as buffer:
            return read_all(buffer)

    def _refresh(self) -> Found:
        if self._open is None:
            self._open = db.ReplayBuffer(self._path, mode="r", threads=1)
        self._open.refresh()
        return read_all(self._open)

    def _snapshot(self) -> Found:
        shutil.rmtree(self._copy, ignore_errors=True)
        with db.ReplayBuffer(self._path, mode="r", threads=1) as buffer:
            buffer.copies.snapshot(self._copy)
        with db.ReplayBuffer(self._copy, mode="r", threads=1) as buffer:
            return read_all(buffer)

    def _info(self) -> int:
        return int(Reader(self._path).episodes().length.sum())


def read(path: Path, writers: int, seed: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """Be a reader in a process of its own."""
    readers = Readers(path, writers, seed)
    readers.read(seconds)
    return readers.counts, readers.told


def beside(writers: int, seconds: float, seed: int) -> Row:
    """Have readers beside so many writers; one is of a store alone."""
    counts, told, context = Counter[str](), list[str](), multiprocessing.get_context("spawn")
    with scratch() as name, ProcessPoolExecutor(writers + READERS, mp_context=context) as pool:
        path = name / "store"
        names = [None] if writers == 1 else [f"w{n}" for n in range(writers)]
        writing = [pool.submit(write, path, n, each, seed * 100 + n) for n, each in enumerate(names)]
        while not all(path.with_name(f"ready{n}").exists() for n in range(writers)):
            for each in writing:
                if each.done():
                    each.result()
            time.sleep(0.01)
        reading = [pool.submit(read, path, writers, seed * 100 + 50 + n, seconds) for n in range(READERS)]
        for reader in reading:
            found, notes = reader.result()
            counts.update(found)
            told += notes
        path.with_name("stop").touch()
        calls = sum(each.result() for each in writing)
    wrong_ones = counts.pop("wrong", 0)
    of = ", ".join(f"{n:,} {what}" for what, n in counts.most_common())
    what = "readings beside calls that take steps away" + (f", of {writers} writers" if writers > 1 else "")
    return Row(what, counts.total(), wrong_ones, [f"{calls:,} calls; {of}", *told[:SHOWN]])


def main(scale: float = 1.0, *, seed: int = 0) -> list[Row]:
    """Read beside one writer, and beside two, for five minutes each, times `scale`."""
    return [beside(writers, 300 * scale, seed) for writers in (1, 2)]
