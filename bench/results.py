"""Render bench/RESULTS.md and its pictures from the JSON files; or print what changed since another run.

python -m bench.results [--compare DIRECTORY_OR_FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from bench import pictures
from bench.figures import BENCHMARKS, Figures, changes, read
from bench.peers import PEERS

HERE = Path(__file__).parent
PICTURES = "pictures"
NOT_HERE = {  # who is not measured, and why
    "LeRobot": "its data sets keep pictures as videos, which do not give back what was seen; Lance, its other backend, is here",
    "flashbax's Vault": "it writes whole buffers to disk, and reads them back whole: nothing is sampled from it",
    "worker processes of PyTorch's `DataLoader`": "all read in one process here; in one try on a busy machine, two "
    "workers brought memmap-replay-buffer's batches in 0.1 to 0.8 of the time",
}


def number(value: float) -> str:
    """Write a figure with three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(low: float, high: float) -> str:
    """Write from where to where a figure goes."""
    return f"{number(low)} to {number(high)}"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    """Write a table."""
    names = list(head)
    return [f"| {' | '.join(each)} |" for each in (names, ["---"] * len(names), *lines)] + [""]


def verdict(row: Figures) -> str:
    """Say whether a target is met; where there is none, whether we lose."""
    if row["target"] != "none":
        return "met" if row["met"] else "**missed**"
    return "slower" if "times as fast" in row["what"] and row["value"] < 1 else ""


def rows_of(figures: Figures) -> list[str]:
    """Write the figures that have targets, or could have."""
    lines = []
    for row in figures["rows"]:
        between = spread(row["low"], row["high"]) if "low" in row else ""
        lines.append((row["what"], row["target"], f"{number(row['value'])} {row['unit']}", between, verdict(row)))
    return table(("", "target", "measured", "p25 to p75", ""), lines) if lines else []


def times_of(figures: Figures) -> list[str]:
    """Write the times behind them."""
    lines = [
        (what, f"{number(times['median'])} {times['unit']}", spread(times["p25"], times["p75"]), f"{times['n']:,}")
        for what, times in figures["times"].items()
    ]
    return table(("", "median", "p25 to p75", "measured times"), lines) if lines else []


def curve_of(curve: str, drawn: Figures) -> list[str]:
    """Show a curve's picture, and write its table."""
    ticks = sorted({point["x"] for point in drawn["points"]})
    found: dict[str, dict[float, str]] = {}
    for point in drawn["points"]:
        cell = f"{number(point['median'])} ({spread(point['p25'], point['p75'])})"
        found.setdefault(point["name"], {})[point["x"]] = cell
    lines = [(name, *(cells.get(tick, "") for tick in ticks)) for name, cells in found.items()]
    picture = f"![{curve}]({PICTURES}/{pictures.file_of(curve)})"
    folded = [
        "<details><summary>The figures</summary>",
        "",
        *table((f"{drawn['unit']}; {drawn['along']}:", *(f"{tick:,}" for tick in ticks)), lines),
    ]
    return [f"**{curve}**", "", picture, "", *folded, "</details>", ""]


def machine_of(figures: Figures) -> str:
    """Describe the machine, as far as the file tells."""
    machine = figures["machine"]
    parts = [machine["processor"], f"{machine['cores']} cores"]
    parts += [f"{machine['memory_gb']} GB of memory", f"disk: {machine['disk']}", machine["system"]] if "disk" in machine else []
    return ", ".join([*parts, f"Python {machine['python']}"])


def how(figures: Figures) -> str:
    """Say how the figures came to be."""
    name, machine = figures["benchmark"], figures["machine"]
    quick = " --quick" if figures.get("quick") else ""
    said = f"`python -m bench.{name}{quick} --json FILE`; [{name}.json](./{name}.json)."
    if "busy" in machine:
        said += f" It took {machine['seconds'] / 60:.0f} minutes, during which {machine['busy']:.1f} programs wanted to run"
        said += (
            f" on {machine['cores']} cores."
            if machine["busy"] <= machine["cores"]
            else f" on {machine['cores']} cores: **too many**."
        )
    return said


def preamble(all_figures: dict[str, Figures]) -> list[str]:
    """Say what was measured where, and who was there."""
    found: dict[str, list[str]] = {}
    for name, figures in all_figures.items():
        found.setdefault(machine_of(figures), []).append(name)
    machines = [f"- {machine}: {', '.join(names)}" for machine, names in found.items()]
    versions: dict[str, str] = {}
    for figures in all_figures.values():
        versions |= {package: version for package, version in figures["versions"].items() if version}
    targets = [(name, row) for name, figures in all_figures.items() for row in figures["rows"] if row["target"] != "none"]
    missed = [
        f"- {name}: {row['what']}: {number(row['value'])} {row['unit']}, target {row['target']}"
        for name, row in targets
        if not row["met"]
    ]
    quick = [name for name, figures in all_figures.items() if figures.get("quick")]
    lines = [
        "# Results",
        "",
        "Written by `python -m bench.results` from the JSON files beside it; `make bench` measures everything anew. Figures are"
        " medians, and from which to which quarter of the measurements they go. Competitors take turns, and ratios are formed"
        " turn by turn, so that a machine's moods strike both alike: compare ratios, not times. `numpy` gathers from RAM. Rows"
        " that we lose are kept.",
        "",
        f"**{len(targets) - len(missed)} of {len(targets)} targets are met.** Missed:",
        "",
        *(missed or ["- none"]),
        "",
        "## Machines",
        "",
        *machines,
        "",
        "Versions: " + ", ".join(f"{package} {version}" for package, version in versions.items()) + ".",
        "",
    ]
    if quick:
        lines += [f"Of quick runs, with fewer rounds and a part of the data: {', '.join(quick)}.", ""]
    lines += ["## Who is measured", ""]
    docs = {name: (peer.__doc__ or "").split("\n\n")[0].replace("\n", " ") for name, peer in PEERS.items()}
    lines += table(
        ("", "steps are in", "settings"), ((name, PEERS[name].where, " ".join(doc.split())) for name, doc in docs.items())
    )
    left_out = {what: why for figures in all_figures.values() for what, why in figures.get("left_out", {}).items()}
    lines += ["Who is left out:", "", *(f"- {what}: {why}" for what, why in (left_out | NOT_HERE).items()), ""]
    return lines


def render(all_figures: dict[str, Figures]) -> str:
    """Return the text of RESULTS.md."""
    lines = preamble(all_figures)
    for name, figures in all_figures.items():
        lines += [f"## {BENCHMARKS[name]}", "", how(figures), "", *rows_of(figures)]
        for curve, drawn in figures.get("curves", {}).items():
            lines += curve_of(curve, drawn)
        times = times_of(figures)
        if times:
            lines += ["<details><summary>The times</summary>", "", *times, "</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Render, or compare."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "--compare", type=Path, help="a directory of JSON files, or one of them: print what changed since, and write nothing"
    )
    args = options.parse_args()
    all_figures = read(HERE)
    if args.compare:
        print("\n".join(changes(read(args.compare), all_figures) or ["Nothing changed by more than the spread."]))
        return
    (HERE / "RESULTS.md").write_text(render(all_figures))
    drawn = [path for figures in all_figures.values() for path in pictures.draw(figures, HERE / PICTURES)]
    for path in set((HERE / PICTURES).glob("*.svg")) - set(drawn):
        path.unlink()
    print(f"wrote bench/RESULTS.md and {len(drawn)} pictures")


if __name__ == "__main__":
    main()
