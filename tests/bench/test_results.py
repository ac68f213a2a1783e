"""RESULTS.md stays short, and hides nothing that is lost; parts that are measured anew keep the others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.measure import Ratio, Report, parser, ratio, run
from bench.results import QUESTIONS, read, render

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = re.findall(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()


def test_results_have_at_most_200_lines() -> None:
    assert len((ROOT / "bench" / "RESULTS.md").read_text().splitlines()) <= 200


def test_every_question_is_of_a_benchmark_that_is_run() -> None:
    for name in BENCHMARKS:
        assert f'run("{name}", ' in (ROOT / "bench" / f"{name}.py").read_text()
    for question in QUESTIONS:
        assert set(re.findall(r"(\w+)(?=[|):])", question.rows.split(": ")[0] + ":")) & set(BENCHMARKS), question


@pytest.mark.parametrize("text", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda path: path.stem)
def test_benchmarks_that_are_quoted_are_there(text: Path) -> None:
    for name in re.findall(r"\bbench\.([a-z_]+)", text.read_text()):
        assert (ROOT / "bench" / f"{name}.py").exists(), name


@pytest.fixture
def figures(tmp_path: Path) -> dict[str, Any]:
    report = Report("sizes")
    for who, seconds in (("diskbuffer", 2e-3), ("numpy", 1e-3), ("SB3", 6e-3)):
        report.times(f"vectors, sample(32): {who}", [seconds])
        report.times(f"vectors, sample(64): {who}", [seconds])
    report.row("vectors, sample(32): times as fast as SB3", ratio([2.0, 2.2, 1.8], [1.0, 1.0, 1.0]), "x", at_least=2.5)
    report.row("vectors, sample(32): time against numpy's", 1.0, "x", at_most=2)
    report.left_out("somebody", "it is not installed")
    report.write(tmp_path / "sizes.json")
    (found,) = read(tmp_path)
    return found


def test_what_is_lost_is_shown(figures: dict[str, Any]) -> None:
    writing = {**figures, "benchmark": "writing", "rows": [{**figures["rows"][1], "target": "none"}]}
    writing["rows"][0] |= {"what": "add: times as fast as SB3", "value": 0.5}
    text = render([figures, writing])
    assert "**1 of 2 targets are met.**" in text
    missed = "vectors, sample(32): times as fast as SB3: 2 (1.9 to 2.1) **missed**, target at least 2.5"
    assert f"- sizes: {missed}\n" in text
    assert "| vectors, sample(32): times as fast as SB3 | 2 (1.9 to 2.1) **missed** | at least 2.5 | A |" in text
    assert "| diskbuffer | disk | 2 ms |\n| numpy | RAM | **0.5** |\n| SB3 | RAM | 3 |" in text
    assert "| add: times as fast as SB3 | 0.5 **slower** |  | A |" in text
    assert "sample(64)" not in text
    assert "somebody (it is not installed)" in text


def test_a_part_measured_anew_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = []

    def one(report: Report, directory: Path) -> None:
        directories.append(directory)
        report.row("one", len(directories), "%", at_most=5)

    def other(report: Report, directory: Path) -> None:
        report.times("other", [0.001, 0.002, 0.003])

    for more in ((), ("--only", "one", "--quick")):
        monkeypatch.setattr("sys.argv", ["bench", "--json", str(tmp_path / "file.json"), *more])
        run("parts", {"one": one, "other": other}, parser("About."))
    found = json.loads((tmp_path / "file.json").read_text())
    assert [(row["what"], row["value"]) for row in found["rows"]] == [("one", 2)]
    assert found["times"]["other"]["median"] == 2.0
    assert found["quick"]
    assert not any(directory.exists() for directory in directories)


def test_ratios_are_formed_round_by_round() -> None:
    assert ratio([2.0, 40.0, 6.0], [1.0, 10.0, 2.0]) == Ratio(3.0, 2.5, 3.5, 3)  # 2, 4, 3
    assert ratio([2.0, 4.0], [1.0, 1.0, 100.0]).n == 2  # the slow one has the first rounds alone
    assert ratio([1.0, 9.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.0], each=2).median == 4.0  # medians 5 and 3
