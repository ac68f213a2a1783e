"""A function over a million real frames, its values written back: how much memory that takes.

    python -m bench.passes --json FILE

In a process of its own, which opens the store, calls `map` with a small convolution over stacks of four frames, and computes
returns and advantages from what it wrote. Anonymous memory is what counts: pages of the store are the kernel's to drop.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, frames
from bench.measure import Report, arguments

ROWS = 500  # frames of an episode, one more than it has steps

CHILD = """
import json, sys, threading, time
import torch
import diskbuffer as db

def anonymous():
    return sum(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) / 1024

def watch():
    while not done:
        found.append(anonymous())
        time.sleep(0.01)

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 8, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(400, 2))

@torch.no_grad()
def function(batch):
    both = network(batch["obs"].float().div_(255))
    return both[:, 0], both[:, 1]

with torch.no_grad():
    network(torch.zeros(512, 4, 84, 84))
before, found, done = anonymous(), [], False
threading.Thread(target=watch, daemon=True).start()
begin = time.perf_counter()
with db.ReplayBuffer(sys.argv[1], frame_stack=4) as buffer:
    steps = buffer.columns.map(function, 256, ("value", "next_value"), progress=False)
    mapped = time.perf_counter()
    assert buffer.returns_and_advantages() == steps
    end = time.perf_counter()
    done = True
print(json.dumps([max(found) - before, steps, mapped - begin, end - mapped]))
"""


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("passes", args.seed, quick=args.quick)
    n = 50_000 if args.quick else 1_000_000
    pixels = frames(min(n, 50_000))
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        with db.ReplayBuffer(directory / "store", columns=COLUMNS) as buffer:
            action, reward = np.arange(ROWS - 1) % 6, np.ones(ROWS - 1, np.float32)
            terminated = np.arange(ROWS - 1) == ROWS - 2
            while len(buffer) < n:
                for first in range(0, len(pixels), ROWS):
                    buffer.extend(obs=pixels[first : first + ROWS], action=action, reward=reward, terminated=terminated)
        printed = subprocess.check_output([sys.executable, "-c", CHILD, str(directory / "store")], text=True)
        memory, steps, mapped, computed = json.loads(printed)
    finally:
        shutil.rmtree(directory)
    print(f"  map of {steps:,} steps: {mapped:.0f} s; returns and advantages: {computed:.2f} s")
    report.row(f"map over {steps:,} steps: memory", memory, "MB", at_most=200)
    report.row(f"returns and advantages of {steps:,} steps", steps / computed / 1e6, "M/s")
    report.write(args.json)


if __name__ == "__main__":
    main()
