"""What is drawn and read of the frozen stores, and digested.

Each case is a way to draw or to read. It yields, one after the other, what goes into its digests, with a name for each of these:
of samplers the size of batches, where the digest is over all seeds. Batches of each size and seed have a sampler of their own, so
that the smaller ones can be compared without the larger ones, which take most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from tests.frozen.digests import Digest
from tests.frozen.stores import STORES, Frozen, Numbers

SEEDS = (0, 2**40 + 5)
SIZES = (1, 8, 32, 256)
DRAWS = 3  # batches in a row
LESS = SIZES[:2]  # in the fast set
Make = Callable[[db.ReplayBuffer, int], db.Sampler]
Values = Iterator[tuple[str, Any]]


def _long(buffer: db.ReplayBuffer) -> Any:
    return buffer.episodes[buffer.episodes.length > 10]


UNIFORM: dict[str, Make] = {
    "Uniform": lambda _, seed: db.Uniform(seed),
    "Uniform n_step=3": lambda _, seed: db.Uniform(seed, n_step=3),
    "Uniform n_step=8 gamma=0.5": lambda _, seed: db.Uniform(seed, n_step=8, gamma=0.5),
    "Uniform newest=1": lambda _, seed: db.Uniform(seed, newest=1),
    "Uniform newest=1 n_step=2": lambda _, seed: db.Uniform(seed, newest=1, n_step=2),
    "Uniform max_age=30": lambda _, seed: db.Uniform(seed, max_age=30),
    "Uniform replace=False": lambda _, seed: db.Uniform(seed, replace=False),
    "Uniform replace=False n_step=3": lambda _, seed: db.Uniform(seed, replace=False, n_step=3),
    "Uniform episodes=": lambda buffer, seed: db.Uniform(seed, episodes=_long(buffer)),
    "Uniform episodes= replace=False": lambda buffer, seed: db.Uniform(seed, episodes=_long(buffer), replace=False),
}
SLICES: dict[str, Make] = {
    "Slices 4": lambda _, seed: db.Slices(4, seed),
    "Slices 12": lambda _, seed: db.Slices(12, seed),
    "Slices 6 strict=False": lambda _, seed: db.Slices(6, seed, strict=False),
    "Slices 4 over=episodes": lambda _, seed: db.Slices(4, seed, over="episodes"),
    "Slices 4 over=episodes strict=False": lambda _, seed: db.Slices(4, seed, over="episodes", strict=False),
    "Slices 4 burn_in=3": lambda _, seed: db.Slices(4, seed, burn_in=3),
    "Slices 4 burn_in=5 strict=False": lambda _, seed: db.Slices(4, seed, burn_in=5, strict=False),
    "Slices 6 crossing": lambda _, seed: db.Slices(6, seed, crossing=True),
    "Slices 6 crossing replace=False": lambda _, seed: db.Slices(6, seed, crossing=True, replace=False),
    "Slices 4 replace=False": lambda _, seed: db.Slices(4, seed, replace=False),
    "Slices 4 episodes=": lambda buffer, seed: db.Slices(4, seed, episodes=_long(buffer)),
    "Slices 4 max_age=40": lambda _, seed: db.Slices(4, seed, max_age=40),
}
WINDOWS: dict[str, Make] = {
    "Windows": lambda buffer, seed: db.Windows({_obs(buffer): (-1, 0), "action": range(-1, 4)}, seed),
    "Windows padding=edge stride=2": lambda buffer, seed: db.Windows(
        {_obs(buffer): (-4, 0), "action": (0, 2, 30)}, seed, padding="edge", stride=2
    ),
    "Windows padding=zeros replace=False": lambda _, seed: db.Windows(
        {"action": range(-2, 3), "reward": (0,)}, seed, padding="zeros", replace=False
    ),
}
VERSIONS: dict[str, Make] = {
    "Uniform max_age=20 age_column=": lambda _, seed: db.Uniform(seed, max_age=20, age_column="policy_version"),
    "Uniform max_age=8 age_column= replace=False": lambda _, seed: db.Uniform(
        seed, max_age=8, age_column="policy_version", replace=False
    ),
    "Slices 3 max_age=20 age_column=": lambda _, seed: db.Slices(3, seed, max_age=20, age_column="policy_version"),
}
GOALS: dict[str, Make] = {
    "Hindsight future": lambda _, seed: db.Hindsight(_reward, "future", seed=seed),
    "Hindsight final": lambda _, seed: db.Hindsight(_reward, "final", 0.5, seed=seed),
    "Hindsight episode": lambda _, seed: db.Hindsight(_reward, "episode", 1.0, seed=seed),
}
PRIORITIES: dict[str, Make] = {
    "Prioritized": lambda _, seed: db.Prioritized(seed=seed),
    "Prioritized alpha=1 beta=1 n_step=3": lambda _, seed: db.Prioritized(1.0, 1.0, seed, n_step=3),
    "Prioritized alpha=0": lambda _, seed: db.Prioritized(0.0, 0.5, seed),
    "Prioritized length=4": lambda _, seed: db.Prioritized(seed=seed, length=4),
    "Prioritized length=5 period=1 burn_in=3": lambda _, seed: db.Prioritized(seed=seed, length=5, period=1, burn_in=3, eta=0.5),
}
SOME_PRIORITIES = ("Prioritized", "Prioritized length=5 period=1 burn_in=3")
# Of stores that differ from the rest in how rows are decoded, or take long
FEW = ("Uniform", "Uniform n_step=3", "Uniform replace=False", "Slices 4 burn_in=5 strict=False", "Slices 6 crossing")


def _obs(buffer: db.ReplayBuffer) -> str:
    return next(path for path in buffer.columns if path.split("/")[0] == "obs")


def _reward(batch: dict[str, Any]) -> Any:
    goals = batch["next_obs"]
    return -(np.abs(goals["achieved_goal"] - goals["desired_goal"]).sum(axis=-1))


def sampled(buffer: db.ReplayBuffer, make: Make, sizes: tuple[int, ...]) -> Values:
    """Yield batches in a row, each seed and size with a sampler of its own; the last draw reads nothing."""
    for seed in SEEDS:
        for size in sizes:
            sampler, name = make(buffer, seed), f"batches of {size}"
            for _ in range(DRAWS):
                yield name, buffer.sample(size, sampler)
            yield name, buffer.draw(size, sampler)


def learned(open_: Callable[[Path, int], Any], path: Path, threads: int, make: Make, sizes: tuple[int, ...]) -> Values:
    """Yield prioritized batches between which priorities change and steps are added, each seed of a store of its own."""
    for seed in SEEDS:
        with open_(path / str(seed), threads) as buffer:
            sampler, numbers = make(buffer, seed), Numbers(seed % 1000)
            for size in sizes:
                name = f"batches of {size}"
                for k in range(DRAWS):
                    batch = buffer.sample(size, sampler)
                    yield name, batch
                    shape = tuple(batch["steps"].shape)
                    if len(shape) == 2 and k % 2:  # of sequences either one for each, or one for each of its steps
                        shape = (shape[0], sampler._length)  # type: ignore[attr-defined]
                    else:
                        shape = shape[:1]
                    yield name, sampler.update(batch["steps"], numbers.integers(1000, shape) / 64)  # type: ignore[attr-defined]
                    yield name, [*sampler.masses()]  # type: ignore[attr-defined]
                yield name, buffer.at(buffer.steps(), columns=["priority"])
                if size == 8:
                    _add_more(buffer)


def _add_more(buffer: db.ReplayBuffer) -> None:
    """Add the steps that there are once more, as others, which a ring has others evicted for."""
    batch = buffer.at(buffer.steps()[:90])
    values = {name: column.numpy() for name, column in batch.items() if name not in ("steps", "priority", "tag")}
    ends = np.arange(90) % 9 == 8
    values |= {"terminated": ends, "truncated": np.zeros(90, np.bool_)}
    newest = {name: values[name][:, -1] if buffer.frame_stack > 1 else values[name] for name in ("obs", "next_obs")}
    buffer.extend(**(values | newest), env=0, new_episode=np.arange(90) % 9 == 0)


def delivered(buffer: db.ReplayBuffer) -> Values:
    """Yield batches of a loader with several threads, of its ranks, and of the buffer's own sampler."""
    for size in SIZES:
        for _ in range(DRAWS):
            yield "the buffer's own", buffer.sample(size)
    for seed in SEEDS:
        for size in (8, 32):
            for name, how in {"alone": {}, "rank 1 of 3": {"rank": 1, "world_size": 3}}.items():
                loader = buffer.loader(size, db.Uniform(seed), threads=2, prefetch=3, **how)  # type: ignore[arg-type]
                batches = iter(loader)
                for _ in range(DRAWS):
                    yield f"loader, {name}", next(batches)
                batches.close()  # type: ignore[attr-defined]


