"""Before a training: what its store will take of the disk and of memory, and whether it will fit."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskbuffer.errors import InputError
from diskbuffer.inspect import footprint, peers
from diskbuffer.inspect.footprint import Compressed, Kept
from diskbuffer.inspect.memory import available_bytes
from diskbuffer.inspect.peers import Peer
from diskbuffer.inspect.trial import Asked, Trial, run_trial
from diskbuffer.plugin import human_size, integer_or_none, local_path
from diskbuffer.store.format.layout import ATTRIBUTE, Layout
from diskbuffer.store.system import map_limit

# Bytes on disk of each byte of frames, sealed: `python -m bench.plan --typical`; of noisy pictures, what docs/format-1.md tells.
TYPICAL = {"six Atari games, 84x84, grey": 0.045, "CarRacing, 96x96, in colour": 0.055, "noisy camera pictures": 0.73}
_LIVE_TO_SEALED = 1.5  # bytes of a chunk as it is written, to those that stay, where it was not measured
_COLUMNS = 7  # that a store has at least, each with two files of an environment that are written to
_LITTLE = 0.9  # of what there is: with more of the disk or of memory than that, a plan is too tight


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a store takes.

    Attributes
    ----------
    disk : int
        Bytes, once the training is over and all is sealed; with a capacity that was reached, on average.
    disk_most : int
        Bytes at the moment at which it is the most: with segments that are old enough to go and are still there, and others that
        wait to be sealed.
    columns : dict of str to int
        The bytes of each column. The rest is the table of segments, the tails, metadata.
    ram : int or None
        Bytes of the process's own memory, beyond what Python, PyTorch and the environment take; the page cache apart.
    page_cache : int
        Bytes of the page cache that are in use all the time: the tails, and the segments that are written to.
    written : int
        Bytes written to the disk in the whole training.
    """

    disk: int
    disk_most: int
    columns: dict[str, int]
    ram: int | None
    page_cache: int
    written: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A forecast, and what it rests on.

    Attributes
    ----------
    place : str
        The directory whose disk was looked at.
    training_steps : int
    figures : Figures
        As measured with the environment; without one, of what nothing compresses.
    typical : dict of str to int
        Without an environment: bytes of disk, if frames compressed as those of known environments do.
    seconds : float
        Of the training, if neither environment nor learner were slower than in the trial: no learner at all.
    trial : Trial
    peers : list of Peer
    disk_free, ram_free : int, int or None
        What there is.
    problems : list of str
        Why it will not fit; empty if it will.
    notes : list of str
        What was assumed, and what to know.
    """

    place: str
    training_steps: int
    figures: Figures
    typical: dict[str, int]
    seconds: float
    trial: Trial
    peers: list[Peer]
    disk_free: int
    ram_free: int | None
    problems: list[str]
    notes: list[str]

    @property
    def layout(self) -> Layout:
        """The layout of the training's store."""
        return _layout(self.trial)

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as JSON has it."""
        return dataclasses.asdict(self)


def plan(
    asked: Asked,
    place: str | os.PathLike[str] = ".",
    *,
    training_steps: int | None = None,
    tick: Callable[[float], object] | None = None,
) -> Plan:
    """Forecast what a store will take, from a trial on the disk that it will be on.

    Parameters
    ----------
    asked : Asked
        The environment, or a shape; capacity, number of environments, stack; how long the trial takes.
    place : path-like
        Where the store will be. It need not be there yet; its nearest directory above that is there tells the disk.
    training_steps : int, optional
        Of the whole training, of all environments together; as many as the capacity, else.
    tick : callable
        ``tick(seconds)`` is called now and then, for a progress bar.

    Raises
    ------
    InputError
        The environment cannot be made, or fails; or an argument does not fit.
    OSError
        The disk cannot be written to.
    """
    training_steps = integer_or_none("training_steps", training_steps)
    steps = training_steps if training_steps is not None else asked.capacity
    if steps is None or steps < 1:
        raise InputError("a plan needs a capacity, or how many steps the whole training has: at least 1")
    if not asked.seconds > 0:
        raise InputError(f"seconds must be above 0, found {asked.seconds!r}")
    directory = _nearest(local_path(place))
    why = map_limit.problem(2 * asked.n_envs * _COLUMNS)
    if why is not None:
        raise InputError(f"{asked.n_envs:,} environments do not fit: whatever else is chosen, {why} fewer environments")
    return _planned(run_trial(asked, directory, tick), asked, directory, steps)


def _planned(trial: Trial, asked: Asked, directory: Path, steps: int) -> Plan:
    layout = _layout(trial)
    measured = {path: Compressed(found.live, found.sealed) for path, found in trial.packed.items()}
    seconds = steps * (trial.stepping + trial.adding)
    figures = figures_of(layout, trial, measured, steps, seconds)
    typical = {}
    if asked.environment is None and layout.packed and asked.dtype == "uint8":
        for name, ratio in TYPICAL.items():
            guessed = dict.fromkeys(layout.packed, Compressed(min(1.0, ratio * _LIVE_TO_SEALED), ratio))
            typical[name] = figures_of(layout, trial, guessed, steps, seconds).disk
    capacity = steps if layout.capacity is None else min(steps, layout.capacity)
    others = peers.peers_of(layout.schema.columns, capacity, layout.n_envs, layout.frame_stack)
    free, ram = shutil.disk_usage(directory).free, available_bytes()
    return Plan(
        place=str(directory),
        training_steps=steps,
        figures=figures,
        typical=typical,
        seconds=seconds,
        trial=trial,
        peers=others,
        disk_free=free,
        ram_free=ram,
        problems=_problems(layout, figures, typical, free, ram),
        notes=_notes(layout, trial, asked, figures, ram),
    )


def figures_of(layout: Layout, trial: Trial, packed: Mapping[str, Compressed], steps: int, seconds: float) -> Figures:
    """Compute what a store takes after so many steps, and seconds, if its columns compress so."""
    rows_a_step = trial.rows / max(1, trial.steps)
    kept, most = (Kept.after(layout, steps, rows_a_step, most=m) for m in (False, True))
    columns = footprint.disk_bytes(layout, kept, packed)
    # At most: two segments of each stream that wait to be sealed are as they were written
    waiting = sum(
        2
        * layout.n_envs
        * layout.segment_rows
        * layout.schema[path].row_bytes
        * max(0.0, packed[path].live - packed[path].sealed)
        for path in layout.packed
    )
    ram = None
    if trial.ram is not None:
        episodes = kept.rows * max(0, trial.rows - trial.steps) / max(1, trial.rows)
        small = dataclasses.replace(layout, streams=trial.envs, segment_rows=min(layout.segment_rows, 256))
        tried = Kept.after(dataclasses.replace(small, capacity=None), trial.steps, rows_a_step)
        grown = footprint.ram_bytes(layout, kept, episodes) - footprint.ram_bytes(small, tried, trial.episodes)
        ram = round(max(trial.ram + grown, footprint.ram_bytes(layout, kept, episodes)))
    unfinished = 0.0  # bytes of the segments that are written to
    for path, column in layout.schema.recorded.columns.items():
        share = packed[path].live if path in layout.chunks_of else 1.0
        unfinished += layout.n_envs * layout.segment_rows * column.row_bytes * share
    return Figures(
        disk=round(sum(columns.values())),
        disk_most=round(sum(footprint.disk_bytes(layout, most, packed).values()) + waiting),
        columns={path: round(taken) for path, taken in columns.items() if path},
        ram=ram,
        page_cache=round(footprint.tail_bytes(layout) + unfinished),
        written=round(footprint.written_bytes(layout, kept, packed, seconds)),
    )


def _layout(trial: Trial) -> Layout:
    return Layout.from_group({"attributes": {ATTRIBUTE: trial.layout}}, "the plan")[0]


def _nearest(place: Path) -> Path:
    """Return the nearest directory of a path, above it or itself, that is there."""
    found = next((path for path in (place, *place.parents) if path.is_dir()), None)
    if found is None or not os.access(found, os.W_OK):
        raise InputError(f"{found or place} cannot be written to; give a directory on the disk that the store will be on")
    return found


def _problems(layout: Layout, figures: Figures, typical: Mapping[str, int], free: int, ram: int | None) -> list[str]:
    found, why = list[str](), map_limit.problem(map_limit.files_of(layout))
    if why is not None:
        found.append(f"{why} larger segments (segment_rows=), a smaller capacity, or fewer environments")
    if figures.disk_most > _LITTLE * free:
        found.append(
            f"the disk has {human_size(free)} left, and the store takes up to {human_size(figures.disk_most)}"
            + (" if its frames do not compress" if typical else "")
            + ": give a smaller capacity, or a path on another disk"
        )
    if ram is not None and figures.ram is not None and figures.ram > _LITTLE * ram:
        found.append(
            f"{human_size(ram)} of memory are available, and the buffer takes {human_size(figures.ram)}, the learner apart: a "
            "smaller capacity, larger segments (segment_rows=) or smaller batches take less"
        )
    return found


def _notes(layout: Layout, trial: Trial, asked: Asked, figures: Figures, ram: int | None) -> list[str]:
    notes = []
    if asked.environment is not None and layout.packed:
        notes.append(
            "The environment was played at random. Frames of later play may compress better or worse: those of this trial took "
            + ", ".join(f"{100 * p.best:.1f} to {100 * p.worst:.1f} % of their size ({path})" for path, p in trial.packed.items())
        )
    if asked.environment is None and layout.packed:
        notes.append(
            "Without an environment nothing is known of how its data compress. What is shown is the worst: random numbers, which "
            "take their full size. Give --env to measure it"
        )
    if not layout.packed:
        notes.append("Rows of these columns are too small to be worth compressing: they take the size that they have")
    if trial.episodes == 0 and asked.environment is not None:
        notes.append("No episode ended in the trial. Each adds one row, for its last observation: many short ones take more disk")
    if trial.envs < layout.n_envs:
        notes.append(f"{trial.envs} of the {layout.n_envs:,} environments were tried. Memory is reckoned from what these took")
    if trial.limited:
        notes.append("The trial stopped early, so as not to take more of the disk: a quarter of what is left, or 8 GB")
    if trial.segments < 2 * trial.envs and layout.packed:
        notes.append("The trial was too short to see sealed segments. Give it more --seconds")
    if ram is not None and figures.disk > _LITTLE * ram:
        notes.append(
            f"The store is larger than the {human_size(ram)} of memory that are available for it: part of a batch is then read "
            "from the disk, and sampling is slower than shown"
        )
    return notes
