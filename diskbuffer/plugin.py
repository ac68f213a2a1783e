"""What adapters, formats and commands use of the core, beside what `diskbuffer` and `diskbuffer.errors` have.

Whoever writes a format, a command or an adapter elsewhere imports from here, too. A package adds a `Format` as an entry point of
the group "diskbuffer.formats", and a command as one of "diskbuffer.commands": a function whose parameters are what the command
takes, whose docstring is its help, and which returns the exit code.
"""

from __future__ import annotations

import importlib
import typing

from diskbuffer.endings import CUT_OFF, RUNNING
from diskbuffer.environment import describe as describe_spaces
from diskbuffer.environment import is_sane
from diskbuffer.environment import numbers as as_numbers
from diskbuffer.episode_data import Contents, EpisodeData, Format, Rows, Source, Writer
from diskbuffer.episode_table import EpisodeTable
from diskbuffer.integers import integer, integer_or_none, shown
from diskbuffer.nested import leaves, one_of, put, put_argument, value_at
from diskbuffer.paths import local_path
from diskbuffer.reader import Reader
from diskbuffer.reading.episode_columns import EpisodeColumns, EpisodeFields
from diskbuffer.runtime.packages import require
from diskbuffer.runtime.progress import bar as progress_bar
from diskbuffer.schema import (
    BUILT_IN,
    FLAGS,
    KEPT,
    RESERVED_NAMES,
    TAG,
    Schema,
    escape_key,
    is_observation,
    unescape_key,
)
from diskbuffer.shown import Picture, Video
from diskbuffer.store.building import is_there as is_store
from diskbuffer.store_info import StoreInfo, StoreUsage, read_info, writers_of
from diskbuffer.wording import counted, either, for_command_line, format_option
from diskbuffer.wording import size as human_size

if typing.TYPE_CHECKING:
    from diskbuffer.appender import Appender
    from diskbuffer.columns.map_steps import arrays_of, names_of
    from diskbuffer.inputs import as_array, step_names
    from diskbuffer.native.sampling import power
    from diskbuffer.native.transforms import interleave
    from diskbuffer.reading.batches.base import Batch
    from diskbuffer.reading.delivery import Transform
    from diskbuffer.reading.episode_reader import EpisodeReader
    from diskbuffer.shared_store import SharedStore

__all__ = [
    "BUILT_IN",
    "CUT_OFF",
    "FLAGS",
    "KEPT",
    "RESERVED_NAMES",
    "RUNNING",
    "TAG",
    "Appender",
    "Batch",
    "Contents",
    "EpisodeColumns",
    "EpisodeData",
    "EpisodeFields",
    "EpisodeReader",
    "EpisodeTable",
    "Format",
    "Picture",
    "Reader",
    "Rows",
    "Schema",
    "SharedStore",
    "Source",
    "StoreInfo",
    "StoreUsage",
    "Transform",
    "Video",
    "Writer",
    "arrays_of",
    "as_array",
    "as_numbers",
    "counted",
    "describe_spaces",
    "either",
    "escape_key",
    "for_command_line",
    "format_option",
    "human_size",
    "integer",
    "integer_or_none",
    "interleave",
    "is_observation",
    "is_sane",
    "is_store",
    "leaves",
    "local_path",
    "names_of",
    "one_of",
    "power",
    "progress_bar",
    "put",
    "put_argument",
    "read_info",
    "require",
    "shown",
    "step_names",
    "unescape_key",
    "value_at",
    "writers_of",
]

_LATER = {
    "Appender": "diskbuffer.appender",
    "interleave": "diskbuffer.native.transforms",
    "power": "diskbuffer.native.sampling",
    "SharedStore": "diskbuffer.shared_store",
    "EpisodeReader": "diskbuffer.reading.episode_reader",
    "Batch": "diskbuffer.reading.batches.base",
    "Transform": "diskbuffer.reading.delivery",
    "step_names": "diskbuffer.inputs",
    "as_array": "diskbuffer.inputs",
    "arrays_of": "diskbuffer.columns.map_steps",
    "names_of": "diskbuffer.columns.map_steps",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module 'diskbuffer.plugin' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
