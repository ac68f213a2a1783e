"""Paths of stores, as users give them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from diskbuffer.errors import InputError


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path of this machine, absolute, with ``~`` as the user's home; an InputError where it is none."""
    try:
        text = os.fspath(path)
    except TypeError as error:
        raise InputError(f"a path must be a string or path-like, found {type(path).__name__}") from error
    if not isinstance(text, str):
        raise InputError(f"a path must be a string or path-like, found {text!r}; decode it first, with os.fsdecode()")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        if text.startswith("s3://"):
            copies = f"diskbuffer copy {text} PATH` copies a store down, and `diskbuffer copy PATH {text}` one up that was closed"
        else:
            copies = "diskbuffer copy` copies to and from buckets, by s3://BUCKET/PATH alone"
        raise InputError(f"{text} is a URL, where the path of a directory of this machine is needed; `{copies}")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise InputError(f"{text} begins with the home of a user who has none; give a path without ~") from error
