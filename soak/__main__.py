"""Put every promise to the test, for two and a half hours, and print one table: ``make soak``.

python -m soak [--scale 0.1] [--seed 0] [--json FILE] [--only crashes damage ...]

A case that a campaign tells of as ``{...}`` is done again, in this process, by ``--only CAMPAIGN --again '{...}'``.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path

from soak.table import Row
from soak.workers import child_of, scratch
from tests.by_hand import flush_by_hand

CAMPAIGNS = (
    *(
        "kills",
        "crashes",
        "noticing",
        "damage",
        "disk_full",
        "readers",
        "taking",
        "multi_writer",
        "learners",
        "limiter",
        "ray_cluster",
    ),
    *(
        "examples",
        "rings",
        "schedules",
        "threads",
        "loops",
        "sb3_buffers",
        "links",
        "mounts",
        "torchrl_and_tianshou",
        "imports",
        "fuzz",
    ),
)


def main() -> int:
    """Run the campaigns; return 1 if a promise was broken, or a campaign had no case."""
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=CAMPAIGNS)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--again", type=ast.literal_eval, metavar="CASE", help="do one case of the campaign that --only names")
    options = parser.parse_args()
    flush_by_hand()
    if options.again:
        module = importlib.import_module(f"soak.{options.only[0]}")
        with scratch() as base:
            (directory := base / "worker0").mkdir()
            getattr(module, "warm", lambda: None)()
            print(child_of(module, directory)(options.again))
        return 0
    rows = []
    for name in options.only:
        begin = time.monotonic()
        found = importlib.import_module(f"soak.{name}").main(options.scale, seed=options.seed)
        for row in [found] if isinstance(found, Row) else found:
            rows.append({"campaign": name, **dataclasses.asdict(row)})
            print(f"{name:<10} {row.what:<60} {row.done:>10,} done {row.broken:>7,} broken", flush=True)
            for note in row.notes:
                print(f"           {note}", flush=True)
        print(f"           {name} took {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    print()
    for one in rows:
        verdict = "BROKEN" if one["broken"] else "ok" if one["done"] else "NOTHING"
        print(f"{verdict:<7} {one['what']:<64} {one['done']:>10,} done, {one['broken']:,} broken")
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "scale": options.scale, "rows": rows}, indent=2) + "\n")
    return int(any(one["broken"] or not one["done"] for one in rows))


if __name__ == "__main__":
    sys.exit(main())
