"""Pictures that lose something on the disk (`codec="webp:90"`), beside the same without a loss: bytes, writing, reading, errors.

    python -m bench.lossy [--only mujoco] --json FILE

Camera pictures are cut out of scikit-learn's two photographs by a camera that pans and zooms, one cut after the other. MuJoCo's
are those of `bench.frames`. Codecs are tried in turn on the same frames, everything warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from bench.frames import KINDS as OTHERS
from bench.frames import mujoco
from bench.measure import Part, Report, in_turn, parser, ratio, run

Frames = npt.NDArray[np.uint8]
CODECS = {"LZ4": None, "webp:75": "webp:75", "webp:90": "webp:90"}
RENDERED = 2_000  # frames of MuJoCo, which take minutes where a CPU renders them; kept in bench/.cache
BATCH = 256


def camera(n: int, size: int) -> Frames:
    """Return pictures, (n, size, size, 3), of a camera that pans and zooms over photographs."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs, found = [Image.fromarray(one) for one in load_sample_images().images], []
    for k in range(n):
        photograph = photographs[k * len(photographs) // n]
        side = int(300 + 100 * np.sin(k / 60))
        x, y = ((np.sin([k / 97, k / 53]) + 1) / 2 * (np.array(photograph.size) - side)).tolist()
        found.append(np.asarray(photograph.resize((size, size), Image.Resampling.BICUBIC, (x, y, x + side, y + side))))
    return np.stack(found)


def _no_photographs() -> str:
    return "" if find_spec("sklearn") else "scikit-learn, which has the photographs, is not installed"


KINDS: dict[str, tuple[str, Callable[[int], Frames], Callable[[], str]]] = {
    "mujoco": ("MuJoCo, 84x84", lambda n: np.asarray(mujoco(RENDERED, 0)[:n]), OTHERS["mujoco"].missing),
    "camera 128": ("camera, 128x128", lambda n: camera(n, 128), _no_photographs),
    "camera 224": ("camera, 224x224", lambda n: camera(n, 224), _no_photographs),
}


def fill(path: Path, frames: Frames, codec: str | None) -> tuple[db.ReplayBuffer, float]:
    """Add frames, one step after the other, and return the sealed store, and seconds a step until the last was packed."""
    columns = {"obs": db.Column(frames.shape[1:], "uint8", codec=codec), "action": db.Column((), "int64")}
    buffer = db.ReplayBuffer(path, columns=columns, segment_rows=256)
    begin = time.perf_counter()
    for k in range(len(frames) - 1):
        buffer.add(frames[k], 0, 0.0, frames[k + 1], False, False)
    buffer.flush()
    seconds = (time.perf_counter() - begin) / (len(frames) - 1)
    buffer.flush(recompress=True)
    return buffer, seconds


def psnr(buffer: db.ReplayBuffer, frames: Frames) -> float:
    """Return the peak signal-to-noise ratio of what is stored, in dB; infinite where nothing is lost."""
    steps = np.arange(0, len(frames) - 256, max(1, len(frames) // 100))  # those before the last segment, which is not packed
    difference = buffer.at(steps)["obs"].numpy().astype(np.float64) - frames[steps]
    mean = float(np.mean(difference**2))
    return 10 * float(np.log10(255**2 / mean)) if mean else float("inf")


def measure(name: str, report: Report, directory: Path) -> None:
    """Measure one kind of pictures."""
    n, rounds = (600, 7) if report.quick else (1_500, 25)
    title, make, missing = KINDS[name]
    if why := missing():
        report.left_out(title, why)
        return
    frames, buffers = make(n), dict[str, db.ReplayBuffer]()
    for warm in (True, False):
        for codec, given in CODECS.items():
            buffer, seconds = fill(directory / f"{name}, {codec}, {warm}", frames[: n // 8 if warm else n], given)
            if warm:
                buffer.close()
                continue
            buffers[codec] = buffer
            report.row(f"{title}, {codec}: add and pack, a step", 1e6 * seconds, "us")
    for codec, buffer in buffers.items():
        compressed = buffer.stats()["compression"]["obs"]["ratio"]
        report.row(f"{title}, {codec}: bytes on disk of each", compressed, "")
        report.row(f"{title}, {codec}: a frame on disk", compressed * frames[0].nbytes, "bytes")
        if codec != "LZ4":
            report.row(f"{title}, {codec}: PSNR", psnr(buffer, frames), "dB")
    samples: dict[str, Callable[[Any], Any]] = {codec: partial(_sample, buffer) for codec, buffer in buffers.items()}
    in_turn(3, samples, lambda: None)
    times = in_turn(rounds, samples, lambda: None)
    for codec, seconds_of in times.items():
        report.times(f"{title}, {codec}: sample({BATCH})", seconds_of)
    for codec in list(CODECS)[1:]:
        report.row(f"{title}, {codec}: sample({BATCH}), times as long as LZ4", ratio(times[codec], times["LZ4"]), "x")
    for buffer in buffers.values():
        buffer.close()


def _sample(buffer: db.ReplayBuffer, _: Any) -> Any:
    return buffer.sample(BATCH)


PARTS: dict[str, Part] = {name: partial(measure, name) for name in KINDS}

if __name__ == "__main__":
    run("lossy", PARTS, parser(__doc__))
