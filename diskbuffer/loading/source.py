"""What a loader asks for batches: to begin one in the learner's thread, and to fill it in another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from diskbuffer.reading.batches.base import Arrays, Request

B = TypeVar("B", bound="Begun")


class Begun(Protocol):
    """A batch that is decided, and not filled yet."""

    @property
    def request(self) -> Request | None:
        """What it is to be; None where that is not decided before its turn."""


class Source(Protocol[B]):
    """Where batches come from."""

    def wait(self) -> None:
        """Block as long as the learner may not have another batch; called before any is begun, and before each is delivered."""

    def begin(self) -> B | None:
        """Decide on the next batch, in the learner's thread; None where there is none any more."""

    def fill(self, begun: B, arrays: Arrays) -> None:
        """Fill memory, in any thread."""

    def finalize(self, begun: B) -> B:
        """Return a batch whose turn has come, or another, still to be filled, where it cannot be delivered as it was begun."""

    def deliver(self, begun: B) -> None:
        """Note that the learner has a batch, or the error that tells that it is damaged."""

    def leave(self, begun: B) -> None:
        """Note that a batch was begun for nothing, as the learner has left, or it failed. In any thread, and without waiting."""
