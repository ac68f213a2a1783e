"""A short campaign of hostile data sets."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from soak import imports
from soak.data_sets import KINDS
from soak.hostile_data_sets import mutate
from soak.workers import Pool


@pytest.mark.nightly
def test_hostile_data_sets_are_refused_or_imported_as_they_are(tmp_path: Path) -> None:
    with Pool("soak.imports", tmp_path, 1, 60.0) as pool:
        row = imports.run_all(pool, 30 * len(KINDS), 0)
    assert (row.done, row.broken) == (30 * len(KINDS), 0), str(row)


@pytest.mark.parametrize("name", ["d4rl", "drqv2", "diffusion_policy", "tensordict, storage"])
def test_data_sets_that_changed_are_refused_in_words_or_read_as_others_read_them(tmp_path: Path, name: str) -> None:
    pristine, kind = imports.made(tmp_path, name), KINDS[name]
    for number in range(-1, 6):
        root = tmp_path / str(number)
        shutil.copytree(pristine, root)
        if number >= 0:
            mutate(root, pristine, random.Random(number), root / kind.name)
        answer = imports.attempt(kind, root / kind.name, tmp_path / f"store {number}")
        if answer["class"] == "read":
            answer = imports.compared(kind, root / kind.name, imports.stored(tmp_path / f"store {number}"))
        assert answer["class"] in (imports.FINE if number >= 0 else ("imported",)), answer
