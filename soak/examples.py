"""Every example, with its defaults, to its end.

Each runs in a process of its own, in a directory of its own, as its user would start it; those that have several algorithms, once
with each. One is broken that ends with an error, or prints nothing. It takes some hours on two cores, most of it of training.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from soak.table import Row

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_HOURS = 6  # after which one is taken to hang


def commands() -> list[list[str]]:
    """Return how to start each example: once, or with each of the algorithms that its source names."""
    found = []
    for file in sorted(EXAMPLES.glob("*.py")):
        choices = re.search(r'"--algorithm", choices=\[(.*?)\]', file.read_text())
        algorithms = re.findall(r'"(\w+)"', choices[1]) if choices else []
        found += [[str(file), "--algorithm", name] for name in algorithms] or [[str(file)]]
    return found


def run(command: list[str], directory: Path) -> str | None:
    """Run one in a directory; return what went wrong, None if nothing did."""
    try:
        ran = subprocess.run(
            [sys.executable, *command], cwd=directory, capture_output=True, text=True, timeout=_HOURS * 3600, check=False
        )
    except subprocess.TimeoutExpired:
        return f"ran for more than {_HOURS} hours"
    if ran.returncode:
        return f"ended with {ran.returncode}: {ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else 'no message'}"
    return None if ran.stdout.strip() else "printed nothing"


def main(scale: float = 1.0, *, seed: int = 0) -> Row:  # noqa: ARG001
    """Run all of them; with a small `scale` only the first so many, as each is what it is."""
    every = commands()
    some = every if scale >= 1 else every[: max(1, round(len(every) * scale))]
    row = Row("examples to their end, with their defaults", 0, 0)
    for command in some:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="soak-") as place:
            wrong = run(command, Path(place))
        name = " ".join([Path(command[0]).name, *command[1:]])
        row.done += 1
        row.broken += wrong is not None
        row.notes.append(f"{name}: {wrong or 'ok'}, {(time.monotonic() - begin) / 60:.1f} minutes")
    return row
