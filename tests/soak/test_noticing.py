"""A few protections are taken away: crashes that are simulated notice, and no protection that is named has gone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from soak import crashes, noticing
from soak.noticing import CHECKSUMS, ORDERS, Noticed, kind_of, states_without, syncs_of
from soak.workers import scratch
from tests.support.workloads import WORKLOADS, Recorded, Workload, record


def workload(name: str, calls: int) -> Workload:
    return dataclasses.replace(next(one for one in WORKLOADS if one.name == name), calls=calls)


@pytest.fixture(scope="module")
def recording() -> Recorded:
    with scratch() as base:
        return record(workload("add", 14), 1, base)


@pytest.mark.parametrize("name", [*CHECKSUMS, *ORDERS])
def test_what_is_to_be_taken_away_is_there(name: str) -> None:
    function, replacement = CHECKSUMS[name] if name in CHECKSUMS else ORDERS[name][:2]
    with noticing.replaced(function, replacement):
        pass


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["state.json", "file of the lengths", "file of a flat column"])
def test_a_kind_of_sync_that_never_happens_is_noticed(kind: str, recording: Recorded) -> None:
    syncs = sorted(n for name, found in syncs_of(recording).items() if name.endswith(f": {kind}") for n in found)
    states = states_without(recording, syncs, 1, np.random.default_rng(0))
    control = next(control for state, control in states if crashes.judged(state) is not None)
    assert crashes.judged(control) is None, "with the sync it is fine"


def test_an_order_that_is_turned_round_is_noticed() -> None:
    found, name = dict[str, Noticed](), "a chunk is written before its entry"
    noticing.notice_order(name, workload("add", 8), 0, found)
    assert found[name].what


def test_kinds_of_files_are_told() -> None:
    told = {
        "runs/.store.0a1b2c3d.new/_segments/length/c.0.0": "file of the lengths",
        "runs/store/_segments/length/state.json.0a1b2c3d.tmp": "state.json",
        "runs/store/_segments/length/state.json.0a1b2c3d.old.tmp": "state.json",
        "runs/store/_segments/checksum/obs/c.0": "file of checksums of files",
        "runs/store/obs/c.3.0.0.tmp": "file of a packed column",
        "runs/store/obs": "directory a packed column",
        "runs/store/value/c.1": "file of a derived column",
        "runs/store/zarr.json.0a1b2c3d.tmp": "zarr.json of the group",
        "runs/store": "the store's directory",
        "runs": "a directory above the store",
    }
    assert {path: kind_of(path) for path in told} == told
