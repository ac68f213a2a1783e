"""What a Minari data set says of itself, `metadata.json`; and what of it a store keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.json_files import read_json
from diskbuffer.formats.minari import spaces
from diskbuffer.formats.minari.names import Name
from diskbuffer.formats.minari.spaces import Space
from diskbuffer.formats.notes import fitting
from diskbuffer.plugin import is_sane

FILE = "metadata.json"
VERSION = "0.5.4"  # of Minari, the first that can be told not to expect JPEG in the place of pictures
OURS = "diskbuffer"  # the key of what is not Minari's own, in a data set's metadata and in an episode's
THEIRS = "minari"  # the key of Minari's metadata, in a store's
STATISTICS = ("sum", "mean", "std", "max", "min")  # of an episode's rewards, which Minari's collector notes of each
OWN_NAMES = {"id", "total_steps", "seed", OURS, *(f"rewards_{name}" for name in STATISTICS)}  # in an episode's metadata
_COUNTED = ("total_episodes", "total_steps", "dataset_size")  # which follow from the episodes
_ID = re.compile(r"(?:[-_\w][-_\w/]*[-_\w]+/)?[-_\w]+?-v\d+")  # as Minari has it: (namespace/)name-v0


@dataclass(frozen=True)
class DatasetMetadata:
    """The metadata of a data set.

    Attributes
    ----------
    fields : dict
        As they are in the file.
    observation_space, action_space : mapping
    data_format : str
        "hdf5", "arrow" or "parquet".
    ours : dict
        What our own export noted; empty in others' data sets.
    """

    fields: dict[str, Any]
    observation_space: Space
    action_space: Space
    data_format: str
    ours: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeHeader:
    """The length, the metadata and the names of the infos of an episode.

    Attributes
    ----------
    steps : int
    metadata : mapping
        As Minari returns it: "seed", "options", and what a user added.
    infos : frozenset of tuples of str
        Names of what there is for each step beside observations, actions and rewards.
    final : bool
        Whether there is an observation after the last step.
    """

    steps: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    infos: frozenset[Name] = frozenset()
    final: bool = True


def read(directory: Path) -> DatasetMetadata:
    """Read the metadata in a data set's directory; a SourceError where there is none, or it is damaged."""
    path = directory / FILE
    try:
        fields = read_json(path)
    except FileNotFoundError:
        raise SourceError(f"{directory} is no data set of Minari: there is no {FILE} in it") from None
    missing = [name for name in ("observation_space", "action_space", "data_format") if not isinstance(fields.get(name), str)]
    if missing:
        advice = "; data sets of Minari before 0.5 have spaces in env_spec alone: open them with Minari, and save them again"
        raise SourceError(f"{path} has no {', '.join(missing)}{advice if 'data_format' not in missing else ''}")
    ours = fields.get(OURS)
    return DatasetMetadata(
        fields,
        spaces.parse(fields["observation_space"], f"{path}: observation_space"),
        spaces.parse(fields["action_space"], f"{path}: action_space"),
        fields["data_format"],
        ours if isinstance(ours, dict) else {},
    )


# What a store keeps


def kept(dataset: DatasetMetadata, statistics: bool) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return a store's metadata of a data set, and what of it is too large for that, as a loss."""
    if OURS in dataset.fields:
        stored = dataset.ours.get("metadata")
        return (stored if is_sane(stored) and isinstance(stored, dict) else None), {}
    fields = {name: value for name, value in dataset.fields.items() if name not in _COUNTED}
    for name, space in (("observation_space", dataset.observation_space), ("action_space", dataset.action_space)):
        fields[name] = json.dumps(spaces.compact(space))
    return fitting(THEIRS, fields, statistics=statistics)


def environment(dataset: DatasetMetadata) -> dict[str, Any] | None:
    """Return what a store says of the environment of a data set."""
    if OURS in dataset.fields:
        stored = dataset.ours.get("environment")
        return stored if is_sane(stored) and isinstance(stored, dict) else None
    described: dict[str, Any] = {
        "observation_space": spaces.describe(dataset.observation_space),
        "action_space": spaces.describe(dataset.action_space),
    }
    spec = dataset.fields.get("env_spec")
    try:
        name = json.loads(spec).get("id") if isinstance(spec, str) else None
    except (ValueError, AttributeError, RecursionError):
        name = None
    if isinstance(name, str):
        described["id"] = name[:500]
    if not is_sane(described):
        described = {name: value for name, value in described.items() if name == "id"}
    return described


# What an export says


def fields_of(
    metadata: Mapping[str, Any] | None, environment: Mapping[str, Any] | None, dataset_id: str | None
) -> dict[str, Any]:
    """Return the metadata of a data set from what a store says, without spaces and counts; an InputError for a wrong id."""
    theirs = (metadata or {}).get(THEIRS)
    known = theirs.get("dataset") if isinstance(theirs, dict) else None
    fields = dict(known) if isinstance(known, dict) else {}
    if dataset_id is not None or not isinstance(fields.get("dataset_id"), str):
        of = str((environment or {}).get("id") or "steps").rsplit("/", 1)[-1]
        name = re.sub(r"[^\w-]+", "-", re.sub(r"-v\d+$", "", of), flags=re.ASCII).strip("-").lower() or "steps"
        fields["dataset_id"] = f"diskbuffer/{name}-v0" if dataset_id is None else dataset_id
    if not isinstance(fields["dataset_id"], str) or not _ID.fullmatch(fields["dataset_id"]):
        raise InputError(f"dataset_id must be as Minari has it, such as 'mine/pong/expert-v0', found {fields['dataset_id']!r}")
    return {**fields, "minari_version": VERSION, "jpeg_encoding": False}


def size_of(directory: Path) -> int:
    """Return how many bytes the files in a directory have."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
