"""A Minari data set as a source of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.errors import InputError, LossError, SchemaError, SourceError
from diskbuffer.formats.minari import metadata as metadata_module
from diskbuffer.formats.minari import names
from diskbuffer.formats.minari.arrow_layout import ArrowEpisodes
from diskbuffer.formats.minari.hdf5_layout import Hdf5Episodes
from diskbuffer.formats.minari.metadata import EpisodeHeader
from diskbuffer.formats.minari.names import Name
from diskbuffer.formats.minari.spaces import Leaf, is_column, leaves
from diskbuffer.formats.rows import Repeated, RowRange
from diskbuffer.plugin import Contents, EpisodeData, Rows, counted, format_option, is_observation, values_that_fit

_SHOWN = 10


class MinariSource:
    """Read a data set.

    Parameters
    ----------
    path : pathlib.Path
        Of the data set, or the directory ``data`` in it.
    flags : {"strict", "last"}
        What to do where ``terminations`` or ``truncations`` are True before an episode's last step, which a store cannot hold:
        raise a LossError, or go by those of the last step.

    Raises
    ------
    SourceError
        It is none, or is damaged.
    """

    def __init__(self, path: Path, *, flags: str = "strict") -> None:
        if flags not in ("strict", "last"):
            raise InputError(f"flags must be 'strict' or 'last', found {flags!r}")
        directory = path / "data" if (path / "data").is_dir() else path
        self._strict, self._path = flags == "strict", directory
        self._metadata = metadata_module.read(directory)
        self._episodes = _open(directory, self._metadata.data_format)
        try:
            self._begin()
        except BaseException:
            self._episodes.close()
            raise

    def _begin(self) -> None:
        self._leaves = _leaves(self._metadata)
        total = self._metadata.fields.get("total_episodes", self._episodes.episodes)
        if total != self._episodes.episodes or not total:
            raise SourceError(f"{self._path} should have {total} episodes, and has {self._episodes.episodes}")
        self._headers = [self._episodes.header(number) for number in range(self._episodes.episodes)]
        wrong = next((number for number, header in enumerate(self._headers) if header.steps < 1), None)
        if wrong is not None:
            raise SourceError(f"{self._path}: episode {wrong} has no steps")
        first = self._headers[0]
        everywhere = frozenset.intersection(*(header.infos for header in self._headers))
        arrays = self._episodes.read(0, self._leaves, sorted(everywhere))
        self._columns: dict[str, Column] = {leaf.path: _column(arrays[name], leaf.path) for name, leaf in self._leaves.items()}
        self._columns["reward"] = _column(arrays["rewards",], "reward")
        self._with_reset = self._infos(arrays, everywhere, first.steps)
        self._seeds()
        for path in _texts(self._metadata.ours, "allow_nan"):
            if path in self._columns:
                self._columns[path] = replace(self._columns[path], allow_nan=True)
        self._losses()

    def _infos(self, arrays: Mapping[Name, Rows], everywhere: frozenset[Name], steps: int) -> dict[Name, bool]:
        """Find out which infos are columns, and which of these have one of `reset`."""
        exported = self._metadata.ours.get("infos")
        own = exported if isinstance(exported, dict) else {}
        self._names = {str(key): str(value) for key, value in own.items()}
        known: dict[Name, bool] = {}
        for name in sorted(everywhere):
            rows = arrays.get(name)
            path = names.column_of(name, self._names)
            if rows is None or not rows.shape or rows.shape[0] not in (steps, steps + 1):
                continue
            try:
                column = _column(rows, path)
            except SourceError:
                continue
            if path in self._columns:
                raise SourceError(
                    f"{self._path}: {'/'.join(name)} would be the column {path!r}, as diskbuffer noted in metadata.json, and so "
                    "would another array"
                )
            known[name] = rows.shape[0] == steps + 1 and path not in self._names.values()
            self._columns[path] = column
            if known[name]:
                self._columns[names.RESET + path.removeprefix(names.INFOS)] = column
        return known

    def _seeds(self) -> None:
        seeds = [header.metadata.get("seed") for header in self._headers]
        self._large_seeds = any(seed is not None and not _is_seed(seed) for seed in seeds)
        if any(_is_seed(seed) for seed in seeds):
            self._columns[names.SEED] = Column((), "uint64")
            if not all(_is_seed(seed) for seed in seeds):
                self._columns[names.SEEDED] = Column((), "bool")

    def _losses(self) -> None:
        self.losses: dict[str, str] = {}
        kept, losses = metadata_module.kept(self._metadata, "rewards_sum" in self._headers[0].metadata)
        self._kept = kept
        self.losses.update(losses)
        texts = [leaf.path for leaf in _all_leaves(self._metadata) if not is_column(leaf)]
        if texts:
            self.losses["text"] = f"a column holds booleans and numbers, and these are left out: {', '.join(texts)}"
        left = frozenset.union(*(header.infos for header in self._headers)) - self._with_reset.keys()
        if left:
            shown = ", ".join("/".join(name[1:]) for name in sorted(left)[:_SHOWN])
            self.losses["infos"] = (
                "a column has a number, or an array of one shape, for each step of each episode; these infos have not, and are "
                f"left out: {shown}"
            )
        without = [number for number, header in enumerate(self._headers) if not header.final]
        if without:
            self.losses["final_obs"] = (
                f"the observation after the last step is missing in {counted(len(without), 'episode')}, first in number "
                f"{without[0]}: its next_obs would be the observation before it"
            )
        theirs = [
            {key: value for key, value in header.metadata.items() if key not in metadata_module.OWN_NAMES}
            for header in self._headers
        ]
        self._values, more = values_that_fit(theirs)
        more |= {"seed"} if self._large_seeds else set()
        if more:
            self.losses["episode_metadata"] = (
                "of an episode's metadata a store holds the seed, and truths, numbers and texts, of one kind in all episodes; "
                f"these are left out: {', '.join(sorted(more)[:_SHOWN])}"
            )

    @property
    def contents(self) -> Contents:
        """What there is."""
        ours = self._metadata.ours
        n_envs, frame_stack = _number(ours, "n_envs", 2**16), _number(ours, "frame_stack", 2**8)
        return Contents(
            self._columns,
            len(self._headers),
            sum(header.steps for header in self._headers),
            environment=metadata_module.environment(self._metadata),
            metadata=self._kept,
            n_envs=n_envs,
            frame_stack=frame_stack,
            derived=frozenset(path for path in _texts(ours, "derived") if path in self._columns),
            final=all(header.final for header in self._headers),
            padding="zeros" if ours.get("padding") == "zeros" else "first",
            tags=any(_own(header).get("tag") for header in self._headers),
            values=tuple(sorted({name for row in self._values for name in row})),
        )

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes, in the order of their numbers."""
        streams = self.contents.n_envs
        for number, header in enumerate(self._headers):
            arrays = self._episodes.read(number, self._leaves, self._with_reset.keys())
            columns = {leaf.path: arrays[name] for name, leaf in self._leaves.items()}
            columns["reward"] = arrays["rewards",]
            for flag, name in (("terminated", "terminations"), ("truncated", "truncations")):
                columns[flag] = self._flag(number, arrays[name,], header.steps)
            self._add_infos(number, columns, arrays)
            self._add_seed(columns, header)
            for path, rows in columns.items():
                if not rows.shape or rows.shape[0] not in (
                    (header.steps, header.steps + 1) if is_observation(path) else (header.steps,)
                ):
                    raise SourceError(
                        f"{self._path}: episode {number} has {counted(header.steps, 'step')}, and its {path} has the shape "
                        f"{list(rows.shape)}"
                    )
            own = _own(header)
            tag, stream = own.get("tag", ""), own.get("stream", 0)
            if not isinstance(tag, str) or not isinstance(stream, int) or not 0 <= stream < streams:
                raise SourceError(f"{self._path}: episode {number} has the tag {tag!r} and the stream {stream!r}")
            yield EpisodeData(columns, header.steps, tag, stream, values=self._values[number])

    def _add_infos(self, number: int, columns: dict[str, Rows], arrays: Mapping[Name, Rows]) -> None:
        steps = self._headers[number].steps
        for name, with_reset in self._with_reset.items():
            path = names.column_of(name, self._names)
            rows = arrays.get(name)
            if rows is None:
                raise SourceError(f"{self._path}: {'/'.join(name)} of episode {number} is no array of numbers")
            if rows.shape and rows.shape[0] == steps + 1:
                columns[path] = RowRange(rows, 1, steps + 1)
                if with_reset:
                    columns[names.RESET + path.removeprefix(names.INFOS)] = Repeated(np.asarray(rows[0:1])[0, ...], steps)
            elif not with_reset:
                columns[path] = rows
            else:
                raise SourceError(
                    f"{self._path}: {'/'.join(name)} of episode {number} has the shape {list(rows.shape)}, and of "
                    f"{counted(steps, 'step')} should have one row more"
                )

    def _add_seed(self, columns: dict[str, Rows], header: EpisodeHeader) -> None:
        if names.SEED not in self._columns:
            return
        seed = header.metadata.get("seed")
        has_seed = _is_seed(seed)
        columns[names.SEED] = Repeated(np.asarray(seed if has_seed else 0, np.uint64), header.steps)
        if names.SEEDED in self._columns:
            columns[names.SEEDED] = Repeated(np.asarray(has_seed), header.steps)

    def _flag(self, number: int, rows: Rows, steps: int) -> Rows:
        """Return flags, of which only the last may be True."""
        if rows.shape != (steps,) or rows.dtype.kind not in "biu":
            raise SourceError(
                f"{self._path}: flags of episode {number} are {rows.dtype}{list(rows.shape)}, and should be a boolean a step"
            )
        values: npt.NDArray[Any] = np.array(rows[0:steps]).astype(bool)
        if values[:-1].any():
            if self._strict:
                raise LossError(
                    f"{self._path}: episode {number} terminates or truncates at step {int(values.argmax())} of {steps}, and in a "
                    "store only the last step can. To go by the last step alone: "
                    f"{format_option('flags', 'last')}"
                )
            values[:-1] = False
        return values

    def close(self) -> None:
        """Close files."""
        self._episodes.close()


