"""Values of episodes, and other programs: what has a place there comes back, and what has none is named."""

from __future__ import annotations

import json
import math
import tarfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.errors import LossError, SchemaError, SourceError
from diskbuffer.formats import export, formats, import_
from diskbuffer.formats.registry import find
from diskbuffer.plugin import Reader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    minari = pytest.importorskip("minari")
from minari.data_collector import EpisodeBuffer

COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float32")}
VALUES: dict[str, list[Any]] = {
    "success": [True, None, False, True],
    "score": [0.1, -2.5, None, 1e300],
    "attempt": [1, 2**62, -3, None],
    "instruction": ["fold the towel", None, "ünïcode \N{ROBOT FACE} \n\t\"'", "x" * 5000],
}
LOSSES = ["final_obs", "derived"]


def store(path: Path, values: dict[str, list[Any]] = VALUES, tag: str | None = None, **options: Any) -> Path:
    with db.ReplayBuffer(path, columns=COLUMNS, n_envs=2, autoreset="disabled", flush_every=None, **options) as buffer:
        for number in range(4):
            rng, steps = np.random.default_rng(number), 3 + number
            obs, action = rng.normal(size=(steps + 1, 3)).astype("f4"), rng.normal(size=(steps, 2)).astype("f4")
            buffer.extend(
                obs=obs, action=action, reward=np.ones(steps), terminated=np.arange(steps) == steps - 1, env=number // 2
            )
        buffer.episodes.set_values(**values)
        if tag is not None:
            buffer.episodes.set_tag(tag)
    return path


def told(path: Path) -> list[tuple[int, str, dict[str, Any]]]:
    """Return the length, the tag and the values of each episode."""
    table = Reader(path).episodes()
    of_each = [(int(table.length[row]), str(table.tag[row]), table.values_of(row)) for row in range(len(table))]
    return sorted(of_each, key=str)


@pytest.mark.parametrize("format", ["lerobot", "minari"])
@pytest.mark.parametrize("tag", [None, "demonstration"])
def test_values_come_back(format: str, tag: str | None, tmp_path: Path) -> None:
    path = store(tmp_path / "store", tag=tag)
    target = export(format, path, tmp_path / "target", allow_loss=LOSSES, progress=False)
    back = import_(format, target, tmp_path / "back", allow_loss=LOSSES, progress=False)
    assert told(back) == told(path)
    assert told(path)[3] == (6, tag or "", {"success": True, "score": 1e300, "instruction": "x" * 5000})


@pytest.mark.parametrize(
    "format", sorted(name for name, each in zip(formats(), map(find, formats()), strict=True) if each.write and not each.values)
)
def test_a_format_without_a_place_for_them_says_so(format: str, tmp_path: Path) -> None:
    path = store(tmp_path / "store")
    with pytest.raises(LossError, match=r"values: .*attempt, instruction, score, success"):
        export(format, path, tmp_path / "target", allow_loss=LOSSES, progress=False)


def test_webdataset_has_them_in_its_json(tmp_path: Path) -> None:
    target = export("webdataset", store(tmp_path / "store"), tmp_path / "target", allow_loss=LOSSES, progress=False)
    with tarfile.open(next(target.rglob("*.tar"))) as tar:
        found = [json.load(tar.extractfile(name)).get("values") for name in tar.getnames() if name.endswith(".json")]  # type: ignore[arg-type]
    assert sorted(found, key=len) == sorted((values for *_, values in told(tmp_path / "store")), key=len)


def test_lerobot_calls_a_task_by_the_instruction_and_its_tasks_become_instructions(tmp_path: Path) -> None:
    values = {"instruction": ["pick", "x" * 300, None, ""]}
    target = export(
        "lerobot", store(tmp_path / "store", values, tag="a tag"), tmp_path / "data", allow_loss=LOSSES, progress=False
    )
    table = pytest.importorskip("pyarrow.parquet").read_table(next((target / "meta/episodes").rglob("*.parquet")))
    assert table.column("tasks").to_pylist() == [["pick"], ["a tag"], ["x" * 300], ["a tag"]]
    pytest.importorskip("pyarrow.parquet").write_table(
        table.drop(["diskbuffer/values"]), next((target / "meta/episodes").rglob("*.parquet"))
    )
    back = told(import_("lerobot", target, tmp_path / "back", progress=False))  # as one that others made
    assert [(tag, row) for _, tag, row in back] == [
        ("pick", {"instruction": "pick"}),
        ("", {"instruction": "x" * 300}),
        *[("a tag", {"instruction": "a tag"})] * 2,
    ]


