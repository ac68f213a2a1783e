"""What a source says of itself, cut to what a store keeps of it."""

from __future__ import annotations

import json
from typing import Any

from diskbuffer.plugin import is_sane


def fitting(name: str, fields: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a store's metadata, ``{name: {"dataset": fields, **more}}``, without what does not fit, and that as a loss."""
    kept = dict(fields)
    left = []
    while kept and not (_is_finite(kept) and is_sane({name: {"dataset": kept, **more}})):
        size = {key: len(json.dumps(value)) + (0 if _is_finite(value) else 2**40) for key, value in kept.items()}
        left.append(max(size, key=size.__getitem__))
        del kept[left[-1]]
    losses = {}
    if left:
        losses["metadata"] = f"a store keeps little metadata, of finite numbers, and these are left out: {', '.join(left)}"
    return {name: {"dataset": kept, **more}}, losses


def _is_finite(value: Any) -> bool:
    """Return whether something is JSON without NaN and infinities."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
