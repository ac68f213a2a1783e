"""A batch of several nodes: how many steps each gives, and one batch of what they gave. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map

from diskbuffer.errors import InputError
from diskbuffer.plugin import Batch, as_array, power, step_ids

Int64 = npt.NDArray[np.int64]
Node = TypeVar("Node")


def shares(size: int, weights: Mapping[Node, float], random: np.random.Generator) -> dict[Node, int]:
    """Draw how many of `size` steps each node gives, in proportion to its weight, as if each step were drawn by itself."""
    if len(weights) == 1:
        return dict.fromkeys(weights, size)
    drawn = random.multinomial(size, np.array(list(weights.values())) / sum(weights.values()))
    return dict(zip(weights, drawn.tolist(), strict=True))


def weights_of_all(weights: npt.NDArray[Any], least_there: float, least: float, beta: float) -> npt.NDArray[np.float32]:
    """Return importance weights relative to the least likely step of all nodes.

    Parameters
    ----------
    weights : (n,) floats
        Of one node's steps, relative to the least likely step there, as of ``beta=1``.
    least_there, least : float
        What the least likely step is drawn by there, and on all nodes; 0 where it is not known.
    beta : float
    """
    ratio = min(least, least_there) / least_there if least_there else 1.0
    return power(ratio * weights.astype(np.float64), beta).astype(np.float32)


def joined(parts: Sequence[Any]) -> Batch:
    """Return one batch of parts, whose values are tensors or arrays."""
    if len(parts) == 1 and isinstance(parts[0]["node"], torch.Tensor):
        return cast(Batch, parts[0])
    parts = [tree_map(np.asarray, part) for part in parts]
    every = {name: value for part in parts for name, value in part.items()}
    for part in parts:  # a column that learners wrote on some nodes only is zeros on others, as it is within one
        rows = len(part["steps"])
        zeros = partial(tree_map, lambda value, rows=rows: np.zeros((rows, *value.shape[1:]), value.dtype))
        part |= {name: zeros(every[name]) for name in every.keys() - part.keys()}
    together = np.concatenate if len(parts) > 1 else itemgetter(0)
    batch: Batch = tree_map(lambda *arrays: torch.from_numpy(together(arrays)), *parts)
    return batch


def by_number(batch: Any, values: npt.NDArray[Any]) -> list[tuple[int, Int64, npt.NDArray[Any]]]:
    """Return of each node that a batch has steps of its number, the steps, and the values of these."""
    if not isinstance(batch, Mapping) or "node" not in batch:
        raise InputError('the batch has no "node": give a batch as sample() returns it')
    numbers, steps = as_array("node", batch["node"]), step_ids(batch["steps"], of_sequences=True)
    if values.shape[:1] != steps.shape[:1]:
        raise InputError(f"expected a value for each of {len(steps)} samples, found shape {values.shape}")
    return [(number, steps[numbers == number], values[numbers == number]) for number in np.unique(numbers).tolist()]
