"""Slices of trajectories through TorchRL's buffers: on `DiskStorage` with TorchRL's sampler and with ours, beside its memory map.

    python -m bench.slices --json FILE

Batches of 1,024 steps in slices of 4, right after an `extend` of 1,000 steps and without, as a user gets them: the whole
`TensorDictReplayBuffer.sample()`. Trajectories are found by ("next", "done"). Rows are 14 bytes, so that what is looked at is in
memory. Each storage is in a process of its own, and they take turns; the memory map and the store of 346 million steps take 6 GB
of disk, and half an hour.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Report, arguments, ratio
from bench.scale import anonymous
from bench.worker import Worker

LENGTH, BATCH, SMALL_BATCH, EXTENDED = 4, 1024, 256, 1000
PART = 100_000  # steps that are written together
MOST = 20  # seconds of calls in a round
THEIRS, OURS = "SliceSampler", "DiskSliceSampler"


class Setting(NamedTuple):
    """Steps, of a storage of some size, in episodes of some length."""

    steps: int
    size: int
    episode: int

    def __str__(self) -> str:
        return f"{self.steps / 1e6:g} M of {self.size / 1e6:g} M, episodes of {self.episode}"


class Storage:
    """A storage that is filled, and buffers that sample from it."""

    def __init__(self, of: str, setting: Setting, directory: Path) -> None:
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import SliceSampler

        from diskbuffer.adapters.torchrl import DiskSliceSampler, DiskStorage

        path = Path(tempfile.mkdtemp(dir=directory))
        make: Any = {
            "memmap": lambda: LazyMemmapStorage(setting.size, scratch_dir=str(path)),
            "disk": lambda: DiskStorage(setting.size, path / "store"),
        }[of]
        storage, self._setting, self._next = make(), setting, 0
        self._buffers = {
            f"{name}, {batch}": TensorDictReplayBuffer(storage=storage, sampler=sampler(slice_len=LENGTH), batch_size=batch)
            for name, sampler in ((THEIRS, SliceSampler), (OURS, DiskSliceSampler))
            for batch in (BATCH, SMALL_BATCH)
        }
        self._any = next(iter(self._buffers.values()))
        while self._next < setting.steps:
            self._extend(min(PART, setting.steps - self._next))

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
        gc.collect()
        return anonymous()


def measure(report: Report, setting: Setting, directory: Path, rounds: int) -> tuple[float, int]:
    """Return the seconds of a sample of ours after an extend, and the memory of its process before any of TorchRL's."""
    with Worker(Storage, "memmap", setting, directory) as memmap:
        memmap.ready()  # one after the other, as both write
        with Worker(Storage, "disk", setting, directory) as disk:
            disk.ask("seconds", f"{OURS}, {BATCH}", 1)
            memory = int(disk.ask("memory"))
            found: dict[tuple[str, bool], list[float]] = {}
            competitors = {"memory map": (memmap, THEIRS), "TorchRL's": (disk, THEIRS), "ours": (disk, OURS)}
            for _ in range(rounds):
                for extended in (True, False):
                    for name, (worker, sampler) in competitors.items():
                        times = worker.ask("seconds", f"{sampler}, {BATCH}", 9, extended)
                        found.setdefault((name, extended), []).append(float(np.median(times)))
            for (name, extended), times in found.items():
                report.times(f"{setting}: {name}{', after an extend' * extended}", times)
            for extended in (True, False):
                value = ratio(found["TorchRL's", extended], found["memory map", extended])
                report.row(f"{setting}: SliceSampler on disk{', after an extend' * extended}", value, "x", at_most=1.1)
            small = [float(np.median(disk.ask("seconds", f"{OURS}, {SMALL_BATCH}", 50, True))) * 1e3 for _ in range(rounds)]
            report.row(f"{setting}: ours, a batch of {SMALL_BATCH}, after an extend", float(np.median(small)), "ms", at_most=3)
    return float(np.median(found["ours", True])), memory


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("slices", args.seed, quick=args.quick)
    settings = [Setting(5_000_000, 6_000_000, 500), Setting(5_000_000, 6_000_000, 10), Setting(5_000_000, 600_000_000, 500)]
    settings += [Setting(20_000_000, 24_000_000, 500), Setting(346_000_000, 600_000_000, 500)]
    if args.quick:
        settings = [setting._replace(steps=setting.steps // 50, size=setting.size // 50) for setting in settings]
    found, directory = {}, Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        for setting in settings:
            found[setting] = measure(report, setting, directory, 3 if args.quick else 5)
            shutil.rmtree(directory)
            directory.mkdir()
    finally:
        shutil.rmtree(directory)
    seconds = [taken for taken, _ in found.values()]
    report.row("ours: the slowest setting against the fastest", max(seconds) / min(seconds), "x", at_most=1.5)
    (few, before), (many, after) = ((setting, found[setting][1]) for setting in (settings[0], settings[-1]))
    report.row("memory that grows, with ours", (after - before) / (many.steps - few.steps), "bytes a step", at_most=1)
    (long, before), (short, after) = ((setting, found[setting][1]) for setting in settings[:2])
    episodes = short.steps / short.episode - long.steps / long.episode
    report.row("memory that grows, with ours", (after - before) / episodes, "bytes an episode", at_most=24)
    report.write(args.json)


if __name__ == "__main__":
    main()
