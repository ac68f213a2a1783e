"""A short campaign of damage, and what judges it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from soak import damage, vouching
from soak.usage import used_bytes
from soak.workers import Pool
from tests.support.specimens import KINDS, expected, make, observe, replace


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_can_vouch_for_what_he_changed(kind: str, tmp_path: Path) -> None:
    make(tmp_path / "store", kind, 3)
    before = damage.contents(tmp_path / "store")
    vouching.vouch(tmp_path / "store")
    assert damage.contents(tmp_path / "store") == before
    for file in (tmp_path / "store" / "action").glob("c.*"):  # which of them hold rows depends on when old ones were evicted
        file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))
    assert not db.check(tmp_path / "store", progress=False).ok
    vouching.vouch(tmp_path / "store")
    assert db.check(tmp_path / "store", progress=False).ok


def test_bytes_that_are_not_in_use_can_be_anything(tmp_path: Path) -> None:
    kind, rng = "pixels, unsealed, killed", np.random.default_rng(0)
    make(tmp_path / "store", kind, 3)
    told, steps = expected(tmp_path / "store", KINDS[kind].n_envs)
    shutil.rmtree(tmp_path / "store")
    make(tmp_path / "store", kind, 3)
    for name, used in used_bytes(tmp_path / "store").items():
        if not name.startswith("writer") and "writer." not in name and not name.startswith("is_last"):
            data = np.frombuffer((tmp_path / "store" / name).read_bytes(), np.uint8).copy()
            data[~used] = rng.integers(0, 256, int((~used).sum()))
            replace(tmp_path / "store" / name, data.tobytes())  # a kill may have left one file two names, of which one is in use
    assert db.check(tmp_path / "store", progress=False).ok
    seen = observe(tmp_path / "store", "r", KINDS[kind].n_envs, steps)
    assert damage.judge(seen, told) == {"class": "unnoticed"}


@pytest.mark.nightly
def test_damage_is_detected_and_repaired(tmp_path: Path) -> None:
    kinds = ["pixels, closed", "flat, closed", "3 envs, closed"]
    with Pool("soak.damage", tmp_path, 1) as pool:
        for what, count in (("flips", 60), ("files", 40)):
            row, cases = damage.campaign(pool, what, count, 0, kinds)
            assert row.broken == 0, str(row)
            assert row.done == len(cases) == count
            assert any(job["repair"] for job, _ in cases)
            assert {"detected", "checked"} <= {answer["class"] for _, answer in cases}
