"""Make the golden files with the code that others published: ``python make.py NAME``.

Each needs the directory of a checkout in PYTHONPATH: danijar/dreamerv3 at e3f0224 (with its packages elements, portal and
cloudpickle), danijar/dreamerv2 at 07d906e (its directory dreamerv2), facebookresearch/drqv2 at c0c650b (with torch),
seohongpark/ogbench at 1d41409.
"""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import world  # noqa: E402


class Env:
    """The world, as Dreamer's environments are."""

    def __init__(self, number: int, first: dict[str, Any], bools: Any = bool) -> None:
        self.number, self.episode, self.step_of, self._bool = number, -1, 0, bools
        self.act_space = first

    def reset(self) -> dict[str, Any]:
        self.episode, self.step_of = self.episode + 1, 0
        return self._obs(np.float32(0))

    def step(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("reset", False):
            return self.reset()
        wanted = world.action(world.vector(self.number, self.episode, self.step_of))
        np.testing.assert_array_equal(given["action"], wanted)
        self.step_of += 1
        return self._obs(world.reward(self.step_of - 1))

    def _obs(self, reward: np.float32) -> dict[str, Any]:
        last = self.step_of == world.length(self.number, self.episode)
        return {
            "image": world.image(self.number, self.episode, self.step_of),
            "vector": world.vector(self.number, self.episode, self.step_of),
            "reward": reward,
            "is_first": self.step_of == 0,
            "is_last": last,
            "is_terminal": last and world.terminates(self.episode),
        }


def bare(name: str) -> None:
    """Have modules of a package imported without all that the package itself imports."""
    found = find_spec(name)
    assert found is not None
    package = types.ModuleType(name)
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules[name] = package


def dreamerv3() -> None:
    """Two environments, in chunks of 16 rows; the last episodes are not finished."""
    bare("embodied")
    from elements import Space
    from embodied.core.driver import Driver
    from embodied.core.replay import Replay

    space = {"action": Space(np.float32, (2,)), "reset": Space(bool)}
    replay = Replay(length=4, directory=HERE / "dreamerv3", chunksize=16, save_wait=True)
    driver = Driver([lambda n=n: Env(n, space) for n in range(2)], parallel=False)
    driver.on_step(replay.add)

    def policy(carry: Any, obs: dict[str, Any]) -> tuple[Any, ...]:
        return carry, {"action": np.stack([world.action(one) for one in obs["vector"]])}, {}

    driver(policy, steps=80)
    replay.save()


def dreamerv2() -> None:
    """Four episodes of an environment."""
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")  # which only trains
    bare("common")
    from common.driver import Driver
    from common.replay import Replay

    replay = Replay(HERE / "dreamerv2")
    driver = Driver([Env(0, {"action": np.zeros(2, np.float32)})])
    driver.on_step(lambda step, worker: replay.add_step(step, worker))
    driver.on_reset(lambda step, worker: replay.add_step(step, worker))

    def policy(obs: dict[str, Any], state: Any) -> tuple[Any, ...]:
        return {"action": np.stack([world.action(one) for one in obs["vector"]])}, state

    driver(policy, episodes=4)


def drqv2() -> None:
    """Four episodes, of stacks of 3 frames."""
    from replay_buffer import ReplayBufferStorage

    def spec(name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return types.SimpleNamespace(name=name, shape=shape, dtype=np.dtype(dtype))

    class TimeStep(dict[str, Any]):
        def last(self) -> bool:
            return bool(self["is_last"])

    specs = [
        ("observation", (9, 6, 6), "uint8"),
        ("action", (2,), "float32"),
        ("reward", (1,), "float32"),
        ("discount", (1,), "float32"),
    ]
    (HERE / "drqv2").mkdir()
    storage = ReplayBufferStorage([spec(*one) for one in specs], HERE / "drqv2")
    for episode in range(4):
        for step in range(world.length(0, episode) + 1):
            frames = [world.image(0, episode, max(0, step - back)).transpose(2, 0, 1) for back in (2, 1, 0)]
            last = step == world.length(0, episode)
            of_last = (
                (world.action(world.vector(0, episode, step - 1)), world.reward(step - 1))
                if step
                else (np.zeros(2, np.float32), 0.0)
            )
            discount = 0.0 if last and world.terminates(episode) else 1.0
            storage.add(
                TimeStep(
                    observation=np.concatenate(frames), action=of_last[0], reward=of_last[1], discount=discount, is_last=last
                )
            )


def ogbench() -> None:
    """A data set as its scripts write it, and the two forms that its `load_dataset` makes of it."""
    bare("ogbench")
    from ogbench.utils import load_dataset

    made: dict[str, list[Any]] = {"observations": [], "actions": [], "terminals": [], "qpos": []}
    for episode in range(5):
        for step in range(world.length(0, episode) + 1):
            vector = world.vector(0, episode, step)
            made["observations"].append(vector)
            made["actions"].append(world.action(vector))
            made["terminals"].append(step == world.length(0, episode))
            made["qpos"].append(vector * 2)
    (HERE / "ogbench").mkdir()
    path = HERE / "ogbench" / "raw.npz"
    arrays: dict[str, Any] = {k: np.array(v, dtype=np.float32 if k != "terminals" else bool) for k, v in made.items()}
    np.savez_compressed(path, **arrays)
    for name, compact in (("compact", True), ("regular", False)):
        np.savez_compressed(HERE / "ogbench" / f"{name}.npz", **load_dataset(path, compact_dataset=compact, add_info=True))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
