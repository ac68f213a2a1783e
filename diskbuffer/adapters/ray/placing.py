"""Where shards run: each on the machine that has its disk, also after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from diskbuffer.errors import InputError
from diskbuffer.plugin import integer

_LITTLE = 0.001  # of a machine's own resource, which there is one of
Place = Mapping[str, float]


def places(shards: int | Sequence[Place] | None) -> list[dict[str, float]]:
    """Return the resources that each shard asks for, by which Ray finds its machine again.

    Every machine has a resource ``node:ADDRESS`` of its own. By default there is a shard on each machine, in the order of their
    addresses.
    """
    if isinstance(shards, list | tuple):
        resources = [dict(place) for place in shards]
        if not resources or not all(resources):
            raise InputError("shards must be a number, or a list of resources, one for each shard: [{'disk-a': 0.01}, ...]")
        return resources
    if shards is not None:
        shards = integer("shards, where they are no list of resources,", shards, 1, 1024)
    machines = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
    count = len(machines) if shards is None else shards
    return [{f"node:{machines[n % len(machines)]}": _LITTLE} for n in range(count)]


def actor(cls: Any, place: Place, name: str, lifetime: str | None, num_cpus: float, **options: Any) -> Any:
    """Return the actor of this name, or a new one, which Ray starts again whenever it dies."""
    return cls.options(
        name=name,
        get_if_exists=True,
        lifetime=lifetime,
        max_restarts=-1,
        max_task_retries=0,  # what was being done is the caller's to do again
        num_cpus=num_cpus,
        resources=dict(place),
        **options,
    )