def passed(buffer: db.ReplayBuffer) -> Values:
    """Yield all batches of passes over everything."""
    ways: dict[str, dict[str, Any]] = {
        "in order": {},
        "in order, the rest apart": {"merge_last": False},
        "shuffled": {"shuffle": True, "seed": 4},
        "shuffled, rank 0 of 2": {"shuffle": True, "seed": 5, "rank": 0, "world_size": 2},
        "some steps": {"steps": buffer.steps()[::-3]},
        "sequences": {"sampler": db.Slices(5), "shuffle": True, "seed": 6},
        "rows": {"sampler": db.Slices(5, crossing=True)},
        "n-step returns": {"sampler": db.Uniform(n_step=3)},
    }
    for name, how in ways.items():
        for batch in buffer.batches(150, threads=2, **how):
            yield name, batch


def looked_up(buffer: db.ReplayBuffer) -> Values:
    """Yield what is read by name, by age and by episode."""
    steps, (counts, _) = buffer.steps(), buffer.counts()
    some = steps[Numbers(1).integers(len(steps), (min(40, len(steps)),))]
    yield "steps", steps
    yield "counts", list(buffer.counts())
    yield "remaining", buffer.episodes.remaining(np.append(steps, [0, 10**9]))
    yield "elapsed", buffer.episodes.elapsed(np.append(steps, 0))
    yield "at", buffer.at(steps)
    yield "at", buffer.at(some)
    for name in ("reward", "action"):
        yield "at, one column", buffer.at(some, columns=[name])
    long = some[buffer.episodes.remaining(some) >= 3]
    yield "at, sequences", buffer.at(long, 3)
    episodes = buffer.episodes
    for field in ("stream", "start", "length", "ending", "tag", "id"):
        yield "episodes", list(getattr(episodes, field).tolist())
    yield "returns of episodes", episodes.returns
    for episode in buffer.episodes.read():
        yield "every episode", episode
    if buffer._multi_writer is None:
        for env in np.flatnonzero(counts[: buffer.n_envs]).tolist():
            ages = Numbers(2, env).integers(int(counts[env]), (30,))
            yield "by age", buffer.at(buffer.steps(ages, env))
            yield "by age", buffer.steps(ages, env)
            yield "by age, n-step returns", buffer.at(ages=ages, envs=env, n_step=4, gamma=0.9)
            yield "by age, apart", buffer.at(ages=ages, envs=env, copy=True)
            yield "by age, one column", buffer.at(ages=ages, envs=env, columns=["reward"])


