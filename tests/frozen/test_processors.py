"""The same seeds give the same batches where numpy and the C library may use nothing but what every processor of a kind has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frozen import processor
from tests.frozen.stores import STORES

ROOT = Path(__file__).parents[2]


def on_the_least(stores: tuple[str, ...]) -> Any:
    """Return the digests that another process prints, with everything switched off that can be."""
    command = [sys.executable, "-m", "tests.frozen.processor", *stores]
    done = subprocess.run(command, cwd=ROOT, env=processor.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_nothing_depends_on_the_instructions_of_the_processor() -> None:
    assert on_the_least(()) == processor.digests([])


@pytest.mark.nightly
def test_no_store_has_other_batches_on_another_processor() -> None:
    stores = tuple(name for name in STORES if name != "WebP")  # which Pillow may not have
    assert on_the_least(stores) == processor.digests(list(stores))
