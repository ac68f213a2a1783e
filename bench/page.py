"""How fast the page of a store is: until its first page is there, and from moving the slider to the frame that is decoded.

    python -m bench.page [--store PATH] --json FILE

A store of a million real steps, or another one of ALE frames, which is only read. The server is started as ``diskbuffer view``
starts it, and asked for everything that the overview shows; each time counts from the start of the process. Then a headless
Chromium, if there is one, scrubs through episodes in the page itself, to one random step after the other.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from pathlib import Path

from bench.browser import chromium, serving, until, why_not
from bench.frames import million
from bench.measure import Report, parser, run

FIRST = ("", "static/page.css", "static/main.js", "static/uplot/uPlot.iife.min.js", "api/state", "api/overview", "api/timeline")
_SCRUB = """
const [steps, done] = arguments;
const slider = document.getElementById("slider");
const deck = document.getElementById("deck");
const taken = [];
(async () => {
  for (const step of steps) {
    const begun = performance.now();
    slider.value = step;
    slider.dispatchEvent(new Event("input"));
    while (deck.dataset.at !== String(step)) await new Promise((go) => setTimeout(go, 1));
    taken.push(performance.now() - begun);
    await new Promise((go) => setTimeout(go, 20));
  }
  done(taken);
})();
"""


def fetch(address: str) -> bytes:
    """Return what is at an address."""
    with urllib.request.urlopen(address) as answer:
        found: bytes = answer.read()
    return found


def first_page(report: Report, store: Path) -> None:
    """Time the first page, and all that it shows, from the start of the process."""
    taken: dict[str, list[float]] = {"first page": [], "all that it shows": []}
    for _ in range(2 if report.quick else 10):
        begun = time.perf_counter()
        with serving(store) as address:
            fetch(address)
            taken["first page"].append(time.perf_counter() - begun)
            for name in FIRST[1:]:
                fetch(address + name)
            taken["all that it shows"].append(time.perf_counter() - begun)
    for name, seconds in taken.items():
        report.times(name, seconds)


def scrubbing(report: Report, address: str) -> None:
    """Time frames: the answer of the server alone, and from moving the slider to the frame that is decoded."""
    longest = json.loads(fetch(f"{address}api/episodes?sort=length&descending=true&limit=20"))["rows"]
    frames, alone, seen = 30 if report.quick else 300, list[float](), list[float]()
    random.seed(report.seed)
    streams = json.loads(fetch(f"{address}api/episode"))["streams"]
    for _ in range(frames):
        row = random.choice(longest)
        step = row["start"] + random.randrange(row["length"]) * streams
        begun = time.perf_counter()
        fetch(f"{address}frame.png?column=obs&step={step}")
        alone.append(time.perf_counter() - begun)
    report.times("a frame, the server alone", alone)
    if why := why_not():
        report.left_out("Chromium", why)
        return
    with chromium() as driver:
        driver.set_script_timeout(120)
        for row in longest[:5]:
            driver.get("about:blank")
            driver.get(f"{address}#/player?a={row['start']}")
            until(lambda: driver.execute_script("return document.getElementById('deck').dataset.at") is not None)
            steps = random.sample(range(1, row["length"]), min(frames // 5, row["length"] - 1))
            seen += [taken / 1e3 for taken in driver.execute_async_script(_SCRUB, steps)]
    report.times("a frame, in the browser", seen)


def both(report: Report, directory: Path) -> None:
    """Time the first page, and frames."""
    store = report.options.store or million(20_000 if report.quick else 1_000_000)
    first_page(report, store)
    with serving(store) as address:
        scrubbing(report, address)


if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--store", type=Path, help="of ALE frames; by default one of a million steps is made, in bench/.cache")
    run("page", {"all": both}, given)
