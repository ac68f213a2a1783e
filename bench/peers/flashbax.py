"""flashbax's buffer, in JAX's arrays: compiled sampling, handed to torch without a copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.dlpack import from_dlpack

from bench.peers.peer import FramesPeer
from bench.transitions import Transitions


class Flashbax(FramesPeer):
    """Single frames in a trajectory buffer, whose sequences are one frame longer than a stack: obs and next_obs are views.

    Its flat buffer is the same with pairs of steps; it would hold each frame as often as it is in a stack.
    """

    name, needs = "flashbax", (("flashbax", "flashbax"), ("jax", "jax"))

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
        import jax.numpy as jnp

        self._transitions, self._jax, self._keys = transitions, jax, jax.random.key(seed)
        n = len(transitions.frames)
        flat = {"action": jnp.asarray(transitions.action[: n - 1]), "reward": jnp.asarray(transitions.reward)}
        padded = {name: jnp.concatenate([values, values[-1:]]) for name, values in flat.items()}
        flags = {name: jnp.zeros(n, bool) for name in ("terminated", "truncated")}
        steps = {"obs": jnp.asarray(transitions.frames), **padded, **flags}
        buffer = self._make(1)
        state = buffer.init({name: values[0] for name, values in steps.items()})
        self._state = jax.jit(buffer.add, donate_argnums=0)(state, {name: values[None] for name, values in steps.items()})
        self._draw: Any = None
        self._size = 0

    def _make(self, size: int) -> Any:
        import flashbax

        n = len(self._transitions.frames)
        return flashbax.make_trajectory_buffer(
            add_batch_size=1,
            sample_batch_size=size,
            sample_sequence_length=self._transitions.stack + 1,
            period=1,
            min_length_time_axis=self._transitions.stack + 1,
            max_length_time_axis=n,
        )

    def prepare(self, size: int) -> None:
        """Compile the draw of such batches."""
        if size == self._size:
            return
        jax, buffer = self._jax, self._make(size)
        last = self._transitions.first

        def draw(state: Any, keys: Any) -> Any:
            keys, key = jax.random.split(keys)
            found = dict(buffer.sample(state, key).experience)
            frames = found.pop("obs")
            return keys, frames, {name: values[:, last] for name, values in found.items()}

        self._draw, self._size = jax.jit(draw), size

    def sample(self, size: int) -> Any:
        """Draw steps."""
        self._keys, frames, flat = self._draw(self._state, self._keys)
        return from_dlpack(frames), {name: from_dlpack(values) for name, values in flat.items()}
