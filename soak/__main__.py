"""Put every promise to the test, for two and a half hours, and print one table: ``make soak``.

python -m soak [--scale 0.1] [--seed 0] [--json FILE] [--only crashes damage ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from soak import (
    crashes,
    damage,
    disk_full,
    examples,
    fuzz,
    gathering,
    imports,
    kills,
    learners,
    limiter,
    links,
    mounts,
    noticing,
    ray_nodes,
    readers,
    rings,
    sb3_buffers,
    schedules,
    threads,
    torchrl_and_tianshou,
)
from soak.table import Row


def _one(campaign: Callable[..., Row]) -> Callable[[float, int], Iterator[Row]]:
    def rows(scale: float, seed: int) -> Iterator[Row]:
        yield campaign(scale, seed=seed)

    return rows


CAMPAIGNS: dict[str, Callable[[float, int], Iterable[Row]]] = {
    "kills": _one(kills.main),
    "crashes": _one(crashes.main),
    "noticing": _one(noticing.main),
    "damage": lambda scale, seed: damage.main(round(10_000 * scale), seed),
    "disk_full": lambda scale, seed: disk_full.main(scale, seed=seed),
    "readers": _one(readers.main),
    "gathering": _one(gathering.main),
    "learners": _one(learners.main),
    "limiter": lambda scale, seed: limiter.main(scale, seed),
    "ray_nodes": _one(ray_nodes.main),
    "examples": _one(examples.main),
    "rings": _one(rings.main),
    "schedules": _one(schedules.main),
    "threads": _one(threads.main),
    "sb3_buffers": lambda scale, seed: [sb3_buffers.main(max(1, round(1000 * scale)), seed=seed)],
    "links": lambda scale, seed: [links.main(round(4000 * scale), seed)],
    "mounts": lambda scale, seed: [mounts.main(max(3, round(60 * scale)), seed)],
    "torchrl_and_tianshou": lambda scale, seed: torchrl_and_tianshou.main(round(1000 * scale), seed),
    "imports": lambda scale, seed: [imports.main(round(20_000 * scale), seed)],
    "fuzz": lambda scale, seed: fuzz.main(round(20_000 * scale), round(1_000_000 * scale), seed),
}


def main() -> int:
    """Run the campaigns; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(CAMPAIGNS), default=list(CAMPAIGNS))
    parser.add_argument("--json", type=Path, help="write the table to this file")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        begin = time.monotonic()
        for row in CAMPAIGNS[name](options.scale, options.seed):
            rows.append({"campaign": name, **dataclasses.asdict(row)})
            print(f"{name:<10} {row.what:<60} {row.done:>10,} done {row.broken:>7,} broken", flush=True)
            for note in row.notes:
                print(f"           {note}", flush=True)
        print(f"           {name} took {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    print()
    for found in rows:
        verdict = "BROKEN" if found["broken"] else "ok"
        print(f"{verdict:<7} {found['what']:<64} {found['done']:>10,} done, {found['broken']:,} broken")
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "scale": options.scale, "rows": rows}, indent=2) + "\n")
    return int(any(found["broken"] for found in rows))


if __name__ == "__main__":
    sys.exit(main())
