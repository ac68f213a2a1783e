"""What a buffer of another library has in memory, and ours in its store: asking for it is an error that says where it is."""

from __future__ import annotations

from typing import Any


def on_disk(owner: type, name: object) -> str:
    """Return the message for an array that a class does not have."""
    return (
        f"{owner.__name__} has its steps on disk, and no array {name!r}; read them through buffer.stored.buffer, a "
        "diskbuffer.ReplayBuffer: at(steps), sample(n), episodes"
    )


class OnDisk:
    """Such an array, as an attribute of a class: reading it is an AttributeError."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, buffer: Any, owner: type) -> Any:
        if buffer is None:
            return self
        raise AttributeError(on_disk(owner, self._name))
