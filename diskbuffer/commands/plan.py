"""`diskbuffer plan`: before a training, what its store will take, and whether it will fit."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from diskbuffer.commands.arguments import Whole
from diskbuffer.commands.output import WELL, WRONG, complain, show, show_json, table
from diskbuffer.errors import InputError
from diskbuffer.inspect.environments import EnvironmentOptions
from diskbuffer.inspect.plan import Plan
from diskbuffer.inspect.plan import plan as make_plan
from diskbuffer.inspect.trial import Asked
from diskbuffer.plugin import human_size

_NOISE = "observations of "
_INTERRUPTED = 130  # the exit code of what a Ctrl-C ended


def plan(
    path: str = ".",
    /,
    *,
    env: str | None = None,
    shape: str | None = None,
    dtype: str = "uint8",
    stack: Whole | None = None,
    grey: bool = False,
    colour: bool = False,
    resize: str | None = None,
    envs: Whole = 1,
    capacity: Whole = 1_000_000,
    steps: Whole | None = None,
    batch_size: Whole = 256,
    seconds: float = 60.0,
    seed: Whole = 0,
    json: bool = False,
) -> int:
    """Forecast what a training's store will take: disk, memory, bytes written, samples a second.

    Plays the environment at random for a minute, through a temporary store on the disk that PATH is on, which is removed again.
    Exits with 1 where the disk or the memory will not do.

    Parameters
    ----------
    path
        Where the store will be: a directory on that disk, which may have stores in it, or a store, beside which it is then.
    env
        A Gymnasium id (Atari games are made as Gymnasium's AtariPreprocessing has them), or MODULE:FUNCTION, a function without
        arguments that returns an environment or a vector of them.
    shape
        In place of an environment: the shape of an observation (of one frame), as in 84,84.
    dtype
        With --shape: what it consists of.
    stack
        Frames in an observation. An environment that stacks frames itself is recognised.
    grey
        Make pictures grey, as those of Atari games are anyway.
    colour
        Leave an Atari game its colours.
    resize
        Bring pictures to so many pixels, height and width: 100,100. Atari games are 84,84; with 0 they stay as they are.
    envs
        Environments side by side. Of more than 64, that many are tried.
    capacity
        Steps that are kept, of all environments together.
    steps
        Steps of the whole training; as many as are kept, if not given.
    batch_size
        Steps of a batch.
    seconds
        How long to try.
    seed
        For what is played.
    json
        Print all figures as JSON.
    """
    if (env is None) == (shape is None):
        raise InputError("give one of --env and --shape: --env ALE/Pong-v5, or --shape 84,84 --dtype uint8")
    if shape is not None and path.isdigit():
        raise InputError(f"--shape has no blanks in it: --shape {shape},{path}")
    for name, number in (("envs", envs), ("capacity", capacity), ("steps", steps), ("batch-size", batch_size), ("stack", stack)):
        if number is not None and number < 1:
            raise InputError(f"--{name} must be at least 1, found {number}")
    if grey and colour:
        raise InputError("give --grey or --colour, not both")
    pictures = True if grey else False if colour else None
    asked = Asked(
        environment=None if env is None else EnvironmentOptions(env=env, n_envs=envs, grey=pictures, resize=pixels(resize)),
        shape=() if shape is None else shape_of(shape, "shape"),
        dtype=dtype,
        capacity=capacity,
        n_envs=envs,
        frame_stack=stack,
        seconds=seconds,
        batch_size=batch_size,
        seed=seed,
    )
    try:
        with _Ended(), _Progress(seconds, shown=not json) as progress:
            beside = Path(path).absolute().parent if (Path(path) / "zarr.json").exists() else path
            found = make_plan(asked, beside, training_steps=steps, tick=progress)
    except KeyboardInterrupt:
        complain("interrupted; the temporary store is removed")
        return _INTERRUPTED
    if json:
        show_json(found.to_json())
    else:
        _show(found, env or f"{_NOISE}{dtype} of shape {shape}")
    return WRONG if found.problems else WELL


def pixels(text: str | None) -> tuple[int, ...] | None:
    """Return height and width from text such as "100,80" or "84"; () of "0"."""
    if text is None:
        return None
    if text == "0":
        return ()
    found = shape_of(text, "resize")
    if len(found) not in (1, 2):
        raise InputError(f"--resize must be a height and a width, such as 100,100, found {text!r}")
    return found if len(found) == 2 else found * 2


def shape_of(text: str, option: str) -> tuple[int, ...]:
    """Return a shape from text such as "84,84" or "(96, 96, 3)"; "" or "()" is that of a number."""
    commas = re.sub(r"(?<=\d)\s*x\s*(?=\d)", ",", text.strip().strip("()[]"))
    parts = [part.strip() for part in commas.split(",") if part.strip()]
    try:
        found = tuple(int(part) for part in parts)
    except ValueError:
        raise InputError(f"--{option} must be integers with commas between them, such as 84,84, found {text!r}") from None
    if any(n < 1 for n in found):
        raise InputError(f"every number of --{option} must be at least 1, found {text!r}")
    return found


class _Ended:
    """Have a signal that ends the program be an exception, so that the temporary store is removed."""

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._raise) for number in (signal.SIGTERM, signal.SIGHUP)}

    def _raise(self, *_: object) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Progress:
    """A progress bar on stderr, of the seconds that a trial takes, where that is a terminal."""

    def __init__(self, seconds: float, *, shown: bool) -> None:
        self._seconds, self._shown = seconds, shown and sys.stderr.isatty()

    def __enter__(self) -> _Progress:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True, disable=not self._shown)
        self._bar.start()
        self._task = self._bar.add_task("trying it", total=self._seconds)
        return self

    def __call__(self, seconds: float) -> None:
        self._bar.advance(self._task, seconds)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _show(found: Plan, what: str) -> None:
    layout, figures, trial = found.layout, found.figures, found.trial
    stacked = f", stacks of {layout.frame_stack} frames" if layout.frame_stack > 1 else ""
    side = f", {layout.n_envs} environments" if layout.n_envs > 1 else ""
    kept = min(found.training_steps, layout.capacity or found.training_steps)
    show(f"{what}{stacked}{side}: a training of {found.training_steps:,} steps, of which {kept:,} are kept.")
    show(f"Tried on {found.place}, with {trial.steps:,} steps.", "")
    rows = [
        ("disk", human_size(figures.disk), f"at most {human_size(figures.disk_most)}; {human_size(found.disk_free)} are free")
    ]
    if found.typical:
        rows = [("disk, if nothing compresses", *rows[0][1:])]
        rows += [(f"disk, if it compresses as {name}", human_size(taken), "") for name, taken in found.typical.items()]
    available = "" if found.ram_free is None else f"{human_size(found.ram_free)} are available"
    batch, sampling = trial.batch_size, trial.sampling
    rows += [
        ("memory of the buffer", "?" if figures.ram is None else human_size(figures.ram), available),
        ("page cache in use all the time", human_size(figures.page_cache), "tails, and the segments that are written to"),
        ("written to the disk", human_size(figures.written), "in the whole training, about"),
        (f"sample({batch})", f"{1e3 * sampling:.2f} ms", f"{batch / sampling:,.0f} samples a second, from memory"),
        ("add", f"{1e6 * trial.adding:.0f} us", f"a step; {_rate(trial.adding)} steps a second"),
    ]
    if not what.startswith(_NOISE):
        rows.append(("the environment", f"{1e6 * trial.stepping:.0f} us", f"a step; {_rate(trial.stepping)} steps a second"))
    show(table(("needed", "", " "), rows, left=("needed", " ")), "")
    others = [(p.name, human_size(p.ram) if p.ram else "", human_size(p.disk) if p.disk else "") for p in found.peers]
    show(table(("the same steps in", "memory", "disk"), others, left=("the same steps in",)), "")
    for note in found.notes:
        print(f"{note}.")
    complain(*(f"It will not fit: {problem}." for problem in found.problems))


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds else "any number of"
