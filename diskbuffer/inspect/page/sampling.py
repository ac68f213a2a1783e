"""What a sampler draws from a store: how old drawn steps are, and how often each is drawn. Reads no step's values.

This opens the buffer, read-only, as a training would: torch is imported by then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import ReplayBuffer, Sampler, Slices, Uniform
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.inspect.page.samplers import SAMPLERS
from diskbuffer.plugin import Reader, counted

Int64 = npt.NDArray[np.int64]
_MOST = 20_000_000  # drawn steps, of which each takes 30 bytes here for a moment
_BINS, _MOST_BARS = 60, 40


def look_at_draws(
    path: Path, kind: str, options: Mapping[str, float], batch_size: int = 256, batches: int = 1000, seed: int | None = 0
) -> dict[str, Any]:
    """Draw from a store as it is now, and describe what came.

    Parameters
    ----------
    path : Path
        A store.
    kind : str
        One of `diskbuffer.inspect.page.samplers.SAMPLERS`.
    options : mapping of str to float
        Those of the sampler; what is missing is as in `SAMPLERS`.
    batch_size, batches : int
    seed : int, optional

    Returns
    -------
    dict
        ``sampler`` (as in Python), ``steps`` (there), ``seconds``, ``words`` (sentences), ``ages`` and ``times`` (histograms).

    Raises
    ------
    InputError
        An argument does not fit, or more is asked for than fits into memory.
    EmptyBufferError, NotAStoreError
        There is nothing to draw.
    """
    if kind not in SAMPLERS:
        raise InputError(f"sampler must be one of {', '.join(SAMPLERS)}, found {kind!r}")
    known = {option.name: option.value for option in SAMPLERS[kind].options}
    if unknown := sorted(options.keys() - known.keys()):
        raise InputError(f"{kind} has the options {', '.join(known) or 'none'}, found {', '.join(unknown)}")
    values = {**known, **options}
    length = int(values.get("length", 1))
    if batch_size < 1 or batches < 1 or length < 1:
        raise InputError(f"batch, batches and length must be at least 1, found {batch_size}, {batches} and {length}")
    if batch_size * batches * length > _MOST:
        raise InputError(
            f"{batch_size * batches * length:,} steps are more than the {_MOST:,} that are drawn at once; draw fewer"
        )
    sampler, call = _make(kind, values, seed)
    with ReplayBuffer(path, mode="r") as buffer:
        if not len(buffer):
            raise EmptyBufferError(f"{path} holds no complete step yet: there is nothing to draw")
        begun = time.perf_counter()
        drawn = np.concatenate([buffer.draw(batch_size, sampler)["steps"] for _ in range(batches)])
        seconds = time.perf_counter() - begun
        streams, there = Reader(path).info.streams, buffer.steps()
    if length > 1:
        drawn = (drawn[:, None] + np.arange(length) * streams).ravel()
    counts, ages = _count(there, drawn, streams)
    found = {"sampler": call, "steps": len(there), "batch_size": batch_size, "batches": batches, "seconds": seconds}
    return found | {"words": _words(counts, ages), "ages": _by_age(counts, ages, streams), "times": _by_times(counts)}


def _make(kind: str, values: Mapping[str, float], seed: int | None) -> tuple[Sampler, str]:
    """Make a sampler; return it, and how it is written."""
    if kind == "recent":
        return Uniform(seed, max_age=values["max_age"]), f"db.Uniform(max_age={values['max_age']:g})"
    if kind == "epochs":
        return Uniform(seed, replace=False), "db.Uniform(replace=False)"
    if kind == "slices":
        return Slices(int(values["length"]), seed), f"db.Slices({values['length']:g})"
    return Uniform(seed), "db.Uniform()"


def _count(there: Int64, drawn: Int64, streams: int) -> tuple[Int64, Int64]:
    """Count how often each step was drawn; return that, and how many later steps its stream has."""
    of, positions = there % streams, there // streams
    span = int(positions.max()) + 2
    keys = of * span + positions  # ascending, as the steps are
    found = np.searchsorted(keys, (drawn % streams) * span + drawn // streams)
    counts = np.bincount(found, minlength=len(there))[: len(there)]
    ends = np.searchsorted(of, np.arange(streams), side="right")
    return counts, ends[of] - 1 - np.arange(len(there))


def _by_age(counts: Int64, ages: Int64, streams: int) -> dict[str, Any]:
    most = int(ages.max()) + 1
    edges = np.linspace(0, most, min(_BINS, -(-most // 20)) + 1)
    drawn, even = (
        np.histogram(ages, edges, weights=weights)[0]
        for weights in (counts / max(1, counts.sum()), np.ones(len(ages)) / len(ages))
    )
    note = "Age: how many steps were added since" + (", by the same environment." if streams > 1 else ".")
    return {
        "age": edges.round().tolist(),
        "drawn": np.append(drawn, drawn[-1]).tolist(),
        "even": np.append(even, even[-1]).tolist(),
        "median": _quantile(counts, ages, 0.5),
        "note": note + " The thin line is what it would be if every step were drawn as often.",
    }


def _by_times(counts: Int64) -> dict[str, Any]:
    most = int(counts.max())
    width = max(1, -(-(most + 1) // _MOST_BARS))
    steps = np.bincount(counts // width)
    note = "Bars: how many steps were drawn so many times." + (f" Each bar stands for {width} numbers." if width > 1 else "")
    return {"times": (np.arange(len(steps)) * width).tolist(), "steps": steps.tolist(), "note": note}


def _quantile(counts: Int64, ages: Int64, share: float) -> int:
    """Return the age that a share of what was drawn is not older than."""
    order = np.argsort(ages, kind="stable")
    summed = np.cumsum(counts[order])
    return int(ages[order[min(len(order) - 1, int(np.searchsorted(summed, share * summed[-1])))]])


def _words(counts: Int64, ages: Int64) -> list[str]:
    mean, never = counts.mean(), (counts == 0).mean()
    return [
        f"Half of what is drawn is younger than {_quantile(counts, ages, 0.5):,} steps, and a tenth older than "
        f"{_quantile(counts, ages, 0.9):,}; the oldest step there has an age of {int(ages.max()):,}.",
        f"A step was drawn {mean:.2g} times on average, and the one that was drawn most {counted(int(counts.max()), 'time')}.",
        f"{never:.2%} of the steps were never drawn; if all were as likely, it would be some {np.exp(-mean):.2%}."
        if never
        else "Every step was drawn.",
    ]
