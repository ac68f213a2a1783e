"""Which files' tests one worker of pytest-xdist runs, so that a library's processes and caches are there once.

Tests of other files go to whichever worker is free. With pytest 9.2, pytest-xdist 3.8 finds no groups: `test_groups.py`
fails there, and pyproject.toml has a bound.
"""

from __future__ import annotations

from fnmatch import fnmatch

_GROUPS = {
    "tests/adapters/test_cluster*.py": "ray",  # one cluster
    "tests/adapters/test_r*.py": "ray",
    "tests/adapters/test_sb3*.py": "sb3",
    "tests/adapters/test_t*.py": "torchrl",
    "tests/editing/test_buckets.py": "buckets",  # one server
    "tests/formats/*": "",  # a group for each file
    "tests/inspect/page/*": "page",
    "tests/test_floors.py": "floors",  # modules are parsed once
    "tests/test_groups.py": "groups",
    "tests/test_dist.py": "dist",  # one environment of gigabytes at a time
}


def group_of(path: str) -> str | None:
    """Return the group of a file, by its path from the project's root."""
    return next((group or path for pattern, group in _GROUPS.items() if fnmatch(path, pattern)), None)
