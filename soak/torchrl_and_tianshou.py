"""Random buffers of TorchRL and Tianshou beside the libraries' own.

Spaces, dtypes, environments, endings, options, samplers and writers are random; so is what is called, with closings, openings and
pickles in between. With the same seeds every batch must be the same, bit for bit, but for what docs/adapters.md names.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator

from soak.table import Row, seeded
from soak.workers import failure

LIBRARIES = ("torchrl", "tianshou")


def run(library: str, seed: int, calls: int = 40) -> str:
    """Compare one pair of buffers; return how they differ, or nothing."""
    module = importlib.import_module(f"soak.{library}_buffers")  # which loads the library
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own
        return failure(lambda path: module.compare(path, seed, calls))


def main(scale: float = 1.0, *, seed: int = 0) -> Iterator[Row]:
    """Compare 1,000 pairs of buffers of each library, times `scale`."""
    for library in LIBRARIES:
        runs = ((library, seed * 1_000_000 + n) for n in range(round(1000 * scale)))
        yield seeded(f"{library}: random buffers beside its own", "soak.torchrl_and_tianshou", runs, timeout=300)
