"""What of a store goes where in a Minari data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskbuffer import Column
from diskbuffer.errors import InputError
from diskbuffer.formats.minari import metadata as metadata_module
from diskbuffer.formats.minari import names, spaces
from diskbuffer.formats.minari.names import Name
from diskbuffer.formats.minari.spaces import Leaf, Space
from diskbuffer.plugin import Contents, EpisodeData, escape_key, is_observation


@dataclass(frozen=True)
class Info:
    """An info that is written.

    Attributes
    ----------
    name : tuple of str
    path : str
        The column of the steps' values.
    reset : str or None
        The column of the value of `reset`.
    """

    name: Name
    path: str
    reset: str | None


class Plan:
    """What goes where.

    Parameters
    ----------
    contents : Contents
    dataset_id : str, optional
        By default the one that was imported, or one made of the environment's.

    Attributes
    ----------
    columns : mapping of str to Column
        Those that are written.
    observations, actions : space
    leaves : list of (Name, Leaf)
        The parts of both.
    infos : list of Info

    Raises
    ------
    InputError
        There is no single reward a step, or no action; two columns would be called the same; or the id is none.
    """

    def __init__(self, contents: Contents, dataset_id: str | None = None) -> None:
        self._contents = contents
        self.columns = {path: column for path, column in contents.columns.items() if not is_complex(column)}
        if "reward" not in self.columns or self.columns["reward"].shape:
            raise InputError("Minari has one reward a step, and this store has none, or several: choose columns without them")
        if not any(is_observation(path) for path in self.columns) or not any(names.is_action(path) for path in self.columns):
            raise InputError("Minari has observations and actions; choose columns with both")
        self.fields = metadata_module.fields_of(contents.metadata, contents.environment, dataset_id)
        self.observations, self.actions = (self._space(root) for root in ("obs", "action"))
        self.leaves: list[tuple[Name, Leaf]] = [
            *((("observations", *leaf.keys), leaf) for leaf in spaces.leaves(self.observations, "obs")),
            *((("actions", *leaf.keys), leaf) for leaf in spaces.leaves(self.actions, "action")),
        ]
        self.infos = [Info(name, path, self._reset_of(path)) for path, name in names.infos_of(self.columns).items()]
        if len({info.name for info in self.infos}) < len(self.infos):
            raise InputError("two columns have the same name as infos of Minari: 'infos/x' and 'x'; choose one of them")
        theirs = (contents.metadata or {}).get(metadata_module.THEIRS)
        self.statistics = isinstance(theirs, Mapping) and theirs.get("statistics") is True

    def _reset_of(self, path: str) -> str | None:
        reset = names.RESET + path.removeprefix(names.INFOS)
        return reset if path.startswith(names.INFOS) and self.columns.get(reset) == self.columns[path] else None

    def _space(self, root: str) -> Space:
        """Return a space: as it was imported, as the environment has it, or as wide as the columns, by what fits these."""
        of = {path: column for path, column in self.columns.items() if path == root or path.startswith(f"{root}/")}
        name = "observation_space" if root == "obs" else "action_space"
        for space in (self._imported(name), self._described(name, root)):
            if space is not None and _fits(space, root, of):
                return space
        return spaces.from_columns(of, root)

    def _imported(self, name: str) -> Space | None:
        if not isinstance(self.fields.get(name), str):
            return None
        try:
            return spaces.parse(self.fields[name], name)
        except OSError:
            return None

    def _described(self, name: str, root: str) -> Space | None:
        described = (self._contents.environment or {}).get(name)
        return None if described is None else spaces.from_description(described, self.columns, root)

    def metadata(self, episodes: int, steps: int, size: int) -> dict[str, Any]:
        """Return what the data set says of itself."""
        contents = self._contents
        ours = {
            "metadata": contents.metadata,
            "environment": contents.environment,
            "n_envs": contents.n_envs,
            "frame_stack": contents.frame_stack,
            "padding": contents.padding,
            "derived": sorted(contents.derived & self.columns.keys()),
            "allow_nan": [path for path, column in self.columns.items() if column.allow_nan],
            "infos": {"/".join(escape_key(key) for key in info.name[1:]): info.path for info in self.infos if info.reset is None},
        }
        return {
            **self.fields,
            "observation_space": json.dumps(spaces.expand(self.observations)),
            "action_space": json.dumps(spaces.expand(self.actions)),
            "data_format": "hdf5",
            "total_episodes": episodes,
            "total_steps": steps,
            "dataset_size": round(size / 1e6, 1),
            metadata_module.OURS: ours,
        }

    def episode_metadata(self, number: int, episode: EpisodeData) -> dict[str, Any]:
        """Return an episode's metadata."""
        metadata: dict[str, Any] = {
            name: value for name, value in episode.values.items() if name not in metadata_module.OWN_NAMES
        }
        metadata |= {"id": number, "total_steps": episode.steps}
        columns = episode.columns
        if names.SEED in columns and (names.SEEDED not in columns or bool(columns[names.SEEDED][0:1][0])):
            metadata["seed"] = int(columns[names.SEED][0:1][0])
        if self.statistics:
            rewards = np.asarray(columns["reward"][0 : episode.steps])
            for name in metadata_module.STATISTICS:
                metadata[f"rewards_{name}"] = float(getattr(rewards, name)())
        ours = {"tag": episode.tag} if episode.tag else {}
        if self._contents.n_envs > 1:
            ours["stream"] = episode.stream  # type: ignore[assignment]
        return metadata | ({metadata_module.OURS: ours} if ours else {})


def is_complex(column: Column) -> bool:
    """Return whether a column is of complex numbers, which no space is of."""
    return column.np_dtype.kind == "c"


def _fits(space: Space, root: str, columns: Mapping[str, Column]) -> bool:
    """Return whether columns are those of a space."""
    leaves = spaces.leaves(space, root)
    return {leaf.path for leaf in leaves} == columns.keys() and all(
        spaces.is_column(leaf) and leaf.shape == columns[leaf.path].shape for leaf in leaves
    )
