"""Tests that share a library's processes run in one worker: see `tests.groups`."""

from __future__ import annotations

import pytest

from tests.groups import group_of


def test_this_file_has_a_worker_of_its_own(request: pytest.FixtureRequest) -> None:
    assert group_of("tests/test_groups.py") == "groups"
    if hasattr(request.config, "workerinput"):  # of pytest-xdist, which tells what it takes together by the names of tests
        assert request.node.nodeid.endswith("@groups")
