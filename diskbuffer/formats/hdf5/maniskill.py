"""ManiSkill: `traj_N` with T + 1 observations, and a JSON file beside.

Published at https://maniskill.readthedocs.io, "Datasets: Format"; written by ``mani_skill.utils.wrappers.RecordEpisode``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import SourceError
from diskbuffer.formats.hdf5.files import Hdf5File
from diskbuffer.formats.hdf5.trajectories import FLAGS, Trajectory, TrajectorySource, arrays_in, last_of, not_read, numbered
from diskbuffer.formats.json_files import read_json
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.notes import fitting
from diskbuffer.formats.rows import Repeated
from diskbuffer.formats.untrusted import is_file_beside
from diskbuffer.plugin import Format, Rows, Source

SEED = "episode/seed"
_STATES = "env_states"
_NAMED = {"actions": "action", "rewards": "reward", "terminated": f"{FLAGS}terminated", "truncated": f"{FLAGS}truncated"}
_DERIVED = {"episode_id", "episode_seed", "elapsed_steps", "success", "fail"}  # which arrays and the seed's column tell


def read(path: Path) -> Source:
    """Open a file ``*.h5``, with the ``*.json`` beside it where there is one.

    Raises
    ------
    SourceError
        It is no such file, or is damaged.
    """
    file = Hdf5File(path, "hdf5")
    try:
        sidecar = _sidecar(path.with_suffix(".json"))
        names = numbered(file, file.root, "traj_")
        trajectories = [Trajectory(file, (name,), "", number) for number, name in names]
        episodes = _episodes(path, sidecar, trajectories)
        seeds = {number: one.get("episode_seed") for number, one in episodes.items()}
        seeded = bool(seeds) and all(isinstance(seed, int) and 0 <= seed < 2**64 for seed in seeds.values())
        constant, differing = _constants(list(episodes.values()), seeded)
        fields = {name: value for name, value in sidecar.items() if name != "episodes"}
        metadata, losses = fitting("maniskill", {**fields, **({"each_episode": constant} if constant else {})})
        if differing:
            losses["episode_metadata"] = (
                f"of an episode's metadata a store holds the seed, and these are left out: {', '.join(differing)}"
            )
        losses |= not_read([(file.root, [name for _, name in names])])
        info = sidecar.get("env_info")
        name = info.get("env_id") if isinstance(info, dict) else None

        def arrays(one: Trajectory) -> tuple[dict[str, Rows], set[str]]:
            return _arrays(one, seeds[one.number] if seeded else None)

        return TrajectorySource(
            trajectories,
            arrays,
            _ends,
            environment={"id": name[:500]} if isinstance(name, str) else None,
            metadata=metadata if sidecar else None,
            losses=losses,
        )
    except BaseException:
        file.close()
        raise


def _arrays(trajectory: Trajectory, seed: int | None) -> tuple[dict[str, Rows], set[str]]:
    """Return the arrays of an episode, and the names of what is left out.

    States have as many rows as observations, and are beside them.
    """
    of, left = arrays_in(trajectory.group)
    with_states = any(keys[0] == _STATES for keys in of)
    beside = f"obs/{_STATES}_" if any(keys[:2] == ("obs", _STATES) for keys in of) else f"obs/{_STATES}"
    own = {**_NAMED, "obs": "obs/state" if with_states and ("obs",) in of else "obs", _STATES: beside}
    paths = column_paths(of, own, taken=("episode",))
    columns = {paths[keys]: rows for keys, rows in of.items()}
    if seed is not None and "action" in columns and columns["action"].shape:
        columns[SEED] = Repeated(np.asarray(seed, np.uint64), columns["action"].shape[0])
    return columns, left


def _ends(columns: Mapping[str, Rows], steps: int) -> tuple[bool, bool]:
    return last_of(columns.get(f"{FLAGS}terminated"), steps), last_of(columns.get(f"{FLAGS}truncated"), steps)


def _sidecar(path: Path) -> dict[str, Any]:
    """Return what the file beside says; nothing where there is none."""
    if not is_file_beside(path.parent, path.name):
        return {}
    sidecar = read_json(path)
    if not isinstance(sidecar.get("episodes", []), list):
        raise SourceError(f"{path} is not what ManiSkill writes: expected an object with a list of episodes")
    return sidecar


def _episodes(path: Path, sidecar: Mapping[str, Any], trajectories: list[Trajectory]) -> dict[int, dict[str, Any]]:
    """Return what is noted of the episodes, by number."""
    if "episodes" not in sidecar:
        return {}
    episodes = {
        one["episode_id"]: one for one in sidecar["episodes"] if isinstance(one, dict) and isinstance(one.get("episode_id"), int)
    }
    missing = [one.number for one in trajectories if one.number not in episodes]
    if missing:
        raise SourceError(f"{path.with_suffix('.json')} has no episode {missing[0]}, and {path} has")
    return {one.number: episodes[one.number] for one in trajectories}


def _constants(episodes: list[dict[str, Any]], seeded: bool) -> tuple[dict[str, Any], list[str]]:
    """Return what is the same of all episodes, and the names of what is not and a store has no place for."""
    names = sorted(
        {name for one in episodes for name in one} - _DERIVED | ({"episode_seed"} if episodes and not seeded else set())
    )
    constant, differing = {}, []
    for name in names:
        values = [one.get(name) for one in episodes]
        if all(value == values[0] for value in values):
            constant[name] = values[0]
        elif name != "reset_kwargs" or any(not _is_seed_alone(one) for one in episodes):
            differing.append(name)
    return constant, differing


def _is_seed_alone(episode: Mapping[str, Any]) -> bool:
    """Return whether an episode was reset with its seed, and with nothing else."""
    options = episode.get("reset_kwargs")
    if not isinstance(options, dict):
        return not options
    seed = options.get("seed")
    return not any(value for name, value in options.items() if name != "seed") and seed in (
        None,
        episode.get("episode_seed"),
        [episode.get("episode_seed")],
    )


def _files(path: Path) -> list[Path]:
    """Return what is read: the file, and the one beside it."""
    beside = path.with_suffix(".json")
    return [path, beside] if is_file_beside(path.parent, beside.name) else [path]


MANISKILL = Format("maniskill", "ManiSkill's HDF5: recorded trajectories", read, files=_files)
