"""Write bench/RESULTS.md, at most 200 lines, from the JSON files beside it: ``python -m bench.results``.

Files may have any name; several of one benchmark, of which each has some parts, count as one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import PEERS

HERE = Path(__file__).parent
OURS = "diskbuffer"
SAMPLING = re.compile(r"(?P<kind>.+), sample\((?P<size>\d+)\): (?P<who>.+)")
SIZES = ("32", "256")
Figures = dict[str, Any]  # what `bench.measure.Report` wrote


class Question(NamedTuple):
    """What a reader asks, and the rows that answer it: whose "benchmark: what" begins so, and which no question before took."""

    title: str
    rows: str
    across: bool = False  # what comes after a row's last colon is a column
    promised: bool = False  # rows with targets alone


QUESTIONS = (
    Question("What was promised of sampling?", "sizes: ", promised=True),
    Question("Sequences, windows and priorities?", "(sequences|windows|prioritized|statistics): "),
    Question("Slices through TorchRL's buffers?", "slices: .*(extend|memory)", across=True),
    Question("How fast is adding?", "writing: .*(add|import)"),
    Question("Rollouts: added and cleared, and learned from?", "rollouts: "),
    Question("What does it take to start a process?", "starting: "),
    Question("How much memory and disk?", "(adapters|writing|scale|reverb|ray_buffers): .*([Mm]emory|RAM|on disk)"),
    Question("What grows with the store, and what does opening take?", "(scale|writing): "),
    Question("In other libraries: times as fast as their own buffers?", "adapters: .*: (sample|add|extend)", across=True),
    Question("Whole trainings?", "adapters: |ray_buffers: RLlib"),
    Question("Several writers, and other machines?", "(writers|reverb|ray_buffers): ", promised=True),
    Question("Other formats, and back?", "formats: ", across=True),
    Question("What do codecs make of frames?", "packers: .*(a frame|each byte|LZ4HC 7|recompress)", across=True),
    Question("On an accelerator?", "gpu: ", promised=True),
)
NOT_HERE = (  # who is not measured, and why
    "LeRobot (its data sets keep pictures as videos, which lose something; Lance, its other backend, is here)",
    "flashbax's Vault (nothing is sampled from it)",
    "worker processes of PyTorch's `DataLoader` (all read in one process here; in one try on a busy machine, two workers brought"
    " memmap-replay-buffer's batches in 0.1 to 0.8 of the time)",
)


def read(place: Path) -> list[Figures]:
    """Return the figures of a directory's files."""
    found: list[Figures] = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
    if not found:
        raise FileNotFoundError(f"there are no figures in {place}: run `make bench`")
    return found


def number(value: float) -> str:
    """Write a figure with three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    """Write a table."""
    names = list(head)
    return [f"| {' | '.join(each)} |" for each in (names, ["---"] * len(names), *lines)] + [""]


def machine_of(figures: Figures) -> str:
    """Describe the machine, as far as the file tells."""
    machine = figures["machine"]
    parts = [machine["processor"], f"{machine['cores']} cores"]
    parts += [f"{machine['memory_gb']} GB", machine["disk"], machine["system"]] if "disk" in machine else []
    return ", ".join([*parts, f"Python {machine['python']}"])


def measured(row: Figures) -> str:
    """Write a row's figure, how it spreads, and what became of its target."""
    unit = f" {row['unit']}" if row["unit"] not in ("", "x") else ""
    spread = f" ({number(row['low'])} to {number(row['high'])})" if "low" in row else ""
    lost = " **slower**" if row["target"] == "none" and "times as fast" in row["what"] and row["value"] < 1 else ""
    return f"{number(row['value'])}{unit}{spread}{'' if row['met'] else ' **missed**'}{lost}"


