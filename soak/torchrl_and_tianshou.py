"""Random buffers of TorchRL and Tianshou beside the libraries' own: ``python -m soak.torchrl_and_tianshou --each 1000 --seed 0``.

Spaces, dtypes, environments, endings, options, samplers and writers are random; so is what is called, with closings, openings and
pickles in between. With the same seeds every batch must be the same, bit for bit, but for what docs/adapters.md names.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import multiprocessing
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from soak.table import Row

LIBRARIES = ("torchrl", "tianshou")
SHOWN = 20


def run(library: str, seed: int, calls: int = 40) -> str:
    """Compare one pair of buffers; return how they differ, or nothing."""
    module = importlib.import_module(f"soak.{library}_buffers")  # which loads the library
    with tempfile.TemporaryDirectory(prefix="diskbuffer-libraries-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own
        try:
            module.compare(Path(directory), seed, calls)
        except Exception:  # noqa: BLE001  which is what is looked for
            return traceback.format_exc(limit=-4)
    return ""


def campaign(library: str, each: int, seed: int = 0, processes: int = 2) -> Row:
    """Compare so many pairs of buffers of a library."""
    begin, broken = time.monotonic(), list[str]()
    seeds = range(seed * 1_000_000, seed * 1_000_000 + each)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for number, found in zip(seeds, pool.map(run, [library] * each, seeds, chunksize=10), strict=True):
            if found:
                broken.append(f"{library}, seed {number}: {found}")
    took = f"{(time.monotonic() - begin) / max(each, 1):.2f} seconds each"
    return Row(f"{library}: random buffers beside its own", each, len(broken), [took, *broken[:SHOWN]])


def main(each: int = 1000, seed: int = 0) -> list[Row]:
    """Compare so many pairs of buffers of each library."""
    return [campaign(library, each, seed) for library in LIBRARIES]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare random buffers with the libraries' own.")
    parser.add_argument("--each", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for row in main(options.each, options.seed):
        print(row)
