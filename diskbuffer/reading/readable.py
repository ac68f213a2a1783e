"""What a reader needs of a store: of one, or of several that are read as one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.index.named_values import Named
from diskbuffer.store.format.layout import Layout


class Mapped(Protocol):
    """Which memory each segment's file is mapped to: `Maps`, or those of several stores."""

    sources: npt.NDArray[Any]

    @property
    def epoch(self) -> Any:
        """Keep what is mapped now as long as this is held."""

    def ensure(self, slots: Iterable[int], paths: Iterable[str] | None = None) -> None:
        """Map slots in some columns, or in all, where they are not."""


class Describes(Protocol):
    """Names rows in errors."""

    def describe_rows(self, path: str, slot: int, stream: int, first: int, last: int) -> str:
        """Name rows of a stream in a column, and the file in which they are."""


class Readable(Protocol):
    """An open store, or several."""

    lock: threading.RLock

    @property
    def root(self) -> Path:
        """Where it is."""

    @property
    def writable(self) -> bool:
        """Whether this process writes to it."""

    @property
    def layout(self) -> Layout:
        """Its shape."""

    @property
    def metadata(self) -> Sequence[Mapping[str, Any] | None]:
        """The user's metadata, of each writer's store."""

    @property
    def maps(self) -> Mapped:
        """What is mapped."""

    @property
    def verification(self) -> Describes:
        """What names rows."""

    def values(self, name: str, slot: int) -> npt.NDArray[Any]:
        """View one segment of a flat column, (segment_rows, ...), to read from it."""

    def values_of_episodes(self, ids: npt.NDArray[np.int64]) -> dict[str, Named]:
        """Return the values of episodes by name, (n,) each."""

    def forget_rows(self) -> None:
        """Treat what was seen, and what is mapped, as unknown until it is read anew."""
