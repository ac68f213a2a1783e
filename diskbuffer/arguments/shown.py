"""What a notebook shows, and a user saves: a picture, a movie."""

from __future__ import annotations

import base64
import html
import os
from dataclasses import dataclass, field
from pathlib import Path

from diskbuffer.errors import InputError


@dataclass(frozen=True)
class Picture:
    """A PNG, which a notebook shows.

    Attributes
    ----------
    data : bytes
    """

    data: bytes = field(repr=False)

    def _repr_png_(self) -> bytes:
        return self.data

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, whose name must end with .png, in place of what is there; return its path."""
        return _save(self.data, path, "png", "pictures are written as PNG")


@dataclass(frozen=True)
class Video:
    """A movie, which a notebook plays.

    Attributes
    ----------
    data : bytes
    kind : str
        "mp4" or "gif".
    frames : int
    fps : float
        Frames a second.
    every : int
        It shows every so many of the episode's frames.
    """

    KINDS = ("mp4", "gif")

    data: bytes = field(repr=False)
    kind: str
    frames: int
    fps: float
    every: int = 1

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.data).decode()
        if self.kind == "gif":
            return f'<img src="data:image/gif;base64,{data}" alt="{html.escape(repr(self))}">'
        return f'<video controls loop autoplay muted playsinline src="data:video/mp4;base64,{data}"></video>'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, in place of what is there; return its path.

        Raises
        ------
        InputError
            The path does not end with the movie's kind: .mp4 or .gif.
        """
        others = " or ".join(f".{kind} with kind={kind!r}" for kind in self.KINDS if kind != self.kind)
        return _save(self.data, path, self.kind, f"this movie was made as {self.kind.upper()}; episode.video() makes {others}")


def _save(data: bytes, path: str | os.PathLike[str], kind: str, hint: str) -> Path:
    target = Path(path).expanduser()
    if target.suffix.lower() != f".{kind}":
        raise InputError(f"expected a path that ends with .{kind}, found {target.name!r}: {hint}")
    target.write_bytes(data)
    return target
