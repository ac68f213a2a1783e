"""robomimic: `data/demo_N` with observations, next observations, actions, rewards and dones.

Published at https://robomimic.github.io/docs/datasets/overview.html, "Dataset Structure".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.hdf5.files import Hdf5File, Node
from diskbuffer.formats.hdf5.trajectories import (
    FLAGS,
    Following,
    Trajectory,
    TrajectorySource,
    arrays_in,
    last_of,
    not_read,
    numbered,
)
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.notes import fitting
from diskbuffer.plugin import Format, Rows, Source, is_observation

NEXT_OBS = ("check", "last")
_NEXT = "next_obs"
_NAMED = {"obs": "obs", "actions": "action", "rewards": "reward", "dones": f"{FLAGS}dones"}
_OF_DEMOS = {"num_samples"}  # attributes that follow from the arrays


def read(path: Path, *, mask: str | None = None, next_obs: str = "check") -> Source:
    """Open a file.

    Parameters
    ----------
    path : pathlib.Path
    mask : str, optional
        A filter key, such as "train": these demonstrations alone.
    next_obs : {"check", "last"}
        Whether the next observations must be the observations that come after, or only the last of them is read.

    Raises
    ------
    InputError
        There is no such filter key, or an option is wrong.
    SourceError
        It is no such file, or is damaged.
    """
    if next_obs not in NEXT_OBS:
        raise InputError(f"next_obs must be one of {', '.join(NEXT_OBS)}, found {next_obs!r}")
    file = Hdf5File(path, "hdf5")
    try:
        data = file.root.group("data")
        masks = _masks(file)
        if mask is not None and mask not in masks:
            raise InputError(f"{path} has no filter key {mask!r}; it has {', '.join(masks) or 'none'}")
        demos = numbered(file, data, "demo_")
        if mask is not None:
            demos = [(number, name) for number, name in demos if name in masks[mask]]
        names = [name for _, name in demos]
        trajectories = [Trajectory(file, ("data", name), _language(data.group(name)), number) for number, name in demos]
        fields = {name: data.json(name) for name in data.attributes()}
        metadata, losses = fitting("robomimic", fields, masks=masks, demos=names)
        return TrajectorySource(
            trajectories,
            lambda one: arrays(one, check=next_obs == "check"),
            ends,
            environment=environment_of(fields.get("env_args")),
            metadata=metadata,
            losses={
                **losses,
                **attribute_losses(trajectories, _OF_DEMOS),
                **not_read([(file.root, ("data", "mask")), (data, [name for _, name in numbered(file, data, "demo_")])]),
            },
        )
    except BaseException:
        file.close()
        raise


def arrays(trajectory: Trajectory, *, check: bool = True) -> tuple[dict[str, Rows], set[str]]:
    """Return the arrays of a demonstration, and the names of what is left out."""
    of, left = arrays_in(trajectory.group)
    paths = column_paths([keys for keys in of if keys[0] != _NEXT], _NAMED)
    columns = {path: of[keys] for keys, path in paths.items()}
    following = {keys[1:]: rows for keys, rows in of.items() if keys[0] == _NEXT}
    if following:
        for keys, path in paths.items():
            if is_observation(path):
                if keys[1:] not in following:
                    raise SourceError(f"{trajectory.where} has {path!r}, and no next observations of it")
                columns[path] = Following(columns[path], following.pop(keys[1:]), f"{trajectory.where}: {path}", check=check)
    return columns, left | {"/".join((_NEXT, *keys)) for keys in following}


def ends(columns: Mapping[str, Rows], steps: int) -> tuple[bool, bool]:
    """Return the flags of a demonstration's last step: `dones` is all that there is."""
    return last_of(columns.get(f"{FLAGS}dones"), steps), False


def environment_of(env_args: Any) -> dict[str, Any] | None:
    """Return what a store says of the environment."""
    name = env_args.get("env_name") if isinstance(env_args, dict) else None
    return {"id": name[:500]} if isinstance(name, str) else None


def attribute_losses(trajectories: list[Trajectory], known: set[str]) -> dict[str, str]:
    """Return attributes of demonstrations as a loss."""
    names = sorted({name for one in trajectories for name in one.group.attributes()} - known)
    return {"attributes": f"demonstrations have attributes that a store has no place for: {', '.join(names)}"} if names else {}


def _language(demo: Node) -> str:
    """Return what a demonstration was told to do, as RoboCasa notes it."""
    metadata = demo.json("ep_meta")
    language = metadata.get("lang") if isinstance(metadata, dict) else None
    return language if isinstance(language, str) else ""


def _masks(file: Hdf5File) -> dict[str, list[str]]:
    group = file.root.get("mask")
    masks = {}
    for name in group.names() if group is not None else ():
        node = group.get(name) if group is not None else None
        if (
            node is None
            or not node.is_array
            or node.handle.dtype.kind not in "SO"
            or node.handle.is_virtual
            or node.handle.external
        ):
            raise SourceError(f"{file.path}: mask/{name} is no list of demonstrations")
        with file.errors(f"mask/{name}"):
            masks[name] = [one.decode() if isinstance(one, bytes) else str(one) for one in np.ravel(node.handle[()])]
    return masks


ROBOMIMIC = Format("robomimic", "robomimic's HDF5: demonstrations", read)
