"""The files of a Zarr v2 group: in a directory, or in a zip."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from diskbuffer.errors import SourceError
from diskbuffer.formats.untrusted import damaged

_LARGEST_METADATA = 1024**2


class GroupFiles:
    """Files by their names below a group, "data/action/.zarray".

    Attributes
    ----------
    size : int
        Bytes of all files.
    arrays : list of str
        Where arrays are, "data/action".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        if path.is_file():
            with damaged(path, "a Zarr group"):
                self._zip = zipfile.ZipFile(path)
            members = self._zip.infolist()
            self.size = os.stat(path).st_size
            if sum(member.compress_size for member in members) > self.size:
                raise SourceError(f"{path} is damaged, or made to do harm: its members overlap")
            if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
                raise SourceError(f"{path} is compressed in a way that no program zips Zarr groups")
            names = [member.filename for member in members]
        elif path.is_dir():
            self.size, names = 0, []
            for root, _, files in os.walk(path):
                for file in files:
                    self.size += os.lstat(os.path.join(root, file)).st_size
                    if file == ".zarray":
                        names.append(os.path.relpath(os.path.join(root, file), path))
        else:
            raise SourceError(f"there is no file or directory {path}")
        self.arrays = sorted(name.removesuffix("/.zarray") for name in names if name.endswith("/.zarray"))

    def read(self, name: str, most: int) -> bytes | None:
        """Return what is in a file of at most so many bytes; None where there is none."""
        with damaged(self.path, "a Zarr group"):
            try:
                if self._zip is not None:
                    with self._zip.open(name) as file:
                        data = file.read(most + 1)
                else:
                    with open(self.path / name, "rb") as opened:
                        data = opened.read(most + 1)
            except (KeyError, FileNotFoundError):
                return None
        if len(data) > most:
            raise SourceError(f"{self.path}: {name} has more than {most:,} bytes, and should not")
        return data

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file; an empty one where there is no such file."""
        text = self.read(name, _LARGEST_METADATA)
        try:
            content = {} if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.path}: {name} is damaged: {error}") from error
        if not isinstance(content, dict):
            raise SourceError(f"{self.path}: {name} is damaged: it should be an object, and is {type(content).__name__}")
        return content

    def close(self) -> None:
        """Close the zip."""
        if self._zip is not None:
            self._zip.close()
