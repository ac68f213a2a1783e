"""TorchRL's writers, over a storage that tells them where they are."""

from __future__ import annotations

from typing import Any

from torchrl.data.replay_buffers.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictRoundRobinWriter,
    Writer,
)

from diskbuffer.errors import InputError


def _next(writer: Any) -> int:
    """Return where the ring goes on: behind the newest step, whatever was loaded, refused, or written by others."""
    return 0 if writer._storage is None else int(writer._storage.stored.ring.next)


def _ignore(writer: Any, value: int) -> None:
    """Leave the cursor to the ring."""


class RingWriter(RoundRobinWriter):  # type: ignore[misc]
    """TorchRL's `RoundRobinWriter`, with the ring's cursor."""

    _cursor = property(_next, _ignore)


class TensorDictRingWriter(TensorDictRoundRobinWriter):  # type: ignore[misc]
    """TorchRL's `TensorDictRoundRobinWriter`, with the ring's cursor."""

    _cursor = property(_next, _ignore)


_RINGS = {RoundRobinWriter: RingWriter, TensorDictRoundRobinWriter: TensorDictRingWriter}


def follow_ring(writer: Writer | None) -> None:
    """Make a writer follow the ring of its storage; an InputError where it writes in another order."""
    kind = type(writer)
    if kind in _RINGS:
        writer.__class__ = _RINGS[kind]
    elif writer is not None and not isinstance(writer, RingWriter | TensorDictRingWriter | ImmutableDatasetWriter):
        raise InputError(
            f"a DiskStorage is written to as a ring, and {kind.__name__} writes in another order; leave writer= out, or use a "
            "storage in memory"
        )
