"""`diskbuffer check-env`: what a buffer makes of an environment, and what is odd about it."""

from __future__ import annotations

import contextlib

from diskbuffer import check_env as check
from diskbuffer.commands.arguments import Json, Whole
from diskbuffer.commands.output import WELL, WRONG, show_json, show_lines
from diskbuffer.inspect.environments import make
from diskbuffer.plugin import integer


def check_env(
    env: str, /, *, envs: Whole = 1, episodes: Whole = 10, steps: Whole = 1000, seed: Whole = 0, json: Json = False
) -> int:
    """Step an environment, compare what comes out of a store with what went in, and tell what is odd about it.

    Plays at random, through a temporary store. Finds arrays that are used again, stacks of frames, how a vector resets, and
    whether its last observations are real; float64, NaN, rewards and flags of odd shapes, and what a million steps take.
    Exits with 1 where there is a warning; notes are no reason to.

    Parameters
    ----------
    env
        A Gymnasium id (Atari games are made as Gymnasium's AtariPreprocessing has them), or MODULE:FUNCTION, a function without
        arguments that returns an environment with its wrappers, or a vector of them.
    envs
        Environments side by side.
    episodes
        How many episodes to see end, at most, in all.
    steps
        How many steps to make in each environment, at most.
    seed
        For what is played.
    """
    with contextlib.closing(make(env, integer("envs", envs))) as made:
        report = check(made, episodes=episodes, steps=steps, seed=seed)
    if json:
        show_json(report.to_json())
    else:
        show_lines(*f"{env}: {report}".split("\n"))
    return WRONG if any(finding.severity == "warning" for finding in report.findings) else WELL
