"""flashbax's buffer, in JAX's arrays: compiled sampling, handed to torch without a copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.dlpack import from_dlpack

from bench.peers.peer import FramesPeer


class Flashbax(FramesPeer):
    """Single frames in a trajectory buffer, whose sequences are one frame longer than a stack: obs and next_obs are views.

    Its flat buffer is the same with pairs of steps; it would hold each frame as often as it is in a stack.
    """

    name, needs = "flashbax", ("flashbax", "jax")

    def fill(self, directory: Path) -> None:
        """Add all steps to its state."""
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
        import jax.numpy as jnp

        self._keys, n = jax.random.key(self._seed), len(self._transitions.frames)
        flat = {"action": jnp.asarray(self._transitions.action), "reward": jnp.asarray(self._transitions.reward)}
        padded = {name: jnp.concatenate([values, values[-1:]]) for name, values in flat.items()}
        flags = {name: jnp.zeros(n, bool) for name in ("terminated", "truncated")}
        steps = {"obs": jnp.asarray(self._transitions.frames), **padded, **flags}
        buffer = self._make(1)
        state = buffer.init({name: values[0] for name, values in steps.items()})
        self._state = jax.jit(buffer.add, donate_argnums=0)(state, {name: values[None] for name, values in steps.items()})

    def _make(self, size: int) -> Any:
        import flashbax

        length = self._transitions.stack + 1
        return flashbax.make_trajectory_buffer(
            add_batch_size=1,
            sample_batch_size=size,
            sample_sequence_length=length,
            period=1,
            min_length_time_axis=length,
            max_length_time_axis=len(self._transitions.frames),
        )

    def prepare(self, size: int) -> None:
        """Compile the draw of such batches."""
        import jax

        buffer, last = self._make(size), self._transitions.first

        def draw(state: Any, keys: Any) -> Any:
            keys, key = jax.random.split(keys)
            found = dict(buffer.sample(state, key).experience)
            frames = found.pop("obs")
            return keys, frames, {name: values[:, last] for name, values in found.items()}

        self._draw: Any = jax.jit(draw)

    def sample(self, size: int) -> Any:
        """Draw steps."""
        self._keys, frames, flat = self._draw(self._state, self._keys)
        return from_dlpack(frames), {name: from_dlpack(values) for name, values in flat.items()}
