"""Windows by column, beside whole sequences, the same parts read by hand, and LeRobot's own data set and loader.

    python -m bench.windows --lerobot /path/to/venv/bin/python --json FILE

Two frames of three cameras (96x96x3) and sixteen actions, 64 samples a batch. LeRobot pins other versions of PyTorch and numpy,
so it runs in an environment of its own (``make interop`` makes .venv/interop/lerobot), whose interpreter ``--lerobot`` or the
variable DISKBUFFER_BENCH_LEROBOT names; it reads what we export for it, as PNG and as lossless MP4. Its `DataLoader` has as many
workers as our `loader` has threads, and they take turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.measure import Part, Report, in_turn, parser, ratio, run
from bench.peers import asked
from diskbuffer.formats import export

SCRIPT = Path(__file__).parent / "peers" / "lerobot_process.py"
VARIABLE = "DISKBUFFER_BENCH_LEROBOT"
SIDE, CAMERAS, BATCH, WORKERS, FPS = 96, ("front", "top", "wrist"), 64, 2, 30
EPISODES, STEPS = 40, 200
FRAMES, AHEAD = (-1, 0), range(-1, 15)
OFFSETS = {**{f"obs/{name}": FRAMES for name in CAMERAS}, "action": AHEAD}


def recorded(path: Path, seed: int, episodes: int) -> db.ReplayBuffer:
    """Record episodes of a scene that moves before its cameras."""
    rng = np.random.default_rng(seed)
    columns = {f"obs/{name}": db.Column((SIDE, SIDE, 3), "uint8") for name in CAMERAS}
    columns |= {"obs/state": db.Column((7,)), "action": db.Column((7,))}
    buffer = db.ReplayBuffer(path, columns=columns, seed=seed, threads=WORKERS, metadata={"fps": FPS})
    for _ in range(episodes):
        scene = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
        frames = np.stack([np.roll(scene, n, 1) for n in range(STEPS + 1)])
        obs: dict[str, Any] = {name: np.roll(frames, 8 * n, 2) for n, name in enumerate(CAMERAS)}
        obs["state"] = rng.normal(size=(STEPS + 1, 7))
        buffer.extend(obs, rng.normal(size=(STEPS, 7)), np.zeros(STEPS), terminated=np.arange(STEPS) == STEPS - 1)
    buffer.flush(recompress=True)
    return buffer


def beside_sequences(report: Report, directory: Path) -> None:
    """Compare with sequences as long as the longest of the windows, and with what somebody who has no windows would write."""
    rounds = 30 if report.quick else 300
    with recorded(directory / "store", report.seed, 5 if report.quick else EPISODES) as buffer:
        windows, padded = (db.Windows(OFFSETS, seed=0, padding=padding) for padding in (None, "edge"))
        sequences, rng = db.Slices(len(AHEAD) + 1, seed=0), np.random.default_rng(0)
        starts = np.concatenate([each.start + np.arange(1, each.length - max(AHEAD)) for each in buffer.episodes])
        cameras = [f"obs/{name}" for name in CAMERAS]

        def by_hand() -> Any:
            steps = rng.choice(starts, BATCH) - 1
            return buffer.at(steps, columns=cameras), buffer.at(steps, len(AHEAD), columns=["action"])

        calls: dict[str, Callable[[Any], Any]] = {
            "windows": lambda _: buffer.sample(BATCH, windows),
            "windows, padded": lambda _: buffer.sample(BATCH, padded),
            "parts by hand": lambda _: by_hand(),
            "Slices(17)": lambda _: buffer.sample(BATCH, sequences),
        }
        for call in calls.values():
            for _ in range(10):
                call(None)
        seconds = in_turn(rounds, calls, lambda: None, 3)
    for name, each in seconds.items():
        report.times(name, each)
    # A window reads 6 of the 54 frames of a sequence: nine times as fast is all that decoding leaves.
    report.row("windows, against Slices(17)", ratio(seconds["Slices(17)"], seconds["windows"], 3), "x", at_least=15)
    for name in ("windows", "windows, padded"):
        report.row(
            f"{name}, of the time of the parts by hand", ratio(seconds[name], seconds["parts by hand"], 3), "x", at_most=1.3
        )


def beside_lerobot(report: Report, directory: Path) -> None:
    """Compare with LeRobot's, if it is there."""
    python = report.options.lerobot
    if why := asked.missing(python, "lerobot.datasets.lerobot_dataset", "--lerobot", VARIABLE):
        report.left_out("LeRobot", why)
        return
    rounds, batches = (2, 3) if report.quick else (10, 5)
    recorded(directory / "store", report.seed, 5 if report.quick else EPISODES).close()
    for name, pictures in (("PNG", "image"), ("lossless MP4", "lossless")):
        root = directory / pictures
        export("lerobot", directory / "store", root, pictures=pictures, fps=FPS, allow_loss=["final_obs"], progress=False)
        home = {"HF_HOME": str(directory / "home"), "HF_HUB_OFFLINE": "1"}
        with (
            asked.process(python, SCRIPT, root, BATCH, WORKERS, variables=home) as theirs,
            db.ReplayBuffer(directory / "store", mode="r", threads=WORKERS) as buffer,
        ):
            loader = iter(buffer.loader(BATCH, db.Windows(OFFSETS, padding="edge", seed=0), threads=WORKERS))
            calls: dict[str, Callable[[Any], Any]] = {
                "ours": lambda _: [next(loader) for _ in range(20 * batches)],  # noqa: B023
                "LeRobot": lambda _: theirs(batches),
            }
            for call in calls.values():
                call(None)
            seconds = in_turn(rounds, calls, lambda: None)
        ours, others = [each / (20 * batches) for each in seconds["ours"]], [each / batches for each in seconds["LeRobot"]]
        report.times("our loader, padded", ours)
        report.times(f"LeRobot's, {name}", others)
        report.row(f"samples a second, against LeRobot's with {name}", ratio(others, ours), "x", at_least=10)


PARTS: dict[str, Part] = {"sequences": beside_sequences, "lerobot": beside_lerobot}

if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--lerobot", default=os.environ.get(VARIABLE), metavar="PYTHON", help="an interpreter that has LeRobot")
    run("windows", PARTS, given)
