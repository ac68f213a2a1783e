"""RLDS: data sets of TFDS whose examples are episodes, in files of ArrayRecord. TensorFlow is not needed."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats.naming import column_paths
from diskbuffer.formats.rlds_metadata import check_features, check_files
from diskbuffer.formats.rows import RowRange, column_of
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows, format_option, is_observation, require

_FLAGS = ("is_first", "is_last", "is_terminal")
_PICTURES = ("PNG", "JPEG", "BMP")
_NAMED = {"observation": "obs", "action": "action", "reward": "reward", "discount": "env_discount"}


class RLDSSource:
    """Read one split of a data set that TFDS prepared.

    Parameters
    ----------
    path : pathlib.Path
        The directory of a version, which has ``features.json``.
    split : str
        Which part: "train", or, as TFDS has it, "train[:100]".
    last : {"final", "step"}, optional
        What an episode's last row is: its final observation, and nothing else counts, as RLDS defines it; or a step like all
        others, whose final observation is not known, as in many data sets of robots. By default it is the final observation,
        and it is an error if it has a reward.
    tag : str, optional
        Which text becomes the tag of its episode; by default the only one that steps have. "" for none.
    """

    def __init__(self, path: Path, *, split: str = "train", last: str | None = None, tag: str | None = None) -> None:
        if last not in (None, "final", "step"):
            raise InputError(f"last must be 'final' or 'step', found {last!r}")
        check_features(path)
        tfds = require("tensorflow_datasets", "tensorflow-datasets", "rlds", "reading RLDS")
        self._path, self._last = path, last
        try:
            builder = tfds.builder_from_directory(path)
            features = builder.info.features
            check_files(path, tfds.core.splits.SplitDict(split_infos=builder.info.splits.values())[split].file_instructions)
            self._episodes: Any = builder.as_data_source(split, decoders=_undecoded(tfds, features) or None)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(
                f"{path} cannot be read as a data set of TFDS: {type(error).__name__}: {error}. Files must be of ArrayRecord: "
                "tfds.core.convert_format, or `tfds convert_format`, makes them of TFRecord"
            ) from error
        if "steps" not in features or not hasattr(features["steps"], "feature"):
            raise SourceError(f"{path} is no RLDS: its examples have {', '.join(features)}, and should have steps")
        leaves = dict(_leaves(features["steps"].feature, ()))
        texts = ["/".join(key) for key, leaf in leaves.items() if np.dtype(leaf.np_dtype) == object]
        self._tag = (texts[0] if len(texts) == 1 else "") if tag is None else tag
        if self._tag and self._tag not in texts:
            raise InputError(f"there is no text {tag!r} of steps in {path}; there are {', '.join(texts) or 'none'}")
        self.losses: Mapping[str, str] = _losses(features, leaves, [text for text in texts if text != self._tag])
        self._keys = _columns(leaves, path)
        self._pictures = {key: leaf for key, leaf in leaves.items() if isinstance(leaf, tfds.features.Image)}
        columns = {at: column_of(_Shape(leaves[key]), path, "/".join(key)) for at, key in self._keys.items()}
        self.contents = Contents(columns, len(self._episodes), final=last != "step", tags=bool(self._tag))

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes."""
        for number in range(len(self._episodes)):
            try:
                steps = _Steps(self._episodes[number]["steps"], f"{self._path}: episode {number}")
            except Exception as error:
                raise SourceError(f"{self._path}: episode {number} is damaged: {type(error).__name__}: {error}") from error
            yield self._episode(number, steps)

    def _episode(self, number: int, steps: _Steps) -> EpisodeData:
        where = f"{self._path}: episode {number}"
        if len(steps) < (1 if self._last == "step" else 2):
            raise SourceError(f"{where} has {len(steps)} rows, and no step")
        end = steps.some(len(steps) - 1, len(steps))[0]
        if self._last is None and np.any(end.get("reward", 0)):
            raise SourceError(
                f"{where} has a reward in its last row. If that row is a step like all others: {format_option('last', 'step')}; "
                f"if it is only the final observation, as RLDS defines it: {format_option('last', 'final')}"
            )
        n = len(steps) - (self._last != "step")
        columns: dict[str, Rows] = {}
        for path, key in self._keys.items():
            column = self.contents.columns[path]
            rows = _Rows(steps, key, column.shape, column.np_dtype, self._pictures.get(key))
            columns[path] = rows if is_observation(path) else RowRange(rows, 0, n)
        terminal = bool(end.get("is_terminal", False))
        for flag, value in (("terminated", terminal), ("truncated", bool(end.get("is_last", True)) and not terminal)):
            flags = np.zeros(n, bool)
            flags[-1] = value
            columns[flag] = flags
        return EpisodeData(columns, n, _text(steps, self._tag.split("/"), where) if self._tag else "")

    def close(self) -> None:
        """Close the files."""
        self._episodes = ()


class _Steps:
    """The steps of an episode, decoded when they are asked for. The last ones are kept, for each column asks for them."""

    def __init__(self, steps: Sequence[Mapping[str, Any]], where: str) -> None:
        self._steps, self._where = steps, where
        self._kept: tuple[int, list[Mapping[str, Any]]] = (0, [])

    def __len__(self) -> int:
        return len(self._steps)

    def some(self, first: int, last: int) -> list[Mapping[str, Any]]:
        """Return steps from `first` to before `last`."""
        begin, kept = self._kept
        if not begin <= first <= last <= begin + len(kept):
            try:
                known = {begin + at: step for at, step in enumerate(kept)}
                kept = [known[at] if at in known else self._steps[at] for at in range(first, last)]
            except Exception as error:
                raise SourceError(f"{self._where} is damaged: {type(error).__name__}: {error}") from error
            begin = first
            self._kept = (begin, kept)
        return kept[first - begin : last - begin]


