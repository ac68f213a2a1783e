"""Where what is shown comes from: the face of `reading.episode_reader.EpisodeReader`, which lies above this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.schema import Column

if TYPE_CHECKING:
    from diskbuffer.reading.episodes import Episode, Episodes


class Source(Protocol):
    """Read single columns of a buffer; see `EpisodeReader`."""

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of batches, by path."""

    @property
    def streams(self) -> int:
        """How far the names of consecutive steps lie apart."""

    @property
    def frame_stack(self) -> int:
        """Frames in an observation."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where the steps come from: ``path``, and ``environment``."""

    def sum_rewards(self, episodes: Episodes) -> npt.NDArray[np.float64]:
        """Return the sums of the rewards of episodes."""

    def elapsed(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Count the steps of its episode before each step."""

    def steps(self, path: str, steps: npt.NDArray[np.int64], *, following: bool = False) -> npt.NDArray[Any]:
        """Return a column of given steps."""

    def episode(self, path: str, episode: Episode, which: npt.NDArray[np.int64] | None = None) -> npt.NDArray[Any]:
        """Return a column of an episode."""
