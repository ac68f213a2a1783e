"""Formats of other programs: `import_` makes a store of their files, and `export` writes a store's episodes to such.

A package of your own can add a format: register a `Format` as an entry point of the group "diskbuffer.formats".
"""

import typing

from diskbuffer.formats.exporting import export
from diskbuffer.formats.registry import names as formats
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows, Source, Writer

if typing.TYPE_CHECKING:
    from diskbuffer.formats.importing import import_

__all__ = ["Contents", "EpisodeData", "Format", "Rows", "Source", "Writer", "export", "formats", "import_"]


def __getattr__(name: str) -> typing.Any:
    if name != "import_":
        raise AttributeError(f"module 'diskbuffer.formats' has no attribute {name!r}")
    from diskbuffer.formats.importing import import_  # with PyTorch, 200 MB of memory that no export needs

    return import_