class _Rows:
    """A column of an episode; `picture` is the feature where it is of encoded pictures."""

    def __init__(
        self, steps: _Steps, key: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype[Any], picture: Any = None
    ) -> None:
        self._steps, self._key, self._picture = steps, key, picture
        self.shape, self.dtype = (len(steps), *shape), dtype

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(self.shape[0])
        values = np.empty((max(0, last - first), *self.shape[1:]), self.dtype)
        for at, step in enumerate(self._steps.some(first, max(first, last))):
            value = np.asarray(_at(step, self._key) if self._picture is None else self._decoded(_at(step, self._key)))
            if value.shape != self.shape[1:] or value.dtype != self.dtype:
                raise SourceError(
                    f"{'/'.join(self._key)} should be {self.dtype}{list(self.shape[1:])}, and is {value.dtype}{list(value.shape)}"
                )
            values[at] = value
        return values

    def _decoded(self, encoded: Any) -> Any:
        """Return a picture, which is decoded once its header says that it has the right size."""
        image, (height, width) = require("PIL.Image", "pillow", "rlds", "pictures in RLDS"), self.shape[1:3]
        where = "/".join(self._key)
        try:
            with warnings.catch_warnings():  # of huge sizes, which are refused below
                warnings.simplefilter("ignore")
                size = image.open(io.BytesIO(encoded), formats=_PICTURES).size
            if size != (width, height):
                raise SourceError(f"{where}: a picture is {size[0]} x {size[1]}, and should be {width} x {height}")
            return self._picture.decode_example_np(encoded)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{where}: a picture is damaged: {error}") from error


class _Shape:
    """What a feature's rows are, of which there are none."""

    def __init__(self, feature: Any) -> None:
        self.shape, self.dtype = (0, *(int(n) for n in feature.shape)), np.dtype(feature.np_dtype)

    def __getitem__(self, _: slice) -> npt.NDArray[Any]:
        return np.empty(self.shape, self.dtype)


def _undecoded(tfds: Any, feature: Any) -> dict[str, Any]:
    """Return which features TFDS should leave encoded: pictures, which it would decode whatever their size.

    Those in sequences within a step are not among them, as it has no way to leave these encoded.
    """
    decoders: dict[str, Any] = {}
    for name, inner in feature.items():
        plain = inner.feature if isinstance(inner, tfds.features.Dataset) else inner  # the steps are a Dataset
        if isinstance(plain, tfds.features.FeaturesDict):
            decoders[name] = _undecoded(tfds, plain)
        elif isinstance(plain, tfds.features.Image):
            decoders[name] = tfds.decode.SkipDecoding()
    return {name: inner for name, inner in decoders.items() if inner != {}}


def _leaves(feature: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in feature.items():
        if hasattr(inner, "items"):
            yield from _leaves(inner, (*key, name))
        else:
            yield (*key, name), inner


def _columns(leaves: Mapping[tuple[str, ...], Any], path: Path) -> dict[str, tuple[str, ...]]:
    """Return where in a step each column is."""
    keys = [key for key, leaf in leaves.items() if key[0] not in _FLAGS and _is_array(leaf)]
    own = {name: path for name, path in _NAMED.items() if any(key[0] == name for key in keys)}
    columns = {path: key for key, path in column_paths(keys, own).items()}
    obs = [at for at in columns if is_observation(at)]
    if not obs:
        raise SourceError(f"{path} has no observations: its steps have {', '.join('/'.join(key) for key in leaves)}")
    return columns


def _is_array(leaf: Any) -> bool:
    shape = leaf.shape
    known = isinstance(shape, tuple) and all(isinstance(n, int | np.integer) for n in shape)
    return known and not isinstance(leaf.np_dtype, dict) and np.dtype(leaf.np_dtype).kind in "biufc"


def _losses(features: Any, leaves: Mapping[tuple[str, ...], Any], texts: list[str]) -> dict[str, str]:
    lost = {}
    if texts:
        lost["texts"] = f"{', '.join(texts)}: texts of steps; one of them can be the tag, with the option tag="
    others = [key for key, leaf in leaves.items() if not _is_array(leaf) and np.dtype(leaf.np_dtype) != object]
    if others:
        lost["others"] = f"{', '.join('/'.join(key) for key in others)}: no arrays of one shape"
    metadata = [name for name in features if name != "steps"]
    if metadata:
        lost["metadata"] = f"{', '.join(metadata)}: what is told of episodes"
    return lost


def _text(steps: _Steps, key: list[str], where: str) -> str:
    """Return the text that all steps have."""
    texts = {_at(step, tuple(key)) for step in (*steps.some(0, 1), *steps.some(len(steps) - 1, len(steps)))}
    if len(texts) > 1:
        raise SourceError(
            f"{where}: {'/'.join(key)} is not the same in all steps, and cannot be a tag: {format_option('tag', '')}"
        )
    text = texts.pop()
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _at(step: Any, key: tuple[str, ...]) -> Any:
    for name in key:
        step = step[name]
    return step


RLDS = Format("rlds", "RLDS, data sets of TFDS in ArrayRecord files", RLDSSource)
