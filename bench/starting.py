"""What a process costs that reads and writes a buffer without PyTorch, beside one that imports it.

    python -m bench.starting --json FILE

Each opens a store, adds 1,000 steps, reads batches and ends; its processor time and its most memory are the system's own counts.
They take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Part, Report, parser, ratio, run

PROGRAM = """
import json, resource, sys
import numpy as np
{first}
import diskbuffer as db

columns = {{"obs": db.Column((8, 8), "uint8"), "action": db.Column((), "int64")}}
with db.ReplayBuffer(sys.argv[1], 10_000, columns=columns) as buffer:
    frame = np.zeros((8, 8), np.uint8)
    for n in range(1000):
        buffer.add(frame, n, 1.0, frame, False, n % 100 == 99)
    for _ in range(10):
        buffer.sample(64, numpy=True)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, "torch" in sys.modules]))
"""


def starting(report: Report, directory: Path) -> None:
    """Start both by turns."""
    found: dict[str, list[Any]] = {"without PyTorch": [], "with PyTorch": []}
    for n in range(3 if report.quick else 10):
        for first, (name, each) in zip(("", "import torch"), found.items(), strict=True):
            command = [sys.executable, "-c", PROGRAM.format(first=first), str(directory / f"{name} {n}")]
            each.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            assert each[-1][2] == bool(first)
    without, beside = ([each[0] for each in every] for every in found.values())
    memory = {name: float(np.median([each[1] for each in every])) / 1e6 for name, every in found.items()}
    for name, each in zip(found, (without, beside), strict=True):
        report.times(f"processor time, {name}", each, 1, "s")
    report.row("processor time, against a process that imports PyTorch", ratio(without, beside), "x", at_most=0.25)
    report.row("memory with PyTorch", memory["with PyTorch"], "MB")
    report.row("memory without PyTorch", memory["without PyTorch"], "MB", at_most=60)


PARTS: dict[str, Part] = {"starting": starting}

if __name__ == "__main__":
    run("starting", PARTS, parser(__doc__))
