"""Names that are private in a library, and that an adapter uses, are in the table of docs/adapters.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"_batch_size", "_dtype", "_alpha"}  # of what derives from none of their classes, or from none that has it


def listed(*libraries: str) -> set[str]:
    """Return the names that the table has for some libraries."""
    found, library = set[str](), ""
    for row in (ROOT / "docs" / "adapters.md").read_text().partition("\nThe private names")[2].splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 5:
            library = cells[1] or library
            found |= set(re.findall(r"`(_\w+)`", cells[2])) if library in libraries else set()
    return found


def names_of(*classes: type) -> set[str]:
    """Return the names that classes, and what they derive from, define, or use in their methods."""
    members = [member for one in classes for base in one.__mro__ for member in vars(base).items()]
    methods = [inspect.unwrap(value) for _, value in members if inspect.isfunction(value)]
    return {name for name, _ in members} | {name for method in methods for name in method.__code__.co_names}


def torchrl_names() -> set[str]:
    data = pytest.importorskip("torchrl.data", reason="needs TorchRL: pip install 'diskbuffer[torchrl]'")
    samplers = pytest.importorskip("torchrl.data.replay_buffers.samplers")
    classes = (data.LazyTensorStorage, data.TensorDictRoundRobinWriter, data.TensorDictReplayBuffer, samplers.SliceSampler)
    return names_of(*classes, pytest.importorskip("tensordict").TensorDict)


def tianshou_names() -> set[str]:
    data = pytest.importorskip("tianshou.data", reason="needs Tianshou: pip install 'diskbuffer[tianshou]'")
    return names_of(data.PrioritizedReplayBuffer, data.PrioritizedVectorReplayBuffer)


def rllib_names() -> set[str]:
    buffers = pytest.importorskip("ray.rllib.utils.replay_buffers", reason="needs RLlib: pip install 'diskbuffer[rllib]'")
    return names_of(buffers.PrioritizedEpisodeReplayBuffer)


def sb3_names() -> set[str]:
    from stable_baselines3.common.buffers import DictRolloutBuffer
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

    return names_of(DictRolloutBuffer, HerReplayBuffer)


@pytest.mark.parametrize(
    ("adapter", "libraries", "names"),
    [
        ("torchrl/*.py", ("TorchRL", "tensordict"), torchrl_names),
        ("tianshou/*.py", ("Tianshou",), tianshou_names),
        ("rllib.py", ("RLlib",), rllib_names),
        ("sb3/*.py", ("Stable-Baselines3",), sb3_names),
    ],
    ids=["torchrl", "tianshou", "rllib", "sb3"],
)
def test_private_names_that_an_adapter_uses_are_listed(
    adapter: str, libraries: tuple[str, ...], names: Callable[[], set[str]]
) -> None:
    sources = "".join(file.read_text() for file in (ROOT / "diskbuffer" / "adapters").glob(adapter))
    used = set(re.findall(r"(?<!\w)_[a-z]\w*", sources)) & names() - OURS
    assert used == listed(*libraries)
    assert not re.findall(r"^ *(?:from|import) (?!torch\.utils)\S*\._", sources, re.MULTILINE)
