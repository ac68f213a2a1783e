"""Formats of other programs: `import_` makes a store of their files, and `export` writes a store's episodes to such.

A package of your own can add a format: register a `Format` as an entry point of the group "diskbuffer.formats".
"""

from diskbuffer.formats.data import Contents, EpisodeData, Format, Rows, Source, Writer
from diskbuffer.formats.exporting import export
from diskbuffer.formats.importing import import_
from diskbuffer.formats.registry import names as formats

__all__ = ["Contents", "EpisodeData", "Format", "Rows", "Source", "Writer", "export", "formats", "import_"]
