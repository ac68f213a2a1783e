"""`sample(n)` at every size, of every kind of observation, beside all others, who are in RAM or on disk.

    python -m bench.sizes [--only ale] [--peers SB3] --json FILE

Everything is warm; all hold the same steps, draw some of their own, uniformly, and deliver all columns as torch tensors. Each is
in a process of its own, and torch has as many threads there as are fastest. numpy gathers single frames and nothing more: it is
what a batch costs at the least.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.kinds import KINDS, Kind
from bench.measure import ONLY, Report, parser, ratio
from bench.peers import PEERS
from bench.worker import Worker, in_turns

SIZES = (1, 8, 32, 64, 128, 256, 1024)
SOME = (32, 256)  # for those who are slow
CHECKED = 32  # steps of the batch by which each shows that it holds what it was given
OURS, LEAST = "diskbuffer", "numpy"
RIVALS = {"vectors of 4": ("SB3", "TorchRL, LazyTensorStorage"), "vectors of 376": ("SB3", "TorchRL, LazyTensorStorage")}
TARGETS: dict[str, dict[int, float]] = {  # at least so many times as fast as Stable-Baselines3, or the faster of the rivals
    "ale": {1: 1, 8: 1, 32: 1.5, 64: 2, 128: 2, 256: 2.5, 1024: 2.5},
    "racing": {256: 2},
    "mujoco": {256: 2},
    "vectors of 4": {256: 1},
    "vectors of 376": {256: 1},
}
GATHER: dict[str, dict[int, float]] = {
    "ale": {256: 1.2},
    "racing": {256: 2},
    "mujoco": {256: 2},
}  # at most so many times numpy's time
ZARR_PYTHON: dict[str, dict[int, float]] = {
    "ale": {256: 400}
}  # at least so many times as fast as zarr-python from the same store


def start(report: Report, kind: Kind, directory: Path, seed: int, names: list[str]) -> dict[str, Worker]:
    """Start everybody who can hold such steps, and see that what they return is right.

    Raises
    ------
    RuntimeError
        A batch is not of the steps that were given.
    """
    transitions = kind.transitions(directory, seed)
    workers: dict[str, Worker] = {}
    for name in names:
        peer = PEERS[name]
        why = peer.missing() or peer.unfit(transitions)
        if why:
            report.left_out(name if peer.missing() else f"{name}, {kind.title}", why)
            continue
        own = directory / f"peer-{len(workers)}"
        own.mkdir()
        workers[name] = Worker(peer, transitions, own, seed)
    for name, worker in workers.items():
        wrong = worker.ask("check", CHECKED)
        if wrong:
            raise RuntimeError(f"{name} returned another batch of {kind.title} than was stored: {wrong}")
    return workers


def sizes(report: Report, name: str, directory: Path, seed: int, rounds: int, names: list[str]) -> None:
    """Sample one kind of observation, at every size."""
    kind = KINDS[name]
    workers = start(report, kind, directory, seed, names)
    try:
        for size in SIZES:
            taking_part = {who: worker for who, worker in workers.items() if size in SOME or not PEERS[who].slow}
            for worker in taking_part.values():
                worker.ask("prepare", size)
                worker.ask("tune", size)
            times = in_turns(taking_part, "sample", size, rounds=rounds)
            for who, taken in times.items():
                report.point(f"sample(n), {kind.title}", "steps of a batch", size, who, taken)
            compare(report, name, size, times)
    finally:
        for worker in workers.values():
            worker.close()


def compare(report: Report, name: str, size: int, times: dict[str, list[float]]) -> None:
    """Note how we compare, with whom there is a target, and with the fastest of all."""
    what, ours = f"{KINDS[name].title}, sample({size})", times[OURS]

    def fastest(names: Any) -> str:
        return str(min(names, key=lambda who: float(np.median(times[who]))))

    rivals = [who for who in RIVALS.get(name, ("SB3",)) if who in times]
    if rivals:
        rival = fastest(rivals)
        at_least = TARGETS.get(name, {}).get(size)
        report.row(f"{what}: times as fast as {rival}", ratio(times[rival], ours), "x", at_least=at_least)
    others = [who for who in times if not who.startswith(OURS) and who != LEAST and not PEERS[who].prefetches]
    if set(others) - set(rivals):
        best = fastest(others)
        report.row(f"{what}: times as fast as the fastest, {best}", ratio(times[best], ours), "x")
    if LEAST in times:
        at_most = GATHER.get(name, {}).get(size)
        report.row(f"{what}: time against numpy's gather from RAM", ratio(ours, times[LEAST]), "x", at_most=at_most)
    if "zarr-python" in times and size in ZARR_PYTHON.get(name, {}):
        value, at_least = ratio(times["zarr-python"], ours), ZARR_PYTHON[name][size]
        report.row(f"{what}: times as fast as zarr-python from the same store", value, "x", at_least=at_least)


def main() -> None:
    """Run everything, or some kinds, or some peers."""
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND", help=ONLY)
    options.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="PEER")
    args = options.parse_args()
    report, rounds = Report("sizes", args.seed, quick=args.quick), 5 if args.quick else 11
    names = list(dict.fromkeys([OURS, LEAST, *args.peers]))
    for name in args.only:
        missing = KINDS[name].missing()
        if missing:
            report.left_out(KINDS[name].title, missing)
            continue
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            sizes(report, name, directory, args.seed, rounds, names)
        finally:
            shutil.rmtree(directory)
        report.write(args.json, keep=len(args.only) < len(KINDS))


if __name__ == "__main__":
    main()
