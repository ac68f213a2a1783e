"""64 sequences of 65 frames as tensors, beside TorchRL's SliceSampler from memory-mapped frames; and beside numpy, from RAM.

    python -m bench.sequences [--only numpy] --json FILE

Real frames in episodes of 500; both hold the same and draw from the same starts, each with its own random numbers. Everything is
in the page cache: TorchRL reads 1.4 GB, not compressed. Both get one loop of calls after the other, and the figure is a loop's
seconds by its calls: with prefetching no single call tells what a batch costs. Needs 5 GB of disk, 4 GB of RAM, and for
torch.compile a C++ compiler.

TorchRL is tried with the settings that matter, and the fastest of this run counts. That is `compile=True`: its sampler reads each
batch to look for flags, and the buffer reads it once more; compiled, the reading whose result nobody uses is dropped. A run finds
it faster with `prefetch` or without, so both are timed. Other settings make no difference beyond the noise.

Half of what remains is that torch indexes bytes one by one. Whoever stores the frames as 64-bit words, and views them as bytes
afterwards, has them more than twice as fast; TorchRL neither does that nor tells of it, so it is shown and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diskbuffer as db
from bench.frames import COLUMNS, EPISODE, Frames, fill, frames
from bench.measure import Part, Report, parser, ratio, run
from bench.peers import PEERS
from bench.transitions import Transitions
from bench.worker import Worker, in_turns, started

SEQUENCES, LENGTH = 64, 64  # steps; a frame more
LENGTHS = (4, 16, LENGTH, 128)
WORDS = "cached, compiled, frames as 64-bit words"
EACH = 32  # calls in a loop
PREFETCH = 2


def fill_torchrl(path: Path, pixels: Any) -> Any:
    """Put the same into a memory-mapped storage: single frames, and flat columns beside them, the last frame's too."""
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

    storage = LazyMemmapStorage(len(pixels), scratch_dir=str(path))
    buffer = TensorDictReplayBuffer(storage=storage)
    for first in range(0, len(pixels), 20 * EPISODE):
        part = torch.from_numpy(pixels[first : first + 20 * EPISODE])
        row = torch.arange(first, first + len(part))
        done = (row % EPISODE == EPISODE - 1)[:, None]
        columns = {"action": row % EPISODE % 6, "reward": torch.ones(len(row)), "done": done, "episode": row // EPISODE}
        buffer.extend(TensorDict({"pixels": part, **columns}, [len(part)]))
    return storage


def torchrl(storage: Any, compile: bool, prefetch: int | None) -> Any:
    """Return a buffer that samples from a storage."""
    from torchrl.data import TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SliceSampler

    keys: dict[str, Any] = {"traj_key": "episode", "truncated_key": None, "init_key": None}
    sampler = SliceSampler(num_slices=SEQUENCES, cache_values=True, compile=compile, **keys)
    return TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=SEQUENCES * (LENGTH + 1), prefetch=prefetch)


def agree(pixels: Frames, ours: dict[str, Any], theirs: Any) -> None:
    """Make sure that both return whole sequences of the frames."""
    rows = ours["steps"].numpy()[:, :1] + np.arange(LENGTH + 1)
    assert (ours["obs"].numpy() == pixels[rows[:, :-1]]).all(), "not the frames that were stored"
    rows = theirs["index"].numpy().reshape(SEQUENCES, LENGTH + 1)
    assert (np.diff(rows) == 1).all(), "not whole sequences"
    found = theirs["pixels"].view(torch.uint8).reshape(*rows.shape, 84, 84)
    assert (found.numpy() == pixels[rows]).all(), "not the frames that were stored"


def in_loops(rounds: int, competitors: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Time loops of the competitors in turn; return seconds a call."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, call in competitors.items():
            time.sleep(0.2)  # until whoever prefetches has done so, and is idle
            for _ in range(2 * PREFETCH + 2):  # what was prefetched meanwhile is gone
                call()
            begin = time.perf_counter()
            for _ in range(EACH):
                call()
            seconds[name].append((time.perf_counter() - begin) / EACH)
    return seconds


def beside_torchrl(report: Report, directory: Path) -> None:
    """Compare with TorchRL's settings."""
    n, rounds = (12_000, 3) if report.quick else (200_000, 15)
    pixels = frames(n)
    torch.manual_seed(report.seed)
    as_bytes = fill_torchrl(directory / "bytes", pixels)
    as_words = fill_torchrl(directory / "words", pixels.reshape(n, -1).view(np.int64))
    settings = {
        name: torchrl(as_words if name == WORDS else as_bytes, "compiled" in name, PREFETCH if "prefetch" in name else None)
        for name in (
            "cached",
            f"cached, prefetch={PREFETCH}",
            "cached, compiled",
            f"cached, compiled, prefetch={PREFETCH}",
            WORDS,
        )
    }
    with db.ReplayBuffer(directory / "store", 2 * n, columns=COLUMNS, seed=report.seed) as buffer:
        fill(buffer, pixels, n // EPISODE * (EPISODE - 1))
        sampler = db.Slices(LENGTH, report.seed)
        batches = iter(buffer.loader(SEQUENCES, db.Slices(LENGTH, report.seed + 1)))
        competitors: dict[str, Callable[[], Any]] = {
            "diskbuffer: sample": lambda: buffer.sample(SEQUENCES, sampler),
            "diskbuffer: loader": lambda: next(batches),
            **{name: theirs.sample for name, theirs in settings.items()},
        }
        for theirs in settings.values():
            for _ in range(3):
                agree(pixels, buffer.sample(SEQUENCES, sampler), theirs.sample())
        del pixels
        times = in_loops(rounds, competitors)
        batches.close()  # type: ignore[attr-defined]
    for theirs in settings.values():
        theirs.shutdown()
    for name, seconds in times.items():
        report.times(f"TorchRL: {name}" if name in settings else name, seconds)
    fastest = min((name for name in settings if name != WORDS), key=lambda name: float(np.median(times[name])))
    value = ratio(times[fastest], times["diskbuffer: sample"])
    report.row(f"times as fast as TorchRL ({fastest})", value, "x", at_least=3)


def beside_numpy(report: Report, directory: Path) -> None:
    """Compare with gathering the frames from RAM, for shorter and longer sequences, each in a process of its own."""
    transitions = Transitions.save(frames(12_001), directory / "frames.npy")
    workers = {}
    for name in ("diskbuffer", "numpy"):
        (own := directory / name).mkdir()
        workers[name] = Worker(PEERS[name], transitions, own, report.seed)
    with started(workers):
        for length in LENGTHS:
            times = in_turns(workers, "slices", SEQUENCES, length, rounds=5 if report.quick else 15)
            what, value = f"{SEQUENCES} sequences of {length + 1} frames", ratio(times["diskbuffer"], times["numpy"])
            report.row(f"{what}: time against numpy's gather from RAM", value, "x", at_most=0.7 if length == LENGTH else None)


PARTS: dict[str, Part] = {"torchrl": beside_torchrl, "numpy": beside_numpy}

if __name__ == "__main__":
    run("sequences", PARTS, parser(__doc__))
