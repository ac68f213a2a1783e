"""Real kills: a writer process gets SIGKILL at random instants, over and over, and nothing that it knew of may be lost.

The writer adds, extends, seals, flushes, writes columns, maps, tags, takes batches from a loader, closes and opens again, by
turns, in stores whose segments are tiny, so that one is sealed or evicted at every moment. Half of the kills come in a call that
was drawn before. After each, zarr-python and tensorstore read the store as it was left; then it is opened, by us, and compared
with what the writer knew of.
Every other time that is a reader only, so that the next writer finds what the kill left, and may be killed while it recovers it.
A kill's instant cannot be drawn from a seed: a store that is not as it should be is kept, as the kill left it, in soak/broken.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import zarr

import diskbuffer as db
from soak.table import SHOWN, Row
from soak.workers import Answer, Job, Pool, scratch
from tests.support.experience import Experience, heads_of
from tests.support.specimens import adopt
from tests.support.writers import DOING, MAPPED, WRITTEN, Account, Writers, tags_of, written

KILLS = 10  # of one store
BROKEN = Path(__file__).parent / "broken"
READ = 64  # rows of every array that tensorstore reads
CHECKED_EVERY = 3  # kills, after which diskbuffer.check looks, too
MENDED = "opening mends it"  # what check says of metadata where a kill came between those of two arrays
KINDS: dict[str, dict[str, Any]] = {
    "one environment": {"n_envs": 1, "capacity": None, "segment_rows": 64},
    "four environments": {"n_envs": 4, "capacity": None, "segment_rows": 32},
    "tiny segments, evicted": {"n_envs": 3, "capacity": 60, "segment_rows": 8},
    "sealed all the time": {"n_envs": 1, "capacity": 3000, "segment_rows": 16},
    "larger segments, evicted": {"n_envs": 2, "capacity": 1000, "segment_rows": 64},
    "stacks, evicted": {"n_envs": 2, "capacity": 200, "segment_rows": 16, "frame_stack": 4},
}


class WrongError(Exception):
    """What a kill left is not what was promised."""

    def __init__(self, what: str, lost: int = 0, unopened: bool = False) -> None:
        super().__init__(what)
        self.lost, self.unopened = lost, unopened


# What was acknowledged


class Known(Account):
    """What writers of one store knew to be on record, the newest of each."""

    def __init__(self, world: Experience) -> None:
        super().__init__(None, world.n_envs)
        self._world = world

    def take(self, account: Account) -> None:
        """Take what a writer knew when it was killed."""
        np.maximum(self.values, account.values, out=self.values)

    @property
    def steps(self) -> int:
        """How many steps were acknowledged, ever."""
        return sum(steps_before(self._world, stream, int(head)) for stream, head in enumerate(self.heads))


def steps_before(world: Experience, stream: int, head: int) -> int:
    """Return how many steps a stream has before a row."""
    return max(0, head) - max(0, head) // world.rows(stream)


# After a kill


def judge(path: Path, world: Experience, known: Known, rng: np.random.Generator, full: bool, recover: bool = True) -> None:
    """Raise a WrongError where a store is not as promised; to `recover` it, it is opened for writing, and closed."""
    if not (path / "zarr.json").is_file():
        if known.steps:
            raise WrongError("there is no store", known.steps, True)
        return
    read_with_others(path, rng)
    if full:
        _must_be_fine(path, "as the kill left it", MENDED)
    for mode in ("r", "a") if recover else ("r",):
        with _opening(f"cannot be opened with mode={mode!r}"):
            buffer = db.ReplayBuffer(path, threads=1, mode=mode)
        with buffer:
            compare(buffer, world, known)
    if full and recover:
        _must_be_fine(path, "closed after the kill", "")


@contextlib.contextmanager
def _opening(what: str) -> Iterator[None]:
    """Have what is raised tell of a store that cannot be opened."""
    try:
        yield
    except Exception as error:
        raise WrongError(f"{what}: {error!r}", unopened=True) from error


def _must_be_fine(path: Path, when: str, allowed: str) -> None:
    problems = [str(p) for p in db.check(path, progress=False).problems if not (allowed and allowed in p.what and not p.steps)]
    if problems:
        raise WrongError(f"check finds, {when}: {'; '.join(problems[:5])}")


def read_with_others(path: Path, rng: np.random.Generator) -> None:
    """Read every array with zarr-python, the first rows of each and three whole ones with tensorstore, too."""
    with _opening("zarr-python cannot read it"):
        members = zarr.open_group(str(path), mode="r").members(max_depth=None)
        values = {name: np.asarray(node[...]) for name, node in members if isinstance(node, zarr.Array)}
    for n, name in enumerate(rng.permutation(sorted(values)).tolist()):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / name)}}
        with _opening(f"tensorstore cannot read {name}"):
            array = tensorstore.open(spec, read=True).result()
            found = np.asarray((array if n < 3 else array[: min(READ, len(values[name]))]).read().result())
        common = min(len(found), len(values[name]))  # a kill may come between an array's growth and the group's
        if not np.array_equal(found[:common], values[name][:common]):
            raise WrongError(f"tensorstore and zarr-python disagree on {name}")


def compare(buffer: db.ReplayBuffer, world: Experience, known: Known) -> None:
    """Compare what a buffer holds with what was acknowledged."""
    heads, steps = heads_of(buffer), buffer.steps()
    known_steps, there = (np.array([steps_before(world, s, n) for s, n in enumerate(h.tolist())]) for h in (known.heads, heads))
    if lost := int(np.maximum(known_steps - there, 0).sum()):
        raise WrongError(f"acknowledged up to {known.heads.tolist()}, found up to {heads.tolist()}", lost)
    added = int(there.sum())
    least = added if buffer.capacity is None else min(added, buffer.capacity)
    if len(steps) < least or len(steps) != len(buffer):
        raise WrongError(f"{len(steps)} steps of {least} that must be kept", max(0, least - len(steps)))
    if len(steps) == 0:
        return
    batch, streams, at = buffer.at(steps), steps % world.n_envs, steps // world.n_envs
    for stream in range(world.n_envs):
        mine = at[streams == stream]
        between = np.arange(mine.min(initial=int(heads[stream])), heads[stream])
        missing = np.setdiff1d(between[~world.is_last(stream, between)], mine)
        if len(missing):
            raise WrongError(f"stream {stream} has holes, from {missing[0]} on", len(missing))
    if wrong := world.wrong(batch, buffer.frame_stack):
        raise WrongError(f"{wrong} steps have other contents than they were given", wrong)
    derived = [(name, written(name, steps), until) for name, until in ((WRITTEN, known.written), (MAPPED, known.mapped))]
    found = {name: batch[name].numpy() for name in (WRITTEN, MAPPED, "tag") if name in batch}
    found |= {"tag": np.array(["", *buffer.episodes.tag_names])[found["tag"]]} if "tag" in found else {}
    expected = [tags_of(world, stream, place)[0] for stream, place in zip(streams.tolist(), at[:, None], strict=True)]
    derived.append(("tag", np.array(expected), known.tagged))
    for name, values, until in derived:
        if name not in found:
            if (until > 0).any():
                raise WrongError(f"column {name!r} is gone")
            continue
        due, given = at < until[streams], found[name] != found[name].dtype.type()
        bad = np.flatnonzero((found[name] != values) & (due | given))
        if len(bad):
            which, more = bad[0], len(bad) - 1
            raise WrongError(f"{name!r} of step {steps[which]} is {found[name][which]}, not {values[which]}; and {more} more")
    for episode in buffer.episodes:
        first = episode.start // world.n_envs
        number, given = first // world.rows(episode.stream), episode.values
        is_due = first < known.tagged[episode.stream]
        if (given or is_due) and given != {"name": f"episode {number}", "number": number}:
            raise WrongError(f"the values of episode {episode.id} are {given}, and it is number {number} of its environment")


# In a worker


class Killer:
    """Kill writers of one store after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._writers = directory, Writers()
        shutil.rmtree(directory / "stores", ignore_errors=True)
        (directory / "stores").mkdir(parents=True)

    def do(self, job: Job) -> Answer:
        """Make a store, and kill its writers `kills` times; return what came of it."""
        rng, options = np.random.default_rng([job["seed"], job["store"]]), dict(KINDS[job["kind"]])
        world, path = Experience(options.pop("n_envs")), self._directory / "stores" / f"store{job['store']}"
        known, calls, broken = Known(world), collections.Counter[str](), list[str]()
        left, killed, lost, unopened = path.with_name(f"{path.name}.left"), 0, 0, 0
        while killed < job["kills"] and not broken:
            killed += 1
            try:
                calls[self._kill(path, world, known, rng, options)] += 1
                shutil.rmtree(left, ignore_errors=True)
                if path.exists():
                    shutil.copytree(path, left)
                    adopt(left)
                judge(path, world, known, rng, killed % CHECKED_EVERY == 0, bool(rng.integers(2)))
            except Exception as error:  # noqa: BLE001  whatever it is, the promise is broken
                lost += getattr(error, "lost", 0)
                unopened += getattr(error, "unopened", False)
                broken.append(self._tell(job, killed, left, error))
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(left, ignore_errors=True)
        counts = {"kills": killed, "lost": lost, "unopened": unopened, "acknowledged": known.steps}
        return {**counts, "in": calls, "broken": broken}

    def _kill(self, path: Path, world: Experience, known: Known, rng: np.random.Generator, options: dict[str, Any]) -> str:
        writers, what = self._writers, str(rng.choice(DOING))
        writers.start(path, world, "everything", seed=int(rng.integers(2**31)), threads=1, **options)
        if what == "opening":
            time.sleep(rng.uniform(0, 0.03))
        else:
            writers.wait_for(0)
            if rng.random() < 0.6:
                writers.wait_until_doing(what, 0.4)
                time.sleep(rng.choice([0.0005, 0.003, 0.02]) * rng.random())
            else:
                time.sleep(rng.uniform(0, 0.15))
        assert writers.account is not None
        try:
            writers.kill()
        finally:
            known.take(writers.account)
        return DOING[max(0, int(writers.account.last[0]))]

    def _tell(self, job: Job, number: int, left: Path, error: Exception) -> str:
        kept = BROKEN / f"kills-{job['seed']}-{job['store']}-{number}"
        if left.exists():
            shutil.copytree(left, kept, dirs_exist_ok=True)
            (kept / "_why.txt").write_text("".join(traceback.format_exception(error)))
        what = str(error) if isinstance(error, WrongError) else "".join(traceback.format_exception(error)[-3:])
        return f"seed {job['seed']}, store {job['store']} ({job['kind']}), kill {number}: {what} {kept}"


# The campaign


def jobs(count: int, seed: int) -> Iterator[Job]:
    """Yield a job for each store."""
    kinds, each = list(KINDS), min(KILLS, -(-count // 5))
    for store, first in enumerate(range(0, count, each)):
        yield {"store": store, "seed": seed, "kind": kinds[store % len(kinds)], "kills": min(each, count - first)}


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Kill 1,000 writers, times `scale`."""
    total, calls, broken = collections.Counter[str](), collections.Counter[str](), list[str]()
    with scratch() as name, Pool("soak.kills", name, timeout=300) as pool:
        for job, answer in pool.do_all(jobs(max(1, round(1000 * scale)), seed)):
            calls.update(answer.pop("in", {}))
            broken += answer.pop("broken", [f"{job}: {answer}"])
            total.update({what: n for what, n in answer.items() if isinstance(n, int)})
    notes = [
        f"{total['acknowledged']:,} steps acknowledged, {total['lost']:,} lost; {total['unopened']:,} stores not to be opened",
        "killed in " + ", ".join(f"{what} {n}" for what, n in calls.most_common()),
    ]
    return Row("real kills (SIGKILL)", total["kills"], len(broken), [*notes, *broken[:SHOWN]])


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what kills writers."""
    return Killer(directory).do
