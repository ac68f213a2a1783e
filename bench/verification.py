"""What checksums cost: of chunks, verified at every decode, and of rows, written with every step.

    python -m bench.verification --json FILE

Against this package with the one line, or function, taken out that does it: a copy of it in a process of its own, beside another
with the package as it is; they take turns. Also what else could be done: verifying a segment's files when they are first mapped
(which is done, too), and everything at opening (which `diskbuffer.check` does when asked to).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, frames
from bench.measure import Report, arguments, percent_more, ratio

PACKAGE = Path(db.__file__).parent
VERIFYING = (
    "native/kernels/codec.cpp",
    "    if (crc32c(0, chunk, body) != load<uint32_t>(chunk + body)) return BAD_CHECKSUM;\n",
    "",
)
VOUCHING = (
    "recording/kernel.py",
    "    crc, size, place = row_seed(salt, s, position, word), 0, 0\n",
    "    return\n    crc, size, place = 0, 0, 0\n",
)

SAMPLING = """
import sys, time
import diskbuffer as db
buffer = db.ReplayBuffer(sys.argv[1], mode="r", frame_stack=4, seed=0)
for _ in range(100):
    buffer.sample(256)
for _ in sys.stdin:
    seconds = []
    for _ in range(int(sys.argv[2])):
        begin = time.perf_counter()
        batch = buffer.sample(256)
        seconds.append(time.perf_counter() - begin)
        del batch
    print(sorted(seconds)[len(seconds) // 2], flush=True)
"""

ADDING = """
import sys, tempfile, time
import numpy as np
import diskbuffer as db
from bench.frames import COLUMNS
pixels = np.load(sys.argv[2])
buffer = db.ReplayBuffer(tempfile.mkdtemp(dir=sys.argv[1]) + "/store", capacity=20_000, columns=COLUMNS)
def block():
    for t in range(len(pixels) - 1):
        buffer.add(pixels[t], 1, 1.0, pixels[t + 1], False, False)
block()
for _ in sys.stdin:
    begin = time.perf_counter()
    block()
    print((time.perf_counter() - begin) / (len(pixels) - 1), flush=True)
"""


def without(directory: Path, change: tuple[str, str, str]) -> Path:
    """Copy the package, with a piece of its text replaced; return where it can be imported from."""
    file, old, new = change
    shutil.copytree(PACKAGE, directory / "diskbuffer", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE.parent / "bench", directory / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    text = (directory / "diskbuffer" / file).read_text()
    assert text.count(old) == 1, f"{file} has changed: this benchmark must follow"
    (directory / "diskbuffer" / file).write_text(text.replace(old, new))
    if file.startswith("native/"):
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(PACKAGE.parent / name, directory)
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=directory, check=True)
    return directory


def take_turns(code: str, paths: dict[str, Path], rounds: int, *args: str, named: bool = False) -> dict[str, list[float]]:
    """Run code that answers each line with seconds, in a process for every path to import from; return the answers.

    With `named`, its name is the first argument of each.
    """
    children: dict[str, subprocess.Popen[str]] = {}
    for name, path in paths.items():
        children[name] = subprocess.Popen(
            [sys.executable, "-c", code, *((name,) if named else ()), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=path,
            env={**os.environ, "PYTHONPATH": str(path)},
        )
    answers: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(rounds):
        for name, child in children.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            answers[name].append(float(child.stdout.readline()))
    for child in children.values():
        child.communicate()
    return answers


def fill(path: Path, steps: int) -> None:
    """Fill a store with real frames, and seal it."""
    pixels = frames(steps + 1)
    with db.ReplayBuffer(path, columns=COLUMNS) as buffer:
        buffer.extend(obs=pixels, action=[0] * steps, reward=[0.0] * steps)
        buffer.flush(recompress=True)


def main() -> None:
    """Run, print, and write."""
    options = arguments(__doc__ or "")
    report, rounds, steps = (
        Report("verification", options.seed, quick=options.quick),
        5 if options.quick else 31,
        10_000 if options.quick else 100_000,
    )
    directory = Path(tempfile.mkdtemp())
    try:
        fill(directory / "store", steps)
        here = PACKAGE.parent
        paths = {"verified": here, "not verified": without(directory / "a", VERIFYING)}
        found = take_turns(SAMPLING, paths, rounds, str(directory / "store"), "20" if options.quick else "100")
        for name, seconds in found.items():
            report.times(f"sample(256), stack 4, chunks {name}", seconds)
        cost = percent_more(ratio(found["verified"], found["not verified"]))
        report.row("sample(256): chunks verified at every decode cost", cost, "%", at_most=5)

        paths = {"vouched for": here, "not vouched for": without(directory / "b", VOUCHING)}
        np.save(directory / "frames.npy", frames(4000))
        found = take_turns(ADDING, paths, rounds // 2, str(directory), str(directory / "frames.npy"))
        for name, seconds in found.items():
            report.times(f"add, rows {name}", seconds, 1e6, "us")
        cost = percent_more(ratio(found["vouched for"], found["not vouched for"]))
        report.row("add: checksums of rows cost", cost, "%")

        mapping = []
        with db.ReplayBuffer(directory / "store", mode="r") as buffer:
            store = buffer._store
            for slot in buffer._reader.index.slots(0).tolist():
                begin = time.perf_counter()
                for path in store.layout.schema.recorded:
                    store.verification.verify_file(path, slot)
                mapping.append(time.perf_counter() - begin)
        report.times("verifying a segment's files when first mapped", mapping)
        begin = time.perf_counter()
        assert db.check(directory / "store", progress=False).ok
        report.times(f"verifying everything ({steps:,} steps), as at opening", [time.perf_counter() - begin], 1, "s")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.write(options.json)


if __name__ == "__main__":
    main()
