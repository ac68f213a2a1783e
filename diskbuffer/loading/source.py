"""What a loader asks for batches, in the learner's thread: to begin one, and whether it may be delivered as it was begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from diskbuffer.reading.batch_reader import Planned, Take

B = TypeVar("B", bound="Begun")


class Begun(Protocol):
    """A batch that is decided, and not filled yet."""

    @property
    def planned(self) -> Planned | None:
        """How it is gathered; None where that is not decided before its turn."""


class Source(Protocol[B]):
    """Where batches come from."""

    def wait(self) -> None:
        """Block as long as the learner may not have another batch; called before any is begun, and before each is delivered."""

    def begin(self, take: Take) -> B | None:
        """Decide on the next batch, into memory that `take` returns; None where there is none any more."""

    def finalize(self, begun: B, take: Take) -> B:
        """Return a batch whose turn has come, or another, still to be gathered, where it cannot be delivered as it was begun."""

    def deliver(self, begun: B) -> None:
        """Note that the learner has a batch, or the error that tells that it is damaged."""

    def leave(self, begun: B) -> None:
        """Note that a batch was begun for nothing, as the learner has left, or it failed. In any thread, and without waiting."""
