"""What adapters, formats and commands use of the core, beside what `diskbuffer` and `diskbuffer.errors` have.

Whoever writes a format or an adapter elsewhere imports from here, too.
"""

from __future__ import annotations

from diskbuffer.endings import CUT_OFF, ENDINGS, FLAGGED, RUNNING
from diskbuffer.episode_table import EpisodeTable
from diskbuffer.integers import integer, integer_or_none
from diskbuffer.paths import local_path
from diskbuffer.reader import Reader
from diskbuffer.schema import BUILT_IN, CHECKSUM, KEPT, TAG, Column, is_obs
from diskbuffer.store.building import is_there as is_store
from diskbuffer.store_info import StoreInfo, StoreUsage, read_info, writers_of
from diskbuffer.wording import counted, either

__all__ = [
    "BUILT_IN",
    "CHECKSUM",
    "CUT_OFF",
    "ENDINGS",
    "FLAGGED",
    "KEPT",
    "RUNNING",
    "TAG",
    "Column",
    "EpisodeTable",
    "Reader",
    "StoreInfo",
    "StoreUsage",
    "counted",
    "either",
    "integer",
    "integer_or_none",
    "is_obs",
    "is_store",
    "local_path",
    "read_info",
    "writers_of",
]
