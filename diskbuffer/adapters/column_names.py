"""Names of columns for other libraries' keys, which may be any string; what is no name is escaped as the core escapes it."""

from __future__ import annotations

from diskbuffer.adapters.place_column import OURS
from diskbuffer.plugin import RESERVED_NAMES, escape_key, unescape_key

_TAKEN = {*OURS, *RESERVED_NAMES, "obs", "reward"}  # by stores, their batches, and `add`


def column_of(key: str, *others: str) -> str:
    """Return the name of a key's column: none that stores use themselves, nor one of the `others`.

    Those are followed by an underscore, as Python's keywords are: ``steps_``, and ``steps__`` where the key is ``steps_``.
    """
    return escape_key(f"{key}_" if _is_taken(key, others) else key)


def key_of(name: str, *others: str) -> str:
    """Return the key whose column has a name."""
    key = unescape_key(name)
    return key.removesuffix("_") if _is_taken(key, others) else key


def _is_taken(key: str, others: tuple[str, ...]) -> bool:
    """Return whether a key is a taken name, with or without underscores behind it."""
    plain = key.rstrip("_")
    return plain in _TAKEN or plain in others
