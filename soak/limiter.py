"""A limiter holds its ratio while actors and learners are killed: over a million inserts, and in a thousand random schedules.

First four actors add a million steps, a call at a time, to stores under one directory. One after the other gets SIGKILL at a
random instant, and comes back at once, or a while later. A learner takes batches from a loader that draws ahead, and comes back
anew now and then. What it got in all is compared with what the stores have, neither of which the limiter counted.

Then schedules that are drawn: how many actors and learners, how large their calls, what ratio, what bounds. Each of their
processes is killed and comes back at random. Whenever both sides live, one of them must go on; and the surplus that all
processes see must be within its bounds, up to a call of each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import diskbuffer as db
from diskbuffer.limiting import fields
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import SHARED_LIMITER, read_description
from soak.crew import Crew, errors_beside
from soak.table import SHOWN, Row
from soak.workers import Job, scratch

COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
RATIO, MIN_SIZE, BUFFER, ACTORS, BATCH, REOPENINGS = 4.0, 5000, 1000.0, 4, 256, 5
WITHIN = 0.01  # of what is asked for
STUCK = 30.0  # seconds without an insert or a sample, though both sides live
SEGMENT_ROWS, CAPACITY = 256, 20_000
AT_ONCE = 4  # schedules


def act(root: Path, number: int, asked: db.SampleToInsertRatio, seed: int, largest: int) -> None:
    """Be an actor, until somebody kills it."""
    random, obs = np.random.default_rng(seed), np.zeros((largest + 1, 2), np.float32)
    with opened(root, number, asked) as buffer:
        while True:
            if random.random() < 0.5:
                for _ in range(int(random.integers(1, 60))):
                    buffer.add(obs[0], 0, 1.0, obs[1], False, False, new_episode=False)
            else:
                n = int(random.integers(1, largest + 1))
                buffer.extend(obs[: n + 1], np.zeros(n, np.int64), np.ones(n), new_episode=True)


def learn(root: Path, asked: db.SampleToInsertRatio, seed: int, batch: int) -> None:
    """Be a learner, until somebody kills it."""
    random = np.random.default_rng(seed)
    with db.ReplayBuffer(root, mode="r", limiter=asked, threads=1) as buffer:
        while True:
            if random.random() < 0.5:
                for _ in range(int(random.integers(1, 10))):
                    buffer.sample(batch)
            else:
                loader = iter(buffer.loader(batch, prefetch=int(random.integers(1, 5))))
                for _ in range(int(random.integers(1, 40))):
                    next(loader)
                loader.close()  # type: ignore[attr-defined]
            buffer.refresh()


def opened(root: Path, number: int, asked: db.SampleToInsertRatio) -> db.ReplayBuffer:
    """Open an actor's store."""
    return db.ReplayBuffer(
        root, CAPACITY, columns=COLUMNS, segment_rows=SEGMENT_ROWS, writer=f"actor-{number}", threads=1, limiter=asked
    )


def be(job: Job) -> None:
    """Be an actor or a learner."""
    root, asked = Path(job["root"]), db.SampleToInsertRatio(**job["asked"])
    if job["role"] == "actor":
        act(root, job["number"], asked, job["seed"], job["size"])
    else:
        learn(root, asked, job["seed"], job["size"])


class Seen:
    """What the shared file says, read without the limiter."""

    def __init__(self, root: Path, ratio: float, min_size: int) -> None:
        self._words = np.memmap(root / SHARED_LIMITER / "counts", np.int64, "r", shape=(fields.WORDS,))
        self._ratio, self._min_size = ratio, min_size

    @property
    def added(self) -> int:
        """All steps."""
        return int(self._words[fields.HEAD :].reshape(-1, fields.ROW)[:, fields.ADDED].sum())

    @property
    def samples(self) -> int:
        """All samples."""
        return int(self._words[fields.SAMPLES])

    @property
    def surplus(self) -> float:
        """How many samples are due."""
        return self._ratio * (self.added - self._min_size) - self.samples


def stored(root: Path) -> int:
    """Return how many steps the stores have ever had, by what they say themselves; nobody may write to them."""
    total = 0
    for entry in read_description(Files(root)).writers:
        with db.ReplayBuffer(root / entry.name, mode="r", threads=1) as buffer:
            total += buffer.stats()["added"]
    return total


