"""Replay buffers on disk: single frames, compressed, in a Zarr store, sampled faster than from RAM.

The buffer itself is imported when it is first used, for PyTorch takes a second.
"""

import importlib
import os
import typing

if os.name != "posix":
    raise ImportError("diskbuffer runs on Linux and macOS only; on Windows, use it inside of WSL 2, on WSL's own disk")

from diskbuffer import errors
from diskbuffer.errors import CorruptionError, DiskBufferError, InputError, LockedError, NotFoundError, TryAgainError
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.schema.schema import Column
from diskbuffer.schema.transforms import Greyscale, Resize
from diskbuffer.version import __version__

if typing.TYPE_CHECKING:
    from diskbuffer.buffer import ReplayBuffer
    from diskbuffer.columns.column_statistics import ColumnStatistics
    from diskbuffer.inspect.environment_check import check_env
    from diskbuffer.mixture import Mixture
    from diskbuffer.opening.checking import check
    from diskbuffer.opening.closed_marks import marks, remove_mark
    from diskbuffer.samplers import Hindsight, Prioritized, Sampler, Slices, Uniform, Windows
    from diskbuffer.schema.wrappers import restore_wrapper_arrays, wrapper_arrays
    from diskbuffer.store.checking.report import Problem, Report
    from diskbuffer.writers.removing import remove_writer

__all__ = [
    "Column",
    "ColumnStatistics",
    "CorruptionError",
    "DiskBufferError",
    "Greyscale",
    "Hindsight",
    "InputError",
    "LockedError",
    "Mixture",
    "NotFoundError",
    "Prioritized",
    "Problem",
    "ReplayBuffer",
    "Report",
    "Resize",
    "SampleToInsertRatio",
    "Sampler",
    "Slices",
    "TryAgainError",
    "Uniform",
    "Windows",
    "__version__",
    "check",
    "check_env",
    "errors",
    "marks",
    "remove_mark",
    "remove_writer",
    "restore_wrapper_arrays",
    "wrapper_arrays",
]

_SAMPLERS = ("Hindsight", "Prioritized", "Sampler", "Slices", "Uniform", "Windows")
_LATER = {"ReplayBuffer": "diskbuffer.buffer", "Mixture": "diskbuffer.mixture"} | dict.fromkeys(_SAMPLERS, "diskbuffer.samplers")
_LATER |= {"check": "diskbuffer.opening.checking"} | dict.fromkeys(("Problem", "Report"), "diskbuffer.store.checking.report")
_LATER |= dict.fromkeys(("marks", "remove_mark"), "diskbuffer.opening.closed_marks")
_LATER |= {"ColumnStatistics": "diskbuffer.columns.column_statistics"}
_LATER |= {"check_env": "diskbuffer.inspect.environment_check", "remove_writer": "diskbuffer.writers.removing"}
_LATER |= dict.fromkeys(("restore_wrapper_arrays", "wrapper_arrays"), "diskbuffer.schema.wrappers")


def __getattr__(name: str) -> typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module 'diskbuffer' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
