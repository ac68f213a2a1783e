"""Slices of trajectories through TorchRL's buffers: on `DiskStorage` with TorchRL's sampler and with ours, beside its memory map.

    python -m bench.slices --json FILE

Batches of 1,024 steps in slices of 4, right after an `extend` of 1,000 steps and without, as a user gets them: the whole
`TensorDictReplayBuffer.sample()`. TorchRL's finds trajectories by ("next", "done"), ours by the store's index. Rows are 14 bytes,
so that what is looked at is in memory. Each storage is in a process of its own, and they take turns, the smallest of ours, too,
to which the larger are compared. The memory map and the store of 346 million steps take 6 GB of disk each; all of it takes a
quarter of an hour.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Report, parser, ratio, run, settled
from bench.worker import Worker

LENGTH, BATCH, SMALL_BATCH, EXTENDED = 4, 1024, 256, 1000
PART = 100_000  # steps that are written together
MOST = 20  # seconds of calls in a round
THEIRS, OURS = "SliceSampler", "DiskSampler(Slices(4))"


class Setting(NamedTuple):
    """Steps, of a storage of some size, in episodes of some length."""

    steps: int
    size: int
    episode: int

    def __str__(self) -> str:
        return f"{self.steps / 1e6:g} M of {self.size / 1e6:g} M, episodes of {self.episode}"


SETTINGS = [
    Setting(5_000_000, 6_000_000, 500),
    Setting(5_000_000, 6_000_000, 10),
    Setting(5_000_000, 600_000_000, 500),
    Setting(20_000_000, 24_000_000, 500),
    Setting(346_000_000, 600_000_000, 500),
]


class Storage:
    """A storage that is filled, and buffers that sample from it."""

    def __init__(self, of: str, setting: Setting, directory: Path) -> None:
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import SliceSampler

        import diskbuffer as db
        from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage

        path = Path(tempfile.mkdtemp(dir=directory))
        make: Any = {
            "memmap": lambda: LazyMemmapStorage(setting.size, scratch_dir=str(path)),
            "disk": lambda: DiskStorage(setting.size, path / "store"),
        }[of]
        storage, self._setting, self._next = make(), setting, 0
        samplers: dict[str, Any] = {THEIRS: lambda: SliceSampler(slice_len=LENGTH)}
        if of == "disk":
            samplers[OURS] = lambda: DiskSampler(db.Slices(LENGTH))
        self._buffers = {
            f"{name}, {batch}": TensorDictReplayBuffer(storage=storage, sampler=sampler(), batch_size=batch)
            for name, sampler in samplers.items()
            for batch in (BATCH, SMALL_BATCH)
        }
        self._any = next(iter(self._buffers.values()))
        while self._next < setting.steps:
            self._extend(min(PART, setting.steps - self._next))
        if of == "disk":
            storage.stored.buffer.flush()
        os.sync()

    def _extend(self, n: int) -> None:
        import torch
        from tensordict import TensorDict

        step = torch.arange(self._next, self._next + n)
        now, later = ((at % 251).to(torch.uint8)[:, None].expand(n, 4).contiguous() for at in (step, step + 1))
        done = (step % self._setting.episode == self._setting.episode - 1)[:, None]
        ends = {"done": done, "terminated": done.clone(), "reward": torch.zeros(n, 1)}
        self._any.extend(TensorDict({"obs": now, "next": TensorDict({"obs": later, **ends}, [n])}, [n]))
        self._next += n

    def seconds(self, name: str, calls: int, extended: bool = False) -> list[float]:
        """Time samples, each right after something was written, or none."""
        buffer, taken = self._buffers[name], list[float]()
        buffer.sample()
        while len(taken) < calls and sum(taken) < MOST:
            if extended:
                self._extend(EXTENDED)
            begin = time.perf_counter()
            buffer.sample()
            taken.append(time.perf_counter() - begin)
        return taken

    def memory(self) -> int:
        """Return the bytes of RAM that the process has to itself."""
        return settled()


def measure(report: Report, setting: Setting, first: Worker, directory: Path, rounds: int) -> int:
    """Compare all; return the memory of the process of ours, before any of TorchRL's samplers."""
    with Worker(Storage, "memmap", setting, directory) as memmap:
        memmap.ready()  # one after the other, as both write
        with Worker(Storage, "disk", setting, directory) as disk:
            disk.ask("seconds", f"{OURS}, {BATCH}", 1)
            memory = int(disk.ask("memory"))
            found: dict[tuple[str, bool], list[float]] = {}
            ours = {"ours": (disk, OURS), "ours, the smallest": (first, OURS)}
            theirs = {
                "memory map": (memmap, THEIRS),
                "TorchRL's": (disk, THEIRS),
            }
            # Theirs after ours, as a batch takes gigabytes of memory, and so pages of files.
            for competitors, extended in itertools.product((ours, theirs), (True, False)):
                for _, (name, (worker, sampler)) in itertools.product(range(rounds), competitors.items()):
                    times = worker.ask("seconds", f"{sampler}, {BATCH}", 9, extended)
                    found.setdefault((name, extended), []).append(float(np.median(times)))
            for (name, extended), times in found.items():
                report.times(f"{setting}: {name}{', after an extend' * extended}", times)
            for extended in (True, False):
                after = ", after an extend" * extended
                value = ratio(found["TorchRL's", extended], found["memory map", extended])
                report.row(f"{setting}: SliceSampler on disk, of the memory map's time{after}", value, "x", at_most=1.1)
                value = ratio(found["ours", extended], found["ours, the smallest", extended])
                report.row(f"{setting}: ours against the smallest{after}", value, "x", at_most=1.5)
            small = [float(np.median(disk.ask("seconds", f"{OURS}, {SMALL_BATCH}", 50, True))) * 1e3 for _ in range(rounds)]
            report.row(f"{setting}: ours, a batch of {SMALL_BATCH}, after an extend", float(np.median(small)), "ms", at_most=3)
    return memory


def compare(report: Report, place: Path) -> None:
    """Measure all settings, or some."""
    settings = SETTINGS
    if report.quick:
        settings = [setting._replace(steps=setting.steps // 50, size=setting.size // 50) for setting in settings]
    memory: dict[int, int] = {}
    (kept := place / "first").mkdir()
    with Worker(Storage, "disk", settings[0], kept) as first:
        first.ready()
        for number in report.options.only:
            (directory := place / "others").mkdir()
            memory[number] = measure(report, settings[number], first, directory, 3 if report.quick else 5)
            shutil.rmtree(directory)
    for (few, many), unit, at_most in (((0, 4), "a step", 1), ((0, 1), "an episode", 24)):
        if few in memory and many in memory:
            counts = [settings[n].steps // (1 if unit == "a step" else settings[n].episode) for n in (few, many)]
            value = (memory[many] - memory[few]) / (counts[1] - counts[0])
            report.row(f"ours: memory that grows with {unit}", value, "bytes", at_most=at_most)


if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--only", type=int, nargs="+", default=range(len(SETTINGS)), help="which of the five")
    run("slices", {"all": compare}, given)
