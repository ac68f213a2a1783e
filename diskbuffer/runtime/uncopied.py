"""Objects that own a descriptor or a map: a copy would give it back, too, and somebody else has that number by then."""

from __future__ import annotations

from typing import Any, NoReturn


class Uncopied:
    """Refuse to be copied or pickled, before anything of a copy is made."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise a TypeError."""
        raise TypeError(f"a {type(self).__name__} owns what the system has opened for it, and cannot be copied or pickled")
