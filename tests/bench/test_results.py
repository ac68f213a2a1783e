"""RESULTS.md is what the committed figures give, and `--compare` tells what changed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import pictures
from bench.figures import BENCHMARKS, changes, read
from bench.measure import Ratio, Report, percent_more, ratio
from bench.results import render

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_results_are_rendered_from_the_committed_figures() -> None:
    figures = read(BENCH)
    assert list(figures) == list(BENCHMARKS)
    text = render(figures)
    assert text == (BENCH / "RESULTS.md").read_text(), "run `python -m bench.results`"
    for each in figures.values():
        for row in each["rows"]:
            assert row["what"] in text
        for curve in each.get("curves", {}):
            assert (BENCH / "pictures" / pictures.file_of(curve)).exists()


@pytest.fixture
def report(tmp_path: Path) -> dict[str, Any]:
    report = Report("curves", 0)
    report.row("a figure", ratio([2.0, 2.2, 1.8], [1.0, 1.0, 1.0]), "x", at_least=1.5)
    report.row("a cost", 3.0, "%", at_most=5)
    report.times("a time", [0.001, 0.002, 0.003])
    for x in (1, 10):
        report.point("a curve", "steps", x, "diskbuffer", [1e-6 * x, 2e-6 * x])
        report.point("a curve", "steps", x, "SB3", [2e-6 * x, 3e-6 * x])
    report.left_out("somebody", "it is not installed")
    report.write(tmp_path / "curves.json")
    found: dict[str, Any] = json.loads((tmp_path / "curves.json").read_text())
    return found


def test_rows_that_are_lost_are_kept(report: dict[str, Any]) -> None:
    report["rows"].append({"what": "sample: times as fast as others", "value": 0.5, "unit": "x", "target": "none", "met": True})
    report["rows"][0] |= {"value": 1.2, "met": False}
    text = render({"curves": report})
    assert "**1 of 2 targets are met.**" in text
    assert "| a figure | at least 1.5 | 1.2 x | 1.9 to 2.1 | **missed** |" in text
    assert "| sample: times as fast as others | none | 0.5 x |  | slower |" in text
    assert "- somebody: it is not installed" in text


def test_compare_tells_what_changed_by_more_than_the_spread(report: dict[str, Any]) -> None:
    new = copy.deepcopy(report)
    assert changes({"curves": report}, {"curves": new}) == []
    new["rows"][0] |= {"value": 1.95, "low": 1.9, "high": 2.0}  # within the spread
    new["rows"][1] |= {"value": 6.0, "met": False}
    new["curves"]["a curve"]["points"][0] |= {"median": 3.0, "p25": 2.9, "p75": 3.1}
    assert changes({"curves": report}, {"curves": new}) == [
        "curves: a cost: MISSED now, 6 % (target: at most 5)",
        "curves: a cost: 3 -> 6 (+100%)",
        "curves: a curve, steps 1: diskbuffer, us: 1.5 -> 3 (+100%)",
    ]


def test_a_part_measured_anew_keeps_the_others(report: dict[str, Any], tmp_path: Path) -> None:
    part = Report("curves", 0, quick=True)
    part.row("a cost", 4.0, "%", at_most=5)
    part.point("another curve", "steps", 1, "diskbuffer", [1e-6])
    part.write(tmp_path / "curves.json", keep=True)
    merged = json.loads((tmp_path / "curves.json").read_text())
    assert {row["what"]: row["value"] for row in merged["rows"]} == {"a figure": 2.0, "a cost": 4.0}
    assert list(merged["curves"]) == ["a curve", "another curve"]
    assert merged["quick"]


def test_pictures_are_small_svg_files(report: dict[str, Any], tmp_path: Path) -> None:
    (path,) = pictures.draw(report, tmp_path / "pictures")
    assert path.name == "a-curve.svg"
    assert path.stat().st_size < 50_000
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_ratios_are_formed_round_by_round() -> None:
    assert ratio([2.0, 40.0, 6.0], [1.0, 10.0, 2.0]) == Ratio(3.0, 2.5, 3.5, 3)  # 2, 4, 3
    assert ratio([2.0, 4.0], [1.0, 1.0, 100.0]).n == 2  # the slow one has the first rounds alone
    assert ratio([1.0, 9.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0], each=2).median == 4.0  # medians 5 and 3
    assert percent_more(Ratio(1.5, 1.25, 2.0, 4)) == Ratio(50.0, 25.0, 100.0, 4)
