"""`diskbuffer plan`: what a training's store will take of the disk, and whether it fits."""

from __future__ import annotations

import contextlib
import signal
import sys

from diskbuffer.commands.arguments import Json, Whole
from diskbuffer.commands.output import WELL, WRONG, complain, show, show_json, table
from diskbuffer.errors import InputError, NotAStoreError
from diskbuffer.inspect.environments import make
from diskbuffer.inspect.plan import Plan, plan_environment, plan_store
from diskbuffer.plugin import counted, human_size, integer, progress_bar

_INTERRUPTED = 130  # the exit code of what a Ctrl-C ended


def plan(
    path: str = ".",
    /,
    *,
    env: str | None = None,
    stack: Whole | None = None,
    envs: Whole = 1,
    capacity: Whole | None = None,
    steps: Whole | None = None,
    seconds: float = 60.0,
    seed: Whole = 0,
    json: Json = False,
) -> int:
    """Forecast what a training's store will take of the disk, beside what Stable-Baselines3's buffer takes of memory.

    With --env, plays the environment at random for a minute, through temporary stores on the disk that PATH is on, which are
    removed again; what is seen later may compress better or worse. Without, PATH is a store, whose own steps tell. Exits with 1
    where the disk has too little room.

    Parameters
    ----------
    path
        Where the store will be, or a store that is there.
    env
        A Gymnasium id (Atari games are made as Gymnasium's AtariPreprocessing has them), or MODULE:FUNCTION, a function without
        arguments that returns an environment with its wrappers, or a vector of them.
    stack
        Frames in an observation. An environment that stacks frames itself is recognised.
    envs
        Environments side by side.
    capacity
        Steps that are kept, of all environments together: a million, or those that the store keeps.
    steps
        Steps of the whole training; as many as are kept, if not given.
    seconds
        How long to play.
    seed
        For what is played.
    """
    if env is None and (stack, envs) != (None, 1):
        raise InputError("--stack and --envs need --env: a store that is there has its own")
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        if env is None:
            forecast = plan_store(path, capacity=capacity, steps=steps)
        else:
            made = make(env, integer("envs", envs))
            with contextlib.closing(made), progress_bar(None, 0, not json and sys.stderr.isatty(), "steps") as bar:
                how = {"steps": steps, "frame_stack": stack, "seconds": seconds, "seed": seed, "tick": bar.update}
                forecast = plan_environment(made, path, capacity=1_000_000 if capacity is None else capacity, **how)
    except NotAStoreError as error:
        raise InputError(f"{error}; to try an environment, give --env ALE/Pong-v5, or --env my_package.envs:make") from error
    except KeyboardInterrupt:
        complain("interrupted; the temporary stores are removed")
        return _INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if json:
        show_json(forecast.to_json())
    else:
        _show(forecast, env or path)
    return WELL if forecast.fits else WRONG


def _show(forecast: Plan, what: str) -> None:
    stacked = f", stacks of {forecast.frame_stack} frames" if forecast.frame_stack > 1 else ""
    side = f", {forecast.n_envs} environments" if forecast.n_envs > 1 else ""
    show(f"{what}{stacked}{side}: {forecast.steps:,} steps, of which {forecast.kept:,} are kept.")
    show(f"A forecast from {counted(forecast.tried, 'step')}.", "")
    rows = [("diskbuffer, on disk", human_size(forecast.disk), f"of {human_size(forecast.room)} that it can have")]
    for path, packing in forecast.packing.items():
        ratios = f"at first {100 * packing.live:.3g} %, then {100 * packing.sealed:.3g} % of its size"
        rows.append((f"  of that, {path}", human_size(forecast.columns[path]), ratios))
    rows.append(("Stable-Baselines3, in memory", human_size(forecast.sb3), ""))
    if forecast.sb3_sparing is not None:
        rows.append(("  with optimize_memory_usage", human_size(forecast.sb3_sparing), ""))
    heading = f"{counted(forecast.kept, 'step')} take"
    show(table((heading, "", " "), rows, left=(heading, " ")))
    if not forecast.fits:
        complain("It will not fit: give a smaller capacity, or a path on another disk.")
