"""Whether steps of an environment come out of a store as they went in, and what is odd about them: by stepping, never by name."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from diskbuffer import ReplayBuffer
from diskbuffer.errors import InputError
from diskbuffer.inspect.environment_trial import Trial
from diskbuffer.inspect.plan import plan_steps
from diskbuffer.plugin import counted, flatten, human_size, integer

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_FEW = 8  # steps whose frames differ, for a stack to be seen
_MOST_FRAMES = 16  # of a stack that is looked for
_AT_ONCE = 256  # steps that are read from the store at once
_FILLED = {"zeros": "with zeros", "first": "with copies of its first frame", "other": "in a way of its own"}
_RESETS = {
    "next_step": "the step after an end does the same whatever its action, so it is the reset",
    "same_step": "the step after an end is no reset: the next episode began with the step before",
    "disabled": "an episode that has ended ends again with every step: it waits for a reset",
}

_FINDINGS: dict[str, tuple[Literal["note", "warning"], str]] = {
    "no end": ("note", "no episode ended within {steps}, so nothing is known of ends"),
    "autoreset mode": ("warning", "{says}: give ReplayBuffer autoreset={mode}, or have env say what it does"),
    "rewards of resets": (
        "warning",
        "{some} of {all} resets in a step of their own have a reward or a flag, so that add takes them for steps. Give it "
        "reward 0, and no flags, wherever the step before ended an episode",
    ),
    "no final_obs": (
        "warning",
        "env resets in the same step, and info has no final_obs at {missing} of {ends}: the last observations of these episodes "
        "are lost, and add refuses such steps. Have step() put them into info, or make a vector that resets in the next step",
    ),
    "final_obs not real": (
        "warning",
        "at all {ends}, final_obs is the observation that env was reset to, so that wrong ones are stored. Have step() and "
        "reset() return copies. If episodes do end so, all is well",
    ),
    "reuses arrays": (
        "warning",
        "{paths}: later calls wrote to the array that was returned. Give add a copy of obs that was made before step(), or "
        "new_episode=False where an episode goes on; or have env return copies",
    ),
    "changes actions": ("warning", "step() writes to the action that it is given: give it a copy, and add the original"),
    "resets others": (
        "warning",
        "reset(options={{'reset_mask': ...}}) changed observations of environments that it was not to reset. Their episodes are "
        "cut off: have reset() go by the mask",
    ),
    "float64 observations": (
        "note",
        "{path} is float64, which takes twice what float32 does. If that is enough, wrap env in DtypeObservation",
    ),
    "dtype of observations": ("warning", "{path} is {dtype}, and {space} in its space, which is what is stored"),
    "NaN in observations": (
        "warning",
        "{path} has NaN or infinity, which add refuses: find where it comes from, or make the store with columns=, and "
        "allow_nan=True for {path}",
    ),
    "observations outside of their space": ("note", "those of {some} of {steps} are, and are stored as they are"),
    "NaN in rewards": ("warning", "rewards have NaN or infinity, which add refuses"),
    "odd rewards": ("note", "{what}"),
    "odd flags": ("note", "{what}"),
    "stack not recognised": (
        "warning",
        "{paths}: {frames} frames, which a buffer does not take for a stack and stores with each step; to store each once, "
        "{advice}give ReplayBuffer frame_stack={frames}{padding}",
    ),
    "not stored": ("warning", "add refuses step {step}: {error}"),
    "comes out different": ("warning", "{some} of {steps} are not what was added, the first of them number {first}"),
}


@dataclass(frozen=True)
class EnvironmentFinding:
    """One thing that was found: a stable name, how bad it is, and what it is and what to do, in words."""

    name: str
    severity: Literal["note", "warning"]
    text: str

    def __str__(self) -> str:
        return f"- {self.severity}, {self.name}: {self.text}."


@dataclass(frozen=True)
class EnvironmentStack:
    """What an observation is a stack of: so many frames along an axis, each `width` long there, and how first ones are filled."""

    frames: int
    axis: int
    width: int
    padding: str | None

    def __str__(self) -> str:
        first = f", an episode's first filled {_FILLED[self.padding]}" if self.padding else ""
        return f"stacks of {self.frames} frames along axis {self.axis}{first}"


@dataclass(frozen=True, kw_only=True)
class EnvironmentReport:
    """What `diskbuffer.check_env` found; prints as sentences.

    Attributes
    ----------
    findings : list of EnvironmentFinding
        What is odd, each with a ``name``, a ``severity`` ("note" or "warning") and a ``text``.
    n_envs, steps, episodes : int
        Environments, the steps that each made, and the episodes that ended.
    compared : int
        Steps that came out of the store as they went in, bit for bit.
    autoreset : str or None
        How a vector resets, as it was seen, or as it says where that does not tell; None for a single environment.
    stacks : dict of str to EnvironmentStack
        Observations that are stacks of frames, by path: ``frames``, ``axis``, ``width`` of a frame along it, and ``padding``:
        "zeros", "first", "other", or None where the frames do not tell.
    frame_stack : int
        Of a buffer that is given ``env=`` alone.
    million_bytes : int or None
        The disk that a million steps take; None where too few steps could be stored to tell.
    """

    findings: list[EnvironmentFinding]
    n_envs: int
    steps: int
    episodes: int
    compared: int
    autoreset: str | None
    stacks: dict[str, EnvironmentStack]
    frame_stack: int
    million_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as JSON has it."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        tried = (
            f"{counted(self.n_envs, 'environment')}, {counted(self.steps, 'step')} of each, {counted(self.episodes, 'episode')}"
        )
        lines = [f"{tried} ended.", f"{counted(self.compared, 'step')} came out of a store as they went in, bit for bit."]
        lines += [f"A million steps take {human_size(self.million_bytes)} of the disk."] if self.million_bytes else []
        lines += [f"Autoreset mode: {self.autoreset}."] if self.autoreset else []
        lines += [f"{path}: {stack}." for path, stack in self.stacks.items()]
        return "\n".join([*lines, "", *(map(str, self.findings) if self.findings else ["Nothing odd was found."])])


def check_env(env: Any, *, episodes: int = 10, steps: int = 1000, seed: int = 0) -> EnvironmentReport:
    """Step an environment at random, and tell what a buffer makes of it.

    Adds the steps to a store in a temporary directory, which is removed again, and compares what is read back with copies of what
    the environment returned. Nothing is known by name: arrays that are used again, stacks of frames, and how a vector resets are
    seen in what is returned. The environment is reset with seeds and stepped; it is not closed.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        Which does the same again after ``reset(seed=)`` with the same seed.
    episodes, steps : int
        When to stop: once so many episodes have ended in all, or each environment has made so many steps; or observations take
        128 MiB.
    seed : int
        For ``reset``, and for the actions.

    Returns
    -------
    EnvironmentReport
        Its ``findings`` are what is odd.

    Raises
    ------
    InputError
        `env` is no environment, an argument does not fit, no store can hold such observations or actions (Tuple, Text, Graph,
        Sequence), or what `env` returns does not have the form that Gymnasium asks for.
    Exception
        What the environment raises, with a note of the call.

    Notes
    -----
    Takes as long as the steps do, one to two seconds for making stores, and about 1 ms for a large picture; memory for three
    copies of the observations. A vector plays once more up to its first end.

    Examples
    --------
    >>> import diskbuffer as db, gymnasium as gym
    >>> report = db.check_env(gym.make("CartPole-v1"), episodes=3)
    >>> report.findings, report.episodes
    ([], 3)
    """
    episodes, steps, seed = integer("episodes", episodes), integer("steps", steps), integer("seed", seed, 0, None)
    trial = Trial(env, seed)
    with tempfile.TemporaryDirectory(prefix="diskbuffer-check-env-", ignore_cleanup_errors=True) as directory:
        _open(Path(directory), trial, trial.claimed).close()  # or it says what cannot be stored
        trial.play(episodes, steps)
        return _Check(trial).report(Path(directory))


def _open(directory: Path, trial: Trial, autoreset: str | None) -> ReplayBuffer:
    return ReplayBuffer(directory / "store", capacity=1_000_000, **_options(trial, autoreset))


def _options(trial: Trial, autoreset: str | None) -> dict[str, Any]:
    return {"env": trial.env, "autoreset": (autoreset or "disabled") if trial.is_vector else None}


class _Check:
    """Look at what an environment returned."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._seen, self._over = trial, trial.seen, trial.over
        self._findings = list[EnvironmentFinding]()
        self._mode = self._autoreset() if trial.is_vector else None
        after = _moved_on(self._over)  # whose episode ended with the step before
        self._is_reset, self._starts = np.zeros_like(after), after
        if self._mode == "next_step":
            self._is_reset, self._starts = after & (self._seen["reward"] == 0) & ~self._over, _moved_on(after)
            if wrong := int((after & ~self._is_reset).sum()):
                self._found("rewards of resets", some=wrong, all=int(after.sum()))
        self._starts[0] = True

    def report(self, directory: Path) -> EnvironmentReport:
        """Find all that is odd."""
        trial = self._trial
        for name, is_so in (
            ("reuses arrays", trial.overwritten),
            ("changes actions", trial.changed_actions),
            ("resets others", trial.reset_others),
        ):
            if is_so:
                self._found(name, paths=", ".join(sorted(trial.overwritten)))
        self._observations()
        self._rewards_and_flags()
        if not trial.ended:
            self._found("no end", steps=counted(len(trial.rows), "step"))
        stacks = {path: stack for path in trial.spaces if (stack := self._stack(path)) is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the buffer, for the same is found here
            compared, frame_stack, size = self._store(directory, stacks)
        return EnvironmentReport(
            findings=self._findings,
            n_envs=trial.n_envs,
            steps=len(trial.rows),
            episodes=trial.ended,
            compared=compared,
            autoreset=self._mode,
            stacks=stacks,
            frame_stack=frame_stack,
            million_bytes=size,
        )

    def _found(self, name: str, **what: Any) -> None:
        severity, text = _FINDINGS[name]
        self._findings.append(EnvironmentFinding(name, severity, text.format(**what)))

    def _autoreset(self) -> str | None:
        """Return how a vector resets, and tell where it says otherwise, and where last observations are none."""
        trial = self._trial
        seen, claimed, ends = self._how_it_resets(), trial.claimed, counted(trial.ended, "end")
        if claimed is None or seen not in (None, claimed):
            says = f"env says {claimed!r}, but {_RESETS[str(seen)]}" if claimed else "metadata['autoreset_mode'] is not there"
            self._found("autoreset mode", says=says, mode=repr(seen) if seen else "")
        mode = seen or claimed
        moves = any((trial.seen[path][:-1] != trial.seen[path][1:]).any() for path in trial.spaces)
        if mode == "same_step" and None in trial.finals:
            self._found("no final_obs", missing=trial.finals.count(None), ends=ends)
        elif mode == "same_step" and len(trial.finals) > 1 and all(trial.finals) and moves:
            self._found("final_obs not real", ends=ends)
        return mode

    def _how_it_resets(self) -> str | None:
        """Return how a vector was seen to reset; None where that cannot be told."""
        if any(last is not None for last in self._trial.finals):
            return "same_step"
        steps, envs = np.nonzero(self._over[:-1])
        if not len(steps) or self._trial.claimed == "disabled":  # then it was reset
            return None
        if len(steps) > 1 and self._over[steps + 1, envs].all():
            return "disabled"
        is_reset = self._trial.is_reset_after_an_end()
        return None if is_reset is None else "next_step" if is_reset else "same_step"

    def _observations(self) -> None:
        """Look for dtypes that cost, or are not the space's, for NaN, and for values outside of the space."""
        trial, is_odd = self._trial, False
        for path, space in trial.spaces.items():
            both, dtype = (self._seen[path], self._seen[f"next_{path}"]), np.dtype(space.dtype)
            if dtype == np.float64:
                self._found("float64 observations", path=path)
            if not np.can_cast(has := np.result_type(*both), dtype, "safe"):
                is_odd = True
                self._found("dtype of observations", path=path, dtype=has, space=dtype)
            if has.kind == "f" and not all(np.isfinite(each).all() for each in both):
                is_odd = True
                self._found("NaN in observations", path=path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Gymnasium, where it has to cast
            contains = trial.env.observation_space.contains
            outside = sum(not (contains(row["obs"]) and contains(row["next_obs"])) for row in trial.rows)
        if outside and not is_odd:
            steps = counted(len(trial.rows), "step")
            self._found("observations outside of their space", some=f"{outside:,}", steps=steps)

    def _rewards_and_flags(self) -> None:
        rewards, shape = self._seen["reward"], (self._trial.n_envs,) if self._trial.is_vector else ()
        for name, kinds, usual in (("reward", "fiu", "a number"), ("terminated", "b", "a bool"), ("truncated", "b", "a bool")):
            arrays = [np.asarray(row[name]) for row in self._trial.rows]
            odd = next((a for a in arrays if a.shape != shape or a.dtype.kind not in kinds), None)
            if odd is not None:
                what = f"{name} is {odd.dtype} of shape {odd.shape}; expected {usual} of shape {shape}"
                self._found("odd rewards" if name == "reward" else "odd flags", what=what)
        if not np.isfinite(rewards).all():
            self._found("NaN in rewards")
        elif (rewards % 1 == 0).all() and (np.abs(rewards) > 2**24).any():
            self._found("odd rewards", what="whole numbers above 2**24 are rounded, as rewards are stored as float32")

    # Stacks of frames

    def _stack(self, path: str) -> EnvironmentStack | None:
        """Return what an observation is a stack of: the frames of each step are those of the one before, moved on by one."""
        within, now, then = ~self._over & ~self._is_reset, self._seen[path], self._seen[f"next_{path}"]
        for axis, size in enumerate(now.shape[2:], 1):
            old, new, first = (np.moveaxis(array, axis, 1) for array in (now[within], then[within], now[self._starts]))
            for width in (n for n in range(1, size // 2 + 1) if size % n == 0 and size // n <= _MOST_FRAMES):
                if _rolls(old, new, width):
                    frames = size // width
                    return EnvironmentStack(frames, axis - 1, width, _padding(first.reshape(len(first), frames, -1)))
        return None

    def _unrecognised(self, stacks: Mapping[str, EnvironmentStack]) -> None:
        """Tell of stacks that a buffer takes for whole observations."""
        path, stack = next(iter(stacks.items()))
        is_along_the_first = stack.axis == 0 and stack.width == 1 and self._seen[path].ndim > 3
        fits = is_along_the_first and len(stacks) == len(self._trial.spaces) and set(stacks.values()) == {stack}
        padding = ", padding='zeros'" if fits and stack.padding == "zeros" else ""
        advice = "" if fits else "have all of obs stack frames along a new first axis, and "
        self._found("stack not recognised", paths=", ".join(stacks), frames=stack.frames, advice=advice, padding=padding)

    # The store

    def _store(self, directory: Path, stacks: Mapping[str, EnvironmentStack]) -> tuple[int, int, int | None]:
        """Add all steps, compare; return how many came out as they went in, the buffer's frame stack, and a million's bytes."""
        rows, added = self._trial.rows, 0
        lacks_last_ones = self._mode == "same_step" and None in self._trial.finals
        mode = "disabled" if lacks_last_ones else self._mode  # what is there is stored as it is
        with _open(directory, self._trial, mode) as buffer:
            if stacks and buffer.frame_stack == 1:
                self._unrecognised(stacks)
            try:
                for row in rows:
                    buffer.add(**row)
                    added += 1
            except InputError as error:
                self._found("not stored", step=added, error=error)
            compared, frame_stack = self._compare(buffer, added), buffer.frame_stack
        try:
            size = plan_steps(rows, directory, _options(self._trial, mode)).disk if added == len(rows) else None
        except InputError:  # too few to see how they compress
            size = None
        return compared, frame_stack, size

    def _compare(self, buffer: ReplayBuffer, added: int) -> int:
        """Read every step, and return how many are what was added, bit for bit."""
        envs, steps = np.nonzero(~self._is_reset[:added].T)  # a buffer has environment after environment
        ids = buffer.steps()
        right = np.full(len(steps), len(ids) == len(steps))
        for first in range(0, len(ids) if right.all() else 0, _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            for path, found in flatten(buffer.at(ids[part], numpy=True)).items():
                if path != "steps":
                    values = self._seen[path][steps[part], envs[part]].astype(found.dtype)
                    right[part] &= (_bytes(values) == _bytes(found)).all(1)
        if not right.all():
            some, first_one = f"{int((~right).sum()):,}", int(right.argmin())
            self._found("comes out different", some=some, steps=counted(len(right), "step"), first=first_one)
        return int(right.sum())


def _bytes(rows: Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of rows, (n, bytes)."""
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def _moved_on(flags: Bools) -> Bools:
    """Return flags of steps, (steps, n_envs), at the step after each."""
    return np.vstack([np.zeros_like(flags[:1]), flags[:-1]])


def _rolls(now: Array, then: Array, width: int) -> bool:
    """Return whether each observation (n, size, ...) is the one before moved on, in steps enough whose frames differ."""
    if len(now) < _FEW:
        return False
    for steps in (slice(0, _FEW), slice(None)):  # few steps tell of most that they are none
        if not np.array_equal(now[steps, width:], then[steps, :-width]):
            return False
    return int((now[:, width:] != now[:, :-width]).reshape(len(now), -1).any(1).sum()) >= _FEW


def _padding(stacks: Array) -> str | None:
    """Return how the first stacks of episodes, (n, frames, values), are filled; None where that cannot be told."""
    zeros, copies = ~stacks[:, :-1].any(axis=(1, 2)), (stacks[:, :-1] == stacks[:, -1:]).all(axis=(1, 2))
    told = zeros != copies
    if not told.any() and zeros.all():
        return None
    return "zeros" if (zeros | ~told & copies).all() else "first" if (copies | ~told & zeros).all() else "other"
