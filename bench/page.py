"""How fast the page of a store is: until its first page is there, and from moving the slider to the frame that is decoded.

A store of a million real steps, or another one with ``--store``, which is only read. The server is started ten times, as
``diskbuffer view`` starts it, and asked for everything that the overview shows; each time counts from the start of the process.
Then a headless Chromium scrubs through episodes in the page itself, to one random step after the other.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np

from bench.browser import chromium, until, why_not

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


def start(store: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the command; return the process, and the address that it prints."""
    command = [sys.executable, "-m", "diskbuffer", "view", str(store), "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "http://" not in (line := process.stdout.readline()):
        if not line:
            raise RuntimeError(f"{' '.join(command)} printed no address, and ended with {process.wait()}")
    return process, next(word for word in line.split() if word.startswith("http://"))


def end(process: subprocess.Popen[str]) -> None:
    """End the server."""
    process.terminate()
    process.communicate()


def fetch(address: str) -> bytes:
    """Return what is at an address."""
    with urllib.request.urlopen(address) as answer:
        found: bytes = answer.read()
    return found


def first_page(store: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Time the first page, and all that it shows, in seconds from the start of the process."""
    page, everything = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        process, address = start(store)
        try:
            for name in FIRST:
                fetch(address + name)
                if not name:
                    page.append(time.perf_counter() - begun)
            everything.append(time.perf_counter() - begun)
        finally:
            end(process)
    return page, everything


def scrubbing(address: str, frames: int) -> tuple[list[float], list[float]]:
    """Time frames, in seconds: the answer of the server alone, and from moving the slider to the frame that is decoded."""
    longest = json.loads(fetch(f"{address}api/episodes?sort=length&descending=true&limit=20"))["rows"]
    random.seed(0)
    streams = json.loads(fetch(f"{address}api/episode"))["streams"]
    alone: list[float] = []
    for _ in range(frames):
        row = random.choice(longest)
        step = row["start"] + random.randrange(row["length"]) * streams
        begun = time.perf_counter()
        fetch(f"{address}frame.png?column=obs&step={step}")
        alone.append(time.perf_counter() - begun)
    seen: list[float] = []
    if why_not() is None:
        with chromium() as driver:
            driver.set_script_timeout(120)
            for row in longest[:5]:
                driver.get("about:blank")
                driver.get(f"{address}#/player?a={row['start']}")
                until(lambda: driver.execute_script("return document.getElementById('deck').dataset.at") is not None)
                steps = random.sample(range(1, row["length"]), min(frames // 5, row["length"] - 1))
                seen += [taken / 1e3 for taken in driver.execute_async_script(_SCRUB, steps)]
    return alone, seen


def main() -> None:
    """Measure, and print medians with the smallest and the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="of ALE frames; by default one of a million steps is made, in bench/.cache")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--frames", type=int, default=300)
    options = parser.parse_args()
    if options.store is None:
        from bench.frames import million

        options.store = million()
    page, everything = first_page(options.store, options.rounds)
    process, address = start(options.store)
    try:
        alone, seen = scrubbing(address, options.frames)
    finally:
        end(process)
    rows = {
        "first page": page,
        "all that it shows": everything,
        "a frame, the server alone": alone,
        "a frame, in the browser": seen,
    }
    for name, seconds in rows.items():
        if seconds:
            low, median, high = (1e3 * float(value) for value in (min(seconds), np.median(seconds), max(seconds)))
            print(f"{name:30} {median:8.1f} ms  ({low:.1f} to {high:.1f}, {len(seconds)} times)")


if __name__ == "__main__":
    main()
