"""Names of columns for other libraries' keys, which may be any string."""

from __future__ import annotations

from diskbuffer.adapters.place_column import OURS
from diskbuffer.schema import TAKEN

_TAKEN = {*OURS, *TAKEN, "obs", "reward", "protect"}  # by stores, their batches, and `add`
_ESCAPED = "x_"  # begins the names of columns whose keys are no names of columns


def name_of(key: str) -> str:
    """Return the name of a part of a column's path: the key, where that is one."""
    return key if key.isidentifier() and not key.startswith(("_", _ESCAPED)) else escape(key)


def column_of(key: str, *others: str) -> str:
    """Return the name of a key's column: none that stores use themselves, nor one of the `others`."""
    return escape(key) if key in _TAKEN or key in others else name_of(key)


def escape(key: str) -> str:
    """Return a name that says which key it stands for, and is no other's."""
    return _ESCAPED + key.encode().hex()


def key_of(name: str) -> str:
    """Return the key that a name stands for."""
    return bytes.fromhex(name.removeprefix(_ESCAPED)).decode() if name.startswith(_ESCAPED) else name
