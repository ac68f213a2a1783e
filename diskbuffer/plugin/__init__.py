"""What adapters, formats and commands use of the core, beside what `diskbuffer` and `diskbuffer.errors` have.

Whoever writes a format, a command or an adapter elsewhere imports from here, too. A package adds a `Format` as an entry point of
the group "diskbuffer.formats", and a command as one of "diskbuffer.commands": a function whose parameters are what the command
takes, whose docstring is its help, and which returns the exit code.
"""

from __future__ import annotations

import importlib
import typing

from diskbuffer.arguments.integers import integer, integer_or_none, shown
from diskbuffer.arguments.paths import local_path
from diskbuffer.arguments.shown import Picture, Video
from diskbuffer.arguments.wording import counted, either, for_command_line, format_option, printable
from diskbuffer.arguments.wording import size as human_size
from diskbuffer.episode_table.episode_data import Contents, EpisodeData, Format, Rows, Source, Writer
from diskbuffer.episode_table.table import EpisodeTable
from diskbuffer.index.named_values import joint_kind
from diskbuffer.opening.store_info import StoreInfo, StoreUsage, read_info, writers_of
from diskbuffer.reader import Reader
from diskbuffer.reading.episode_columns import EpisodeColumns, EpisodeFields
from diskbuffer.runtime.packages import require
from diskbuffer.runtime.progress import bar as progress_bar
from diskbuffer.runtime.threads import do_all
from diskbuffer.schema.endings import CUT_OFF, RUNNING
from diskbuffer.schema.environment import describe as describe_spaces
from diskbuffer.schema.environment import is_sane
from diskbuffer.schema.environment import numbers as as_numbers
from diskbuffer.schema.nested import flatten, one_of
from diskbuffer.schema.pictures import PictureKind, picture_kind
from diskbuffer.schema.schema import (
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
from diskbuffer.store.system.files import boot_id
from diskbuffer.writers.description import is_readable as is_store

if typing.TYPE_CHECKING:
    from diskbuffer.arguments.inputs import as_array, device_of, seconds_of, step_ids
    from diskbuffer.columns.giving_values import values_that_fit
    from diskbuffer.native.sampling import power
    from diskbuffer.native.transforms import interleave
    from diskbuffer.options import refuse_unknown, spaces_of
    from diskbuffer.plugin.appender import Appender
    from diskbuffer.plugin.shared_store import SharedStore
    from diskbuffer.reading.batches.base import Batch
    from diskbuffer.reading.delivery import Transform
    from diskbuffer.reading.devices import copied_to
    from diskbuffer.reading.episode_reader import EpisodeReader
    from diskbuffer.reading.wanted import transform_of
    from diskbuffer.samplers.prioritized import priorities_of
    from diskbuffer.writers.places import refuse_inside

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
    "PictureKind",
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
    "as_array",
    "as_numbers",
    "boot_id",
    "copied_to",
    "counted",
    "describe_spaces",
    "device_of",
    "do_all",
    "either",
    "escape_key",
    "flatten",
    "for_command_line",
    "format_option",
    "human_size",
    "integer",
    "integer_or_none",
    "interleave",
    "is_observation",
    "is_sane",
    "is_store",
    "joint_kind",
    "local_path",
    "one_of",
    "picture_kind",
    "power",
    "printable",
    "priorities_of",
    "progress_bar",
    "read_info",
    "refuse_inside",
    "refuse_unknown",
    "require",
    "seconds_of",
    "shown",
    "spaces_of",
    "step_ids",
    "transform_of",
    "unescape_key",
    "values_that_fit",
    "writers_of",
]

_LATER = {
    "refuse_inside": "diskbuffer.writers.places",
    "Appender": "diskbuffer.plugin.appender",
    "interleave": "diskbuffer.native.transforms",
    "power": "diskbuffer.native.sampling",
    "SharedStore": "diskbuffer.plugin.shared_store",
    "EpisodeReader": "diskbuffer.reading.episode_reader",
    "Batch": "diskbuffer.reading.batches.base",
    "Transform": "diskbuffer.reading.delivery",
    "copied_to": "diskbuffer.reading.devices",
    "values_that_fit": "diskbuffer.columns.giving_values",
    "transform_of": "diskbuffer.reading.wanted",
    "device_of": "diskbuffer.arguments.inputs",
    "priorities_of": "diskbuffer.samplers.prioritized",
    "refuse_unknown": "diskbuffer.options",
    "spaces_of": "diskbuffer.options",
    "seconds_of": "diskbuffer.arguments.inputs",
    "step_ids": "diskbuffer.arguments.inputs",
    "as_array": "diskbuffer.arguments.inputs",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module 'diskbuffer.plugin' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
