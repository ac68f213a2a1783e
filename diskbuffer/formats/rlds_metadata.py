"""What the metadata of a data set of TFDS name, checked before TFDS imports modules and opens files by these names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from diskbuffer.errors import SourceError
from diskbuffer.formats.json_files import read_json

_CLASSES = frozenset(
    f"tensorflow_datasets.core.features.{name}"
    for name in (
        "bounding_boxes.BBoxFeature",
        "class_label_feature.ClassLabel",
        "dataset_feature.Dataset",
        "features_dict.FeaturesDict",
        "image_feature.Image",
        "scalar.Scalar",
        "sequence_feature.Sequence",
        "tensor_feature.Tensor",
        "text_feature.Text",
    )
)
# Keys of a class's name: protobuf's JSON has two spellings, and data sets of before TFDS 4.5 have the third.
_OF_CLASSES = ("pythonClassName", "python_class_name", "type")


def check_features(path: Path) -> None:
    """Raise a SourceError where ``features.json`` names a class that is none of the usual ones, or a file elsewhere.

    TFDS takes JSON within JSON, too: older data sets and some classes have a text that is parsed in turn. So each text that is
    JSON is looked through as well.
    """
    where = path / "features.json"
    try:
        left: list[Any] = [read_json(where)]
    except OSError as error:
        raise SourceError(f"{path} is no data set of TFDS, as its features.json cannot be read: {error}") from error
    while left:
        one = left.pop()
        if isinstance(one, dict):
            _check_keys(where, one)
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str) and (inner := _parsed(where, one)) is not None:
            left.append(inner)


def _check_keys(where: Path, content: dict[str, Any]) -> None:
    for key in _OF_CLASSES:
        name = content.get(key)
        if isinstance(name, str) and name not in _CLASSES:
            known = ", ".join(sorted(one.rpartition(".")[2] for one in _CLASSES))
            raise SourceError(f"{where} names the class {name[:200]!r}, and only these of TFDS's own features are read: {known}")
    if "names_file" in content:
        raise SourceError(f"{where} names a file of labels; TFDS writes them beside it")
    for key in content:
        if os.path.isabs(key) or ".." in key.split("/"):  # part of the names of files with labels
            raise SourceError(f"{where} has a feature of the name {key[:200]!r}, which would lead to files elsewhere")


def _parsed(where: Path, text: str) -> Any:
    """Return what a text holds that is a JSON object; None where it is none."""
    try:
        return json.loads(text) if "{" in text else None
    except ValueError:
        return None
    except RecursionError as error:
        raise SourceError(f"{where} is damaged: JSON in it is nested too deeply") from error


def check_files(path: Path, instructions: Any) -> None:
    """Raise a SourceError where a split's files, as ``dataset_info.json`` names them, lie elsewhere than in the data set."""
    root = os.path.abspath(path)
    for one in instructions:
        name = os.path.abspath(one.filename)
        if os.path.dirname(name) != root:
            raise SourceError(f"{path}/dataset_info.json names the file {name[:200]!r}, which lies elsewhere")
        if not os.path.isfile(name):
            raise SourceError(f"{name} is missing")