def hold(directory: Path, inserts: int, seed: int) -> Row:
    """Have so many steps be added and sampled from."""
    random, root = np.random.default_rng(seed), directory / "hold" / "all"
    root.parent.mkdir()
    asked = {"ratio": RATIO, "min_size": MIN_SIZE, "error_buffer": BUFFER}
    limit, largest = db.SampleToInsertRatio(**asked), 100  # type: ignore[arg-type]
    for number in range(ACTORS):
        opened(root, number, limit).close()
    job = {"root": str(root), "asked": asked, "role": "actor", "size": largest}
    crew, seen = Crew("soak.limiter", [job | {"number": n} for n in range(ACTORS)], random, 3.0), Seen(root, RATIO, MIN_SIZE)
    delivered, worst, openings, begun = 0, 0.0, 0, time.monotonic()
    try:
        for part in range(1, REOPENINGS + 1):
            until, openings = inserts * part // REOPENINGS + MIN_SIZE, openings + 1
            for batch, surplus in _batches(root, limit, crew, seen, until):
                delivered, worst = delivered + batch, max(worst, abs(surplus))
    finally:
        crew.end()
    count = stored(root) - MIN_SIZE
    found, bound = delivered / count, BUFFER + RATIO * ACTORS * largest + BATCH
    errors = errors_beside(root)
    drifted = abs(delivered - RATIO * count) > max(WITHIN * RATIO * count, bound)  # of few inserts, the buffer is more
    broken = int(drifted) + (worst > bound) + len(errors) + (delivered != seen.samples)
    notes = [
        f"seed {seed}: {count:,} inserts and {delivered:,} samples, a ratio of {found:.4f} where {RATIO:g} is asked for "
        f"({100 * (found / RATIO - 1):+.3f} %); {crew.kills} kills, {openings} learners one after the other; surplus at most "
        f"{worst:,.0f} of {bound:,.0f}; {time.monotonic() - begun:.0f} s",
        *[f"seed {seed}: {error}" for error in errors[:SHOWN]],
    ]
    return Row("the ratio held while actors are killed: inserts", count, broken, notes)


def _batches(root: Path, limit: db.SampleToInsertRatio, crew: Crew, seen: Seen, until: int) -> Iterator[tuple[int, float]]:
    """Be a learner until so much was added; yield the size of each batch, and the surplus then."""
    refreshed, over = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not over.wait(0.05):
            crew.go_on(0.03)

    others = threading.Thread(target=go_on)
    others.start()
    try:
        with db.ReplayBuffer(root, mode="r", limiter=limit, threads=1) as learner:
            for batch in learner.loader(BATCH, prefetch=4):
                yield len(batch["steps"]), seen.surplus
                if seen.added >= until:
                    return
                if time.monotonic() - refreshed > 0.5:
                    learner.refresh()
                    refreshed = time.monotonic()
    finally:
        over.set()
        others.join()


def schedule(directory: Path, seed: int) -> tuple[str | None, int]:
    """Try one schedule; return what was wrong, and how many were killed."""
    random, root = np.random.default_rng(seed), directory / f"schedule-{seed}" / "all"
    root.parent.mkdir()
    ratio, min_size = float(random.choice([0.25, 1.0, 4.0, 16.0])), int(random.integers(1, 300))
    bound, largest, batch = (
        float(random.choice([0, 20, 1000])),
        int(random.choice([1, 20, 200])),
        int(random.choice([1, 16, 128])),
    )
    asked = {"ratio": ratio, "min_size": min_size, "error_buffer": bound}
    actors, learners = (int(n) for n in random.integers(1, 4, 2))
    opened(root, 0, db.SampleToInsertRatio(**asked)).close()  # type: ignore[arg-type]
    job = {"root": str(root), "asked": asked}
    jobs = [job | {"role": "actor", "number": n, "size": largest} for n in range(actors)]
    jobs += [job | {"role": "learner", "size": batch}] * learners
    crew, seen = Crew("soak.limiter", jobs, random, 0.1), Seen(root, ratio, min_size)
    steps = min(int(random.integers(200, 1000)), 300 * largest, round(400 * batch / ratio))  # so many calls at most
    until, moved, last = steps + min_size, time.monotonic(), (-1, -1)
    allowed, wrong, chance = bound + ratio * actors * largest + learners * batch, None, float(random.choice([0.01, 0.05]))
    try:
        while wrong is None and seen.added < until:
            crew.go_on(chance)
            now = seen.added, seen.samples
            if now != last:
                last, moved = now, time.monotonic()
            elif time.monotonic() - moved > STUCK:
                wrong = f"stuck at {now[0]} steps and {now[1]} samples"
            if now[0] >= min_size and abs(surplus := ratio * (now[0] - min_size) - now[1]) > allowed + ratio * largest + batch:
                wrong = f"a surplus of {surplus:g}, and {allowed:g} at most is allowed"
            time.sleep(0.01)
    finally:
        crew.end()
    errors = errors_beside(root)
    wrong = wrong or (errors[0] if errors else None)
    return (
        None if wrong is None else f"seed {seed}, {asked}, {actors} and {learners}, {largest} and {batch}: {wrong}"
    ), crew.kills


def main(scale: float = 1.0, *, seed: int = 0) -> Iterator[Row]:
    """Have 1,000,000 steps be added, and run 1,000 schedules, times `scale`."""
    with scratch() as name:
        yield hold(name, round(1_000_000 * scale), seed)
        count, begun = max(1, round(1000 * scale)), time.monotonic()
        seeds = range(seed * 1_000_000, seed * 1_000_000 + count)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda each: schedule(name, each), seeds))
        notes, kills = [wrong for wrong, _ in found if wrong is not None], sum(killed for _, killed in found)
        told = f"{kills:,} kills in {time.monotonic() - begun:.0f} s"
        yield Row("schedules of actors and learners: no deadlock", count, len(notes), [told, *notes[:SHOWN]])
