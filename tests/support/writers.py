"""Writers in other processes that can be killed at any instant, and what they knew to be on record by then.

Run as a script this file is the server that forks those writers, so that each need not import everything again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.experience import Array, Experience, Feeder

_HERE = Path(__file__).resolve().parents[2]
DOING = ("opening", "add", "extend", "seal", "flush", "write", "map", "tag", "load", "close")
TAGS = 3  # episodes are tagged by their number, modulo this
WRITTEN, MAPPED = "written", "mapped"  # columns that are written back


class Account:
    """What a writer knows to be on record, in memory that outlives it if it is a file's; -1 where it knows nothing yet.

    Attributes
    ----------
    heads : (n_envs,) int64
        Positions of the newest rows.
    written, mapped : (n_envs,) int64
        Positions up to which columns were written back.
    tagged : (n_envs,) int64
        Positions up to which episodes were tagged.
    last : (2,) int64
        What is being done, as its place in `DOING`, and how many calls have returned.
    """

    def __init__(self, file: Path | None, n_envs: int, *, create: bool = False) -> None:
        size = 4 * n_envs + 2
        self.values: Array = np.empty(size, np.int64)
        if file is not None:
            self.values = np.memmap(file, np.int64, "w+" if create else "r+", shape=(size,))
        if create or file is None:
            self.values[:] = -1
        self.heads, self.written, self.mapped, self.tagged = self.values[:-2].reshape(4, n_envs)
        self.last = self.values[-2:]


def written(name: str, steps: Array) -> Array:
    """Return what writers write back to a column, which is never zero."""
    return np.asarray(steps, np.int64) * (3 if name == WRITTEN else 5) + 1


def must_be(what: str, found: object, expected: object) -> None:
    """Require that something is as expected."""
    if found != expected:
        raise AssertionError(f"{what}: {found}, expected {expected}")


class Writers:
    """Start a writer in a process of its own, and kill it. One at a time."""

    def __init__(self) -> None:
        paths = os.pathsep.join([str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.writers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.pid = 0
        self.account: Account | None = None

    def _line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()

    def start(
        self,
        path: Path,
        experience: Experience,
        how: str,
        *,
        capacity: int | None = None,
        steps: int = 0,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Fork a writer that adds ``how`` ("add", "extend", "seal"), without end, or idles after `steps` rounds.

        "everything" is every call that writes, by turns as `seed` says. `account` then holds what the writer knows to be on
        record.
        """
        acks = path.parent / f"{path.name}.acks"
        self.account = Account(acks, experience.n_envs, create=True)
        job = {"path": str(path), "acks": str(acks), "how": how, "capacity": capacity, "steps": steps, "options": options}
        job |= {"n_envs": experience.n_envs, "episode": experience.episode, "seed": seed}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        self.pid = int(self._line())

    def wait_for(self, rounds: int) -> None:
        """Block until the writer made so many rounds."""
        assert self.account is not None
        while self.account.last[1] < rounds:
            time.sleep(0.001)

    def wait_until_doing(self, what: str, seconds: float) -> bool:
        """Block until the writer is in a call, or the time is up; tell whether it is."""
        deadline, place = time.monotonic() + seconds, DOING.index(what)
        assert self.account is not None
        while self.account.last[0] != place:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0002)
        return True

    def kill(self) -> Array:
        """Kill the writer; return the heads that it knew of."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        status = int(self._line())
        self.pid = 0
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed, f"the writer had failed before it was killed ({status}); its error is above"
        assert self.account is not None
        return np.array(self.account.heads)

    def close(self) -> None:
        """Let the server go."""
        assert self._server.stdin is not None
        if self.pid:
            self.kill()
        self._server.stdin.close()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


# In the server


def serve() -> None:
    """Fork a writer for each line of standard input; tell its number, and how it ended."""
    with tempfile.TemporaryDirectory() as directory:  # whatever is compiled is compiled now
        for n_envs in (1, 2):
            path = Path(directory) / f"store{n_envs}"
            account = Account(path.with_suffix(".acks"), n_envs, create=True)
            writer = Writer(path, Experience(n_envs), account, 0, 100, {"threads": 1, "segment_rows": 16})
            writer.begin()
            for what in ("add", *DOING[1:]):
                writer.do(what)
            writer.feeder.experience.check(writer.buffer)
            writer.buffer.close()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                write(json.loads(line))
            except BaseException:  # noqa: BLE001  there is nobody else to tell
                traceback.print_exc()
            os._exit(1)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


def write(job: dict[str, Any]) -> None:
    """Be the writer that a job describes."""
    account = Account(Path(job["acks"]), job["n_envs"])
    seed = os.getpid() if job["seed"] is None else job["seed"]
    experience = Experience(job["n_envs"], job["episode"])
    writer = Writer(Path(job["path"]), experience, account, seed, job["capacity"], job["options"])
    writer.begin()
    rounds = account.last[1:]
    while not job["steps"] or rounds[0] < job["steps"]:
        if job["how"] == "everything":
            writer.do_anything()
        elif job["how"] == "extend":
            writer.extend()
        else:
            writer.add()
    if job["how"] == "seal":
        writer.do("seal")
    time.sleep(3600)


class Writer:
    """Every call that writes, each noted on the account when it has returned.

    Attributes
    ----------
    adds, extends : int
        Steps that are added by one call of `do` at most.
    """

    adds, extends = 100, 200

    def __init__(
        self, path: Path, experience: Experience, account: Account, seed: Any, capacity: int | None, options: dict[str, Any]
    ) -> None:
        self._path, self._world, self._account, self._capacity, self._options = path, experience, account, capacity, options
        self._rng = np.random.default_rng(seed)

    def begin(self) -> None:
        """Open the store, or create it."""
        self._open()
        self._account.heads[:] = self.feeder.heads
        self._account.last[1] = 0

    def _open(self) -> None:
        self.buffer = self._world.open(self._path, self._capacity, **{"flush_every": 0.05} | self._options)
        self.feeder = Feeder(self._world, self.buffer)
        self._batches = iter(self.buffer.loader(16, threads=2))

    def do_anything(self) -> None:
        """Add mostly; else make any other call."""
        most = self._rng.random() < 0.6
        self.do(str(self._rng.choice(DOING[1:3] if most else DOING[3:])))

    def do(self, what: str) -> None:
        """Make one call, or a hundred of `add`."""
        self._account.last[0] = DOING.index(what)
        getattr(self, f"_{what}")()
        self._account.last[1] += 1

    def add(self) -> None:
        """Add a step of every stream."""
        self.feeder.add()
        self._account.heads[:] = self.feeder.heads
        self._account.last[1] += 1

    def extend(self) -> None:
        """Add some steps of one stream."""
        self.feeder.extend(int(self._rng.integers(self._world.n_envs)), int(self._rng.integers(1, self.extends)))
        self._account.heads[:] = self.feeder.heads
        self._account.last[1] += 1

    def _add(self) -> None:
        for _ in range(int(self._rng.integers(1, self.adds))):
            self.add()

    _extend = extend

    def _seal(self) -> None:
        self.buffer.flush(recompress=True)

    def _flush(self) -> None:
        self.buffer.flush()

    def _write(self) -> None:
        """Write a column's values, from where it was written up to, for some hundred steps of every stream."""
        n = self._world.n_envs
        for stream in range(n):
            begin = max(0, int(self._account.written[stream]))
            until = min(int(self.feeder.heads[stream]), begin + int(self._rng.integers(1, 2000)))
            steps = np.intersect1d(np.arange(begin, until) * n + stream, self.buffer.steps())
            if len(steps):
                must_be("written", self.buffer.columns.write(WRITTEN, steps, written(WRITTEN, steps)), len(steps))
                self._account.written[stream] = until

    def _map(self) -> None:
        """Have a function of every step be a column."""
        heads, resume = self.feeder.heads.copy(), bool(self._rng.integers(2))
        if not len(self.buffer):
            return

        def values(batch: dict[str, Any]) -> Array:
            return written(MAPPED, batch["steps"].numpy())

        self.buffer.columns.map(values, 64, MAPPED, resume=resume, progress=False, threads=1)
        if not resume:  # or it was over the steps of the call that is resumed
            self._account.mapped[:] = heads

    def _tag(self) -> None:
        """Tag all episodes that are over, and give them values."""
        episodes = self.buffer.episodes
        over = episodes[episodes.ending != "running"]
        at, n = over.start // self._world.n_envs, self._world.n_envs
        numbers = at // np.array([self._world.rows(s) for s in range(n)])[over.stream]
        for tag in range(TAGS):
            if len(mine := over[numbers % TAGS == tag]):
                must_be("tagged", mine.set_tag(f"tag {tag}"), len(mine))
        must_be("given values", over.set_values(number=numbers, name=[f"episode {number}" for number in numbers]), len(over))
        for stream in range(n):
            of = over.stream == stream
            if of.any():
                self._account.tagged[stream] = int((at + over.length)[of].max())

    def _load(self) -> None:
        """Take a batch of a loop that stays open, with others under way."""
        if len(self.buffer):
            self._world.check_batch(next(self._batches), self.buffer.frame_stack)

    def _close(self) -> None:
        self.buffer.close()
        self._open()


def tags_of(world: Experience, stream: int, positions: Array) -> list[str]:
    """Return the tags that writers give to the episodes of some steps."""
    return [f"tag {number % TAGS}" for number in (np.asarray(positions) // world.rows(stream)).tolist()]


__all__ = ["DOING", "MAPPED", "WRITTEN", "Account", "Writer", "Writers", "must_be", "tags_of", "written"]

if __name__ == "__main__":
    serve()
