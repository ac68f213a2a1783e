"""`diskbuffer doctor`: on stores that are whole, empty, read-only, or being written to; it changes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.commands.doctor import doctor
from soak.specimens import contents

COLUMNS = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
LIMITS = ("disk", "decoding", "copying", "fixed cost")


def fill(buffer: db.ReplayBuffer, steps: int = 300) -> None:
    frames = np.random.default_rng(0).integers(0, 4, (steps + 1, 40, 40), np.uint8)
    buffer.extend(frames, np.zeros(steps, np.int64), np.zeros(steps))


def test_it_says_what_limits_and_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        fill(buffer)
    before = contents(tmp_path)
    for file in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        os.chmod(file, 0o555 if file.is_dir() else 0o444)
    try:
        assert doctor(str(tmp_path / "store"), seconds=0.3, batch_size=32) == 0
        said = capsys.readouterr().out
        assert doctor(str(tmp_path / "store"), seconds=0.3, batch_size=32, json=True) == 0
    finally:
        for file in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
            os.chmod(file, 0o755 if file.is_dir() else 0o644)
    found = json.loads(capsys.readouterr().out)
    assert "What limits them: " in said
    assert any(limit in said for limit in LIMITS)
    assert "samples a second" in said
    assert "% of the store is in memory" in said
    assert found["limit"] in LIMITS
    assert found["advice"]
    assert found["batch_size"] == 32
    assert contents(tmp_path) == before


def test_beside_a_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        fill(buffer)
        assert doctor(str(tmp_path / "store"), seconds=0.2, json=True) == 0
        fill(buffer)
        assert len(buffer) == 600
    assert json.loads(capsys.readouterr().out)["limit"] in LIMITS


def test_an_empty_store_has_nothing_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db.ReplayBuffer(tmp_path / "store", columns=COLUMNS).close()
    assert doctor(str(tmp_path / "store")) == 0
    assert "nothing to measure; add steps" in capsys.readouterr().out
    assert doctor(str(tmp_path / "store"), json=True) == 0
    assert json.loads(capsys.readouterr().out)["limit"] is None


def test_bad_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(db.errors.NotAStoreError):
        doctor(str(tmp_path / "none"), seconds=0.1)
    with pytest.raises(db.InputError, match="--seconds must be above 0"):
        doctor(str(tmp_path), seconds=0)
