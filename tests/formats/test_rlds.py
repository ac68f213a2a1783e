"""RLDS that TFDS has made."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import diskbuffer as db
from diskbuffer.formats import import_
from tests.formats import episodes as made
from tests.formats import interrupted

tfds: Any = pytest.importorskip("tensorflow_datasets")

COLUMNS = {
    "obs/image": db.Column((10, 12, 3), "uint8"),
    "obs/state": db.Column((3,), "float32"),
    "action/arm": db.Column((2,), "float32"),  # TFDS writes float64 as float32
    "reward": db.Column((), "float32"),
    "env_discount": db.Column((), "float32"),
    "skill": db.Column((), "int64"),
}


def png(picture: np.ndarray[Any, Any]) -> io.BytesIO:
    """Return a PNG, which TFDS stores as it is; to make one of an array it needs TensorFlow."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    file.seek(0)
    return file


def make(path: Path, episodes: list[Any], last_counts: bool = False, text: str = "pick it", skill: Any = None) -> Path:
    """Write RLDS of episodes; with `last_counts` the last row is a step, and the final observation is left out."""
    f = tfds.features
    scalar = {name: f.Scalar(np.float32) for name in ("reward", "discount")} | {"skill": skill or f.Scalar(np.int64)}
    flags = {name: f.Scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")}
    observation = {"image": f.Image(shape=(10, 12, 3), encoding_format="png"), "state": f.Tensor(shape=(3,), dtype=np.float32)}
    action = f.FeaturesDict({"arm": f.Tensor(shape=(2,), dtype=np.float32)})
    steps = {"observation": f.FeaturesDict(observation), "action": action, "language": f.Text(), **scalar, **flags}
    features = f.FeaturesDict({"steps": f.Dataset(steps), "about": f.FeaturesDict({"file": f.Text()})})

    with tfds.core.registered.skip_registration():

        class Mine(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
            VERSION = tfds.core.Version("1.0.0")
            pkg_dir_path = path

            def _info(self) -> Any:
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, _: Any) -> Any:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Iterator[Any]:
                for number, one in enumerate(episodes):
                    rows = []
                    for row in range(one.steps + (not last_counts)):
                        is_step, c = row < one.steps, one.columns
                        zero: dict[str, Any] = {"action/arm": np.zeros(2, np.float32), "reward": 0, "env_discount": 0, "skill": 0}
                        of = {name: c[name][row] if is_step else zero[name] for name in zero}
                        last = row == one.steps - last_counts
                        observed = {"image": png(c["obs/image"][row]), "state": c["obs/state"][row]}
                        told: dict[str, Any] = {"observation": observed, "action": {"arm": of["action/arm"]}, "language": text}
                        told |= {"reward": of["reward"], "discount": of["env_discount"], "skill": of["skill"]}
                        ends = one.flag("terminated") or one.flag("truncated")
                        flags = {"is_first": row == 0, "is_last": last and ends, "is_terminal": last and one.flag("terminated")}
                        rows.append({**told, **flags})
                    yield f"{number:04}", {"steps": rows, "about": {"file": f"{number}"}}

    builder = Mine(data_dir=str(path / "data"), file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_dir)


def by_state(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return episodes in an order that does not depend on how TFDS shuffles them."""
    return sorted(found, key=lambda one: float(one["obs/state"][0, 0]))


@pytest.fixture(autouse=True)
def _no_bars() -> None:
    tfds.disable_progress_bar()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_episodes_are_stored_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.read_here(monkeypatch, 3000)
    episodes = made.some(6, 1, COLUMNS, longest=20, tag="pick it")
    path = make(tmp_path, episodes)
    with pytest.raises(db.errors.LossError, match="metadata: about"):
        import_("rlds", path, tmp_path / "store", progress=False)
    import_("rlds", path, tmp_path / "store", allow_loss=["metadata"], progress=False)
    made.assert_same(by_state(made.read(tmp_path / "store")), by_state(made.expected(episodes)))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_last_row_may_be_a_step(tmp_path: Path) -> None:
    episodes = made.some(4, 2, COLUMNS, longest=10)
    path = make(tmp_path, episodes, last_counts=True)
    with pytest.raises(db.errors.SourceError, match="last='step'"):
        import_("rlds", path, tmp_path / "store", allow_loss=["metadata"], progress=False)
    with pytest.raises(db.errors.LossError, match="texts: language"):
        import_("rlds", path, tmp_path / "other", tag="", allow_loss=["metadata"], progress=False)
    import_("rlds", path, tmp_path / "other", last="step", tag="", allow_loss=["metadata", "texts"], progress=False)
    wanted = made.expected(episodes)
    for one in wanted:
        for name in ("obs/image", "obs/state"):
            one[name][-1] = one[name][-2]
    made.assert_same(by_state(made.read(tmp_path / "other")), by_state(wanted))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hostile_data_sets_are_errors(tmp_path: Path) -> None:
    path = make(tmp_path, made.some(2, 3, COLUMNS, longest=5))
    features = (path / "features.json").read_text()
    (record,) = path.glob("*.array_record*")
    data = record.read_bytes()
    damage: dict[str, tuple[Path, list[bytes]]] = {
        "features": (
            path / "features.json",
            [b"{", b"[" * 100_000, b"{}", features.replace("tensorflow_datasets.core.features", "antigravity").encode()],
        ),
        "info": (path / "dataset_info.json", [b"{", b"{}"]),
        "records": (record, [b"", data[: len(data) // 2], data[:2000] + b"xyz" + data[2003:]]),
    }
    for file, contents in damage.values():
        before = file.read_bytes()
        for content in contents:
            file.write_bytes(content)
            with pytest.raises((db.errors.SourceError, db.InputError)):
                import_("rlds", path, tmp_path / "store", allow_loss=["metadata", "texts"], progress=False)
        file.write_bytes(before)
    with pytest.raises(db.errors.SourceError):
        import_("rlds", tmp_path / "missing", tmp_path / "store", progress=False)
    with pytest.raises(db.InputError, match="last must be"):
        import_("rlds", path, tmp_path / "store", last="all", progress=False)


CORE = "tensorflow_datasets.core.features"
STRANGE = "strange_module.Thing"


def nested(feature: dict[str, Any]) -> dict[str, Any]:
    """Return a feature whose content is JSON in a text."""
    return {"pythonClassName": f"{CORE}.features_dict.FeaturesDict", "jsonFeature": {"json": json.dumps({"a": feature})}}


FEATURES: dict[str, dict[str, Any]] = {
    "protobuf's own spelling": {"python_class_name": STRANGE, "text": {}},
    "a text of older JSON": nested({"type": STRANGE, "content": {}}),
    "a text of protobuf's JSON": nested({"python_class_name": STRANGE, "text": {}}),
    "a text in a text": nested(nested({"type": STRANGE, "content": {}})),
    "older JSON": {"type": STRANGE, "content": {}},
    "a text in older JSON": {
        "type": f"{CORE}.sequence_feature.Sequence",
        "proto_cls": "tensorflow_datasets.Sequence",
        "content": json.dumps({"feature": {"python_class_name": STRANGE, "text": {}}}),
    },
    "another module of TFDS": {"pythonClassName": f"{CORE}.feature_test.AnInputConnector", "text": {}},
}


@pytest.mark.parametrize("kind", FEATURES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_module_that_a_data_set_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = make(tmp_path, made.some(1, 3, COLUMNS, longest=3))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "strange_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    before = set(sys.modules)
    features = json.loads((path / "features.json").read_text())
    features["featuresDict"]["features"]["about"] = FEATURES[kind]
    (path / "features.json").write_text(json.dumps(features))
    with pytest.raises(db.errors.SourceError, match="names the class"):
        import_("rlds", path, tmp_path / "store", allow_loss=["metadata", "texts"], progress=False)
    assert not {"strange_module", f"{CORE}.feature_test"} & (set(sys.modules) - before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_file_outside_of_a_data_set_is_opened(tmp_path: Path) -> None:
    path = make(tmp_path, made.some(1, 3, COLUMNS, longest=3))
    (record,) = path.glob("*.array_record*")
    shutil.copy(record, tmp_path / record.name)
    info = json.loads((path / "dataset_info.json").read_text())
    template = info["splits"][0]["filepathTemplate"]
    for name in (f"../{template}", f"{tmp_path}/{template}"):
        info["splits"][0]["filepathTemplate"] = name
        (path / "dataset_info.json").write_text(json.dumps(info))
        with pytest.raises(db.errors.SourceError, match="lies elsewhere"):
            import_("rlds", path, tmp_path / "store", allow_loss=["metadata", "texts"], progress=False)
    features = (path / "features.json").read_text()
    content = {"json": json.dumps({"names_file": "../labels"})}
    labels = json.dumps({"pythonClassName": f"{CORE}.class_label_feature.ClassLabel", "jsonFeature": content})
    for changed in (
        features.replace('"about"', '"../about"'),
        features.replace('"about": {', f'"labels": {labels}, "about": {{'),
    ):
        assert changed != features
        (path / "features.json").write_text(changed)
        with pytest.raises(db.errors.SourceError, match=r"elsewhere|names a file"):
            import_("rlds", path, tmp_path / "store", allow_loss=["metadata", "texts"], progress=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_picture_of_another_size_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = png(np.zeros((3000, 4000, 3), np.uint8)).getvalue()
    monkeypatch.setattr(sys.modules[__name__], "png", lambda _: io.BytesIO(large))
    monkeypatch.setattr(tfds.features.Image, "decode_example_np", lambda *_: pytest.fail("it was decoded"))
    path = make(tmp_path, made.some(1, 3, COLUMNS, longest=3))
    with pytest.raises(db.errors.SourceError, match="a picture is 4000 x 3000, and should be 12 x 10"):
        import_("rlds", path, tmp_path / "store", allow_loss=["metadata", "texts"], progress=False)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_import_that_is_killed_goes_on(tmp_path: Path, any_seed: int) -> None:
    path = make(tmp_path, _to_be_killed())
    # In a process that has not read array_record yet: its threads are not in a fork, and it waits for them or crashes there.
    code = f"from tests.formats.test_rlds import kill_and_finish; kill_and_finish({str(path)!r}, {str(tmp_path)!r}, {any_seed})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd=Path(__file__).parents[2])


def _to_be_killed() -> list[Any]:
    return made.some(12, 4, COLUMNS, longest=20, tag="pick it")


def kill_and_finish(path: str, directory: str, seed: int) -> None:
    """Import what `_to_be_killed` was made into again and again, killed at any call."""
    store, expected = Path(directory) / "store", by_state(made.expected(_to_be_killed()))
    for _ in interrupted.killed_and_finished("import", "rlds", Path(path), store, seed, allow_loss=["metadata"]):
        made.assert_same(by_state(made.read(store)), expected)