def _open(directory: Path, data_format: str) -> Hdf5Episodes | ArrowEpisodes:
    if data_format == "hdf5":
        return Hdf5Episodes(directory)
    if data_format in ("arrow", "parquet"):
        return ArrowEpisodes(directory, data_format)
    raise SourceError(f"{directory} is in Minari's layout {data_format[:50]!r}, and hdf5, arrow and parquet can be read")


def _all_leaves(dataset: metadata_module.DatasetMetadata) -> list[Leaf]:
    return [*leaves(dataset.observation_space, "obs"), *leaves(dataset.action_space, "action")]


def _leaves(dataset: metadata_module.DatasetMetadata) -> dict[Name, Leaf]:
    known = {}
    for leaf in _all_leaves(dataset):
        if is_column(leaf):
            known["observations" if is_observation(leaf.path) else "actions", *leaf.keys] = leaf
    if not any(name[0] == "observations" for name in known):
        raise SourceError("the data set has no observations that a column can hold: its space is of texts alone")
    return known


def _column(rows: Rows, path: str) -> Column:
    if not rows.shape:
        raise SourceError(f"{path} is a single value, and should be a row a step")
    try:
        return Column(tuple(rows.shape[1:]), rows.dtype)
    except SchemaError as error:
        raise SourceError(f"{path} cannot be a column: {error}") from error


def _is_seed(seed: Any) -> bool:
    return isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**64


def _own(header: EpisodeHeader) -> Mapping[str, Any]:
    ours = header.metadata.get(metadata_module.OURS)
    return ours if isinstance(ours, Mapping) else {}


def _number(ours: Mapping[str, Any], name: str, most: int) -> int:
    value = ours.get(name, 1)
    return value if isinstance(value, int) and 1 <= value <= most else 1


def _texts(ours: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts that our export noted."""
    texts = ours.get(name)
    return [one for one in texts if isinstance(one, str)] if isinstance(texts, list) else []