def mixed(open_: Callable[[Path, int], Any], path: Path, threads: int, sizes: tuple[int, ...]) -> Values:
    """Yield batches of a mixture of two stores, one of them twice."""
    with open_(path / "one", threads) as one, open_(path / "other", threads) as other:
        for seed in SEEDS:
            for size in sizes[1:]:
                parts = [(one, 0.5, db.Uniform(seed)), (other, 1, db.Uniform(seed + 1)), (one, 0.25, db.Uniform(seed, newest=1))]
                mixture = db.Mixture(parts)
                for _ in range(DRAWS):
                    yield f"batches of {size}", mixture.sample(size)


def resumed(buffer: db.ReplayBuffer) -> Values:
    """Yield states of samplers, as they are saved, and what is drawn after one was loaded."""
    for make in (UNIFORM["Uniform"], UNIFORM["Uniform replace=False"], SLICES["Slices 4 replace=False"]):
        sampler, other = make(buffer, 11), make(buffer, 12)
        for _ in range(DRAWS):
            buffer.draw(32, sampler)
        yield "states", sampler.state_dict()
        other.load_state_dict(sampler.state_dict())
        yield "after them", buffer.draw(32, other)


def cases(store: Frozen, path: Path, threads: int, sizes: tuple[int, ...]) -> Iterator[tuple[str, Values]]:
    """Yield all that is digested of a store, built below an empty directory, by name."""
    with store.open(path / "first", threads) as buffer:
        makes = UNIFORM | SLICES | (WINDOWS if buffer.frame_stack == 1 else {})
        if "few" in store.traits:
            makes = {name: makes[name] for name in FEW}
        makes = makes | (VERSIONS if "versions" in store.traits else {}) | (GOALS if "goals" in store.traits else {})
        for name, make in makes.items():
            yield name, sampled(buffer, make, sizes)
        yield "looked up", looked_up(buffer)
        if "every way" in store.traits:
            yield "delivered", delivered(buffer)
            yield "passes", passed(buffer)
            yield "resumed", resumed(buffer)
    if "every way" in store.traits:
        yield "Mixture", mixed(store.open, path, threads, sizes)
    by_priority = (
        list(PRIORITIES) if "priorities" in store.traits else SOME_PRIORITIES if "some priorities" in store.traits else ()
    )
    for name in by_priority:
        yield name, learned(store.open, path / name.replace(" ", "-"), threads, PRIORITIES[name], sizes)


def digests_of(name: str, path: Path, threads: int = 1, sizes: tuple[int, ...] = SIZES) -> dict[str, dict[str, str]]:
    """Return the digests of a store: by case, and within it by what is drawn."""
    found = dict[str, dict[str, str]]()
    for case, values in cases(STORES[name], path, threads, sizes):
        parts = dict[str, Digest]()
        for part, value in values:
            parts.setdefault(part, Digest()).put(value)
        found[case] = {part: str(digest) for part, digest in parts.items()}
    return found
