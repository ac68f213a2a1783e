"""A Ray cluster whose nodes come and go: each in a process of its own, as a process has one cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

STARTED_AGAIN = """
import sys, time
from pathlib import Path
import numpy as np
import ray
from diskbuffer.adapters.ray import ClusterBuffer
from soak.ray_cluster import COLUMNS, cluster, join

root = Path(sys.argv[1])


def made():
    return ClusterBuffer("$SOAK_DISK/store", columns=COLUMNS, disks="disk")


def add(buffer, who, count):
    with buffer.writer() as writer:
        obs = np.stack([np.full(count + 1, who), np.arange(count + 1)], 1)
        writer.extend(obs=obs, action=np.arange(count), reward=np.zeros(count), terminated=np.arange(count) == count - 1)


def numbers(buffer):
    batch = buffer.sample(500)
    return {(int(who), int(number)) for (who, _), number in zip(batch["obs"], batch["node"])}


def on(node):
    return ray.remote(num_cpus=0, resources={f"disk-{node}": 1})(add)


with cluster(root) as running:
    for node in (0, 1):
        join(running, root, node)
    buffer = made()
    ray.get([on(node).remote(buffer, node, 300) for node in (0, 1)])
    buffer.refresh()
    before = numbers(buffer)
    assert len(before) == 2 and len({number for _, number in before}) == 2, before
    buffer.destroy()

with cluster(root) as running:  # node 0 is missing, and node 1 comes first
    join(running, root, 1)
    buffer = made()
    assert numbers(buffer) == {one for one in before if one[0] == 1}
    ray.get(on(1).remote(buffer, 2, 250))
    join(running, root, 0)
    until = time.monotonic() + 60
    while len(buffer) < 850 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(buffer) == 850
    after = numbers(buffer)
    assert before < after and {number for _, number in after} == {number for _, number in before}, (before, after)
    buffer.destroy()
assert sorted(path.name for path in root.glob("disk-*/store/actor-*")) == ["actor-0", "actor-0"]
"""


def run(*arguments: str) -> None:
    """Run Python, which must end well."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_steps_are_found_where_a_node_is_missing_and_others_come_first(tmp_path: Path) -> None:
    run("-c", STARTED_AGAIN, str(tmp_path))


@pytest.mark.nightly
def test_every_step_is_there_once_while_processes_and_nodes_are_killed(any_seed: int) -> None:
    run("-m", "soak", "--only", "ray_cluster", "--scale", "0.01", "--seed", str(any_seed % 1000))