def test_a_damaged_column_of_values_is_an_error(tmp_path: Path) -> None:
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    target = export("lerobot", store(tmp_path / "store"), tmp_path / "data", allow_loss=LOSSES, progress=False)
    file = next((target / "meta/episodes").rglob("*.parquet"))
    table = parquet.read_table(file)
    at = table.schema.get_field_index("diskbuffer/values")
    for text in ("{", "[]", "3"):
        parquet.write_table(table.set_column(at, "diskbuffer/values", pa.array([text] * 4)), file)
        with pytest.raises(SourceError, match="values"):
            import_("lerobot", target, tmp_path / "back", progress=False)


def test_metadata_of_minaris_episodes_become_values_and_what_cannot_is_named(tmp_path: Path) -> None:
    """As its own library writes them."""
    episodes = [
        EpisodeBuffer(
            observations=np.zeros((3, 3), np.float32),
            actions=np.zeros((2, 2), np.float32),
            rewards=[0.0, 1.0],
            terminations=[False, True],
            truncations=[False, False],
            infos={},
        )
        for _ in range(3)
    ]
    box = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))
    space = {"observation_space": box[0], "action_space": box[1], "env_spec": None, "data_format": "hdf5"}
    (tmp_path / "data").mkdir()
    storage = minari.dataset.minari_storage.MinariStorage.new(tmp_path / "data", **space)
    storage.update_episodes(episodes)
    storage.update_metadata({"dataset_id": "tests/values-v0"})
    given = [
        {"success": True, "level": 1, "mixed": 1, "list": [1, 2], "na me": 1},
        {"success": False, "mixed": "a"},
        {"level": 3},
    ]
    storage.update_episode_metadata(given, range(3))
    with pytest.raises(LossError, match=r"episode_metadata: .*list, mixed, na me"):
        import_("minari", tmp_path, tmp_path / "store", progress=False)
    import_("minari", tmp_path, tmp_path / "store", allow_loss=["episode_metadata"], progress=False)
    assert [row for *_, row in told(tmp_path / "store")] == [{"level": 1, "success": True}, {"level": 3}, {"success": False}]


def test_copies_and_merged_stores_have_them(tmp_path: Path) -> None:
    one = store(tmp_path / "one")
    other = store(tmp_path / "other", {"score": [7.0, 8.0, 9.0, None], "more": ["a", "b", "c", "d"]})
    copied = editing.copy(one, tmp_path / "copied", where="success or attempt < 0", progress=False)
    assert told(Path(copied)) == [told(one)[at] for at in (0, 2, 3)]
    assert told(Path(editing.copy(one, tmp_path / "whole", progress=False))) == told(one)
    merged = editing.merge([one, other], tmp_path / "merged", progress=False)
    assert sorted(map(str, told(merged))) == sorted(map(str, [*told(one), *told(other)]))
    third = store(tmp_path / "third", {"success": [1.5, None, None, None]})
    with pytest.raises(
        SchemaError, match=r"success: what episodes were given is a truth in .*one, and a number in .*third. Take it away"
    ):
        editing.merge([one, third], tmp_path / "no", progress=False)
    assert not (tmp_path / "no").exists()


def test_an_import_that_was_killed_gives_values_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path / "store")
    target = export("minari", path, tmp_path / "target", progress=False)
    from diskbuffer.plugin.appender import Appender

    real = Appender.commit
    monkeypatch.setattr(Appender, "commit", lambda self: (self._tag(), self._give_values(), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        import_("minari", target, tmp_path / "back", progress=False)
    monkeypatch.setattr(Appender, "commit", real)
    assert told(import_("minari", target, tmp_path / "back", progress=False)) == told(path)


def test_numbers_that_are_none_are_kept_where_json_has_them(tmp_path: Path) -> None:
    path = store(tmp_path / "store", {"score": [math.nan, math.inf, 1.0, None]})
    target = export("lerobot", path, tmp_path / "data", allow_loss=LOSSES, progress=False)
    assert str(told(import_("lerobot", target, tmp_path / "back", progress=False))) == str(told(path))


def test_names_that_minari_has_for_itself_are_named(tmp_path: Path) -> None:
    path = store(tmp_path / "store", {"seed": [1, 2, 3, 4], "total_steps": [7] * 4, "mine": [1] * 4})
    with pytest.raises(LossError, match=r"values: .*seed, total_steps"):
        export("minari", path, tmp_path / "target", progress=False)
    target = export("minari", path, tmp_path / "target", progress=False, allow_loss=["values"])
    back = import_("minari", target, tmp_path / "back", progress=False)
    assert [row for *_, row in told(back)] == [{"mine": 1}] * 4
    assert "episode/seed" not in Reader(back).info.columns


def test_an_episode_with_a_tag_alone_has_no_values_afterwards(tmp_path: Path) -> None:
    path = store(tmp_path / "store", {}, tag="a tag")
    target = export("lerobot", path, tmp_path / "target", progress=False, allow_loss=LOSSES)
    assert told(import_("lerobot", target, tmp_path / "back", progress=False)) == told(path)
