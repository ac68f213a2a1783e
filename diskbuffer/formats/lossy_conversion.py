"""What is lost on the way from one format to another: never in silence."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from diskbuffer.errors import InputError, LossError
from diskbuffer.plugin import either


def refuse(losses: Mapping[str, str], allowed: Collection[str], what: str) -> None:
    """Raise a LossError where there are losses that are not allowed."""
    if isinstance(allowed, str):
        raise InputError(f"allow_loss must be a list of names, found {allowed!r}; write [{allowed!r}]")
    left = {name: why for name, why in losses.items() if name not in allowed}
    if left:
        reasons = "".join(f"\n  {name}: {why}" for name, why in left.items())
        allow = either(f"allow_loss={[*left, *allowed]}", " ".join(f"--allow-loss {name}" for name in left))
        raise LossError(f"{what}. To go on without, allow it: {allow}{reasons}")
