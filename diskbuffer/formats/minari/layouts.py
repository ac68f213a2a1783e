"""What Minari's two layouts have in common: episodes by number, each of arrays by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from diskbuffer.formats.minari.spaces import Leaf
from diskbuffer.plugin import Rows

Name = tuple[str, ...]  # of an array: ("observations", "camera"), ("rewards",), ("infos", "success")


@dataclass(frozen=True)
class EpisodeHeader:
    """The length, the metadata and the names of the infos of an episode.

    Attributes
    ----------
    steps : int
    metadata : mapping
        As Minari returns it: "seed", "options", and what a user added.
    infos : frozenset of tuples of str
        Names of what there is for each step beside observations, actions and rewards.
    final : bool
        Whether there is an observation after the last step.
    """

    steps: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    infos: frozenset[Name] = frozenset()
    final: bool = True


class Opened(Protocol):
    """The episodes of a data set.

    Attributes
    ----------
    episodes : int
        How many there are.
    """

    episodes: int

    def header(self, number: int) -> EpisodeHeader:
        """Return the header of an episode."""
        ...

    def read(self, number: int, leaves: Mapping[Name, Leaf], infos: Collection[Name]) -> dict[Name, Rows]:
        """Return the arrays of an episode: those of the parts of its spaces, rewards and flags, and some infos.

        An info that is no array of numbers, or has no row for each step, is left out.
        """
        ...

    def close(self) -> None:
        """Close files."""
        ...
