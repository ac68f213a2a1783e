"""What is written as JSON is read by others than Python, which know no NaN and no Infinity."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.commands.cli import main
from diskbuffer.formats import export
from tests.formats import episodes as made

COLUMNS = {
    "obs/camera": db.Column((32, 32, 3), "uint8"),
    "obs/state": db.Column((3,), "float32", allow_nan=True),
    "action": db.Column((2,), "float32"),
    "reward": db.Column((), "float64", allow_nan=True),
}


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def strictly(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    episodes = made.some(3, columns=COLUMNS, longest=6)
    for number, value in enumerate((np.nan, np.inf, -np.inf)):
        episodes[number].columns["reward"][0] = value  # type: ignore[index]
        episodes[number].columns["obs/state"][0, 1] = value  # type: ignore[index]
    return made.store_of(tmp_path / "store", episodes, COLUMNS, metadata={"a": 1.5})


EXPORTS = ("video", "webdataset", "lerobot", "minari", "tensordict", "dreamer", "diffusion_policy")


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("name", EXPORTS)
def test_exports_write_strict_json(name: str, store: Path, tmp_path: Path) -> None:
    out = export(name, store, tmp_path / "out", allow_loss=["pictures", "columns", "final_obs"], progress=False)
    files = [file for file in out.rglob("*") if file.suffix == ".json" or file.name in (".zattrs", ".zarray", ".zgroup")]
    for file in files:
        strictly(file.read_bytes())
    for shard in out.glob("*.tar"):
        with tarfile.open(shard) as tar:
            for member in tar.getmembers():
                if member.name.endswith(".json"):
                    strictly(tar.extractfile(member).read())  # type: ignore[union-attr]
    assert files or name == "webdataset"


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["stats", "show", "episodes", "info"])
def test_commands_write_strict_json(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {**COLUMNS, "wave": db.Column((), "complex64", allow_nan=True)}
    episodes = made.some(2, columns=columns, longest=6)
    episodes[1].columns["reward"][0], episodes[1].columns["wave"][0] = np.inf, complex(np.nan, 1)  # type: ignore[index]
    store = made.store_of(tmp_path / "store", episodes, columns)
    assert main([command, str(store), "--json"]) == 0
    strictly(capsys.readouterr().out)