def sampling(all_figures: list[Figures]) -> list[str]:
    """Write by how much everybody's time for a batch differs from ours: a line each, a column for each kind and size."""
    taken: dict[str, dict[tuple[str, str], float]] = {}
    for figures in all_figures:
        for what, times in figures["times"].items():
            found = SAMPLING.fullmatch(what) if figures["benchmark"] == "sizes" else None
            if found and found["size"] in SIZES:
                taken.setdefault(found["who"], {})[found["kind"], found["size"]] = times["median"]
    if OURS not in taken:
        return []
    ours = taken.pop(OURS)

    def cell(time: float | None, own: float) -> str:
        quotient = "" if time is None else f"{time / own:.2g}" if time < 100 * own else f"{time / own:.0f}"
        return f"**{quotient}**" if time is not None and time < own else quotient

    lines = [[OURS, PEERS[OURS].where, *(f"{time:.2g} ms" for time in ours.values())]]
    lines += [[who, PEERS[who].where, *(cell(times.get(key), own) for key, own in ours.items())] for who, times in taken.items()]
    return [
        "## How fast is sampling? (`bench.sizes`)",
        "",
        "Our time for a batch of 32 and of 256 with all columns, and how many times that the others"
        " take, who hold the same steps in RAM or on disk. **Bold**: they are faster. numpy only gathers single frames.",
        "",
        *table(("", "", *(f"{kind}: {size}" for kind, size in ours)), lines),
    ]


def answers(all_figures: list[Figures], letters: dict[str, str]) -> list[str]:
    """Write a table for each question."""
    rows: dict[Question, list[tuple[str, str, Figures]]] = {question: [] for question in QUESTIONS}
    for figures in all_figures:
        for row in figures["rows"]:
            of = (question for question in QUESTIONS if re.match(question.rows, f"{figures['benchmark']}: {row['what']}"))
            question = next(of, None)
            if question is not None and not (question.promised and row["target"] == "none"):
                rows[question].append((figures["benchmark"], letters[machine_of(figures)], row))
    lines = []
    for question, found in rows.items():
        if not found:
            continue
        commands = ", ".join(dict.fromkeys(f"`bench.{name}`" for name, _, _ in found))
        lines += [f"## {question.title} ({commands})", ""]
        if not question.across:
            cells = ((row["what"], measured(row), row["target"].replace("none", ""), on) for _, on, row in found)
            lines += table(("", "measured", "target", "on"), cells)
            continue
        across: dict[str, dict[str, str]] = {}
        for _, _, row in found:
            subject, _, column = row["what"].rpartition(": ")
            target = "" if row["target"] == "none" else f"; {row['target']}"
            across.setdefault(subject, {})[column] = measured(row) + target
        columns = list(dict.fromkeys(column for cells_of in across.values() for column in cells_of))
        lines += table(("", *columns), ((what, *(of.get(name, "") for name in columns)) for what, of in across.items()))
    return lines


def render(all_figures: list[Figures]) -> str:
    """Return the text of RESULTS.md."""
    targets = [(of["benchmark"], row) for of in all_figures for row in of["rows"] if row["target"] != "none"]
    missed = [f"- {name}: {row['what']}: {measured(row)}, target {row['target']}" for name, row in targets if not row["met"]]
    letters = {machine: chr(ord("A") + n) for n, machine in enumerate(dict.fromkeys(map(machine_of, all_figures)))}
    versions: dict[str, str] = {}
    busy = []
    for figures in all_figures:
        versions |= figures["versions"]
        load, cores = figures["machine"].get("busy", 0), figures["machine"]["cores"]
        busy += [f"{figures['benchmark']} ({load:.1f})"] if load > cores else []
    left_out = {what: why for figures in all_figures for what, why in figures["left_out"].items()}
    lines = [
        "# Results",
        "",
        "Written by `python -m bench.results` from what `make bench` measures, anew; each `python -m bench.NAME --json FILE` has"
        " more figures. Medians, and from which to which quarter of the measurements they go. Competitors take turns, and ratios"
        " are formed turn by turn: compare these, not times.",
        "",
        f"**{len(targets) - len(missed)} of {len(targets)} targets are met.** Missed:",
        "",
        *(missed or ["- none"]),
        "",
        *sampling(all_figures),
        *answers(all_figures, letters),
        "## On which machines, and with what?",
        "",
        *(f"- **{letter}**: {machine}" for machine, letter in letters.items()),
        "",
        "Versions: " + ", ".join(f"{package} {version}" for package, version in versions.items() if version) + ".",
        "",
        *([f"More programs wanted to run than there are cores, of which there were: {', '.join(busy)}.", ""] if busy else []),
        "Left out: " + "; ".join([*(f"{what} ({why})" for what, why in left_out.items()), *NOT_HERE]) + ".",
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the file."""
    (HERE / "RESULTS.md").write_text(render(read(HERE)))
    print("wrote bench/RESULTS.md")


if __name__ == "__main__":
    main()
