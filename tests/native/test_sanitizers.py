"""`make sanitize`: kernels that decode untrusted bytes, compiled with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_sanitizers_find_nothing() -> None:
    done = subprocess.run(["make", "sanitize", "ITERATIONS=50000"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused") == 2
