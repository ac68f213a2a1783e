"""Pictures of the page for the documentation, of a real store: ``python -m bench.page_pictures docs/pictures``.

An agent plays Breakout, and follows the ball more and more often, so that returns rise; what it does is stored while the pictures
are taken, in 20,000 steps and some more. Takes two minutes or so, and a Chromium.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.text import Text
from tqdm import tqdm

import diskbuffer as db
from bench.browser import PHONE, WIDE, chromium, resize, serving, until, why_not

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

STEPS = 20_000
BALL, PADDLE, RIGHT, LEFT, FIRE = 99, 72, 2, 3, 1  # places in the console's memory, and actions


class Player:
    """An agent that plays Breakout into a buffer."""

    def __init__(self, path: Path, steps: int) -> None:
        import ale_py
        import gymnasium as gym
        from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

        gym.register_envs(ale_py)
        inner = AtariPreprocessing(gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0))
        self.env: Any = FrameStackObservation(inner, 4)
        self.buffer = db.ReplayBuffer(
            path,
            100_000,
            env=self.env,
            extra={"exploration": db.Column()},
            metadata={"agent": "follows the ball"},
            segment_rows=4096,
        )
        self.rng, self.steps, self.learning = np.random.default_rng(0), 0, steps
        self.obs, _ = self.env.reset(seed=0)

    def step(self) -> None:
        """Play one step."""
        exploration = max(0.15, 1 - self.steps / self.learning)
        ram = self.env.unwrapped.ale.getRAM()
        action = FIRE if ram[BALL] == 0 else RIGHT if int(ram[BALL]) > int(ram[PADDLE]) + 8 else LEFT
        if self.rng.random() < exploration:
            action = int(self.rng.integers(4))
        next_obs, reward, terminated, truncated, _ = self.env.step(action)
        self.buffer.add(self.obs, action, float(reward), next_obs, terminated, truncated, exploration=exploration)
        self.obs = self.env.reset()[0] if terminated or truncated else next_obs
        self.steps += 1


@contextlib.contextmanager
def playing(player: Player, pace: float) -> Iterator[None]:
    """Go on in a thread, about so many steps a second."""
    over = threading.Event()

    def play() -> None:
        while not over.wait(1 / pace):
            player.step()

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def take(driver: WebDriver, file: Path, size: tuple[int, int]) -> None:
    """Save what the window shows, from its top."""
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    found = base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})["data"])
    Image.open(io.BytesIO(found)).convert("RGB").save(file, optimize=True)
    print(f"{file}  {file.stat().st_size / 1000:.0f} kB")


class Photographer:
    """A browser that goes through the panels."""

    def __init__(self, driver: WebDriver, address: str, directory: Path) -> None:
        self.driver, self.address, self.directory = driver, address, directory

    def open(self, panel: str, ready: str) -> None:
        """Show a panel, and wait until an expression is true."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#/{panel}")
        until(lambda: self.script(f"return Boolean({ready})"), 60, ready)

    def script(self, code: str) -> Any:
        """Run JavaScript in the page."""
        return self.driver.execute_script(code)

    def wide(self, best: int) -> None:
        """Take the pictures of a wide window; `best` is the first step of an episode worth seeing."""
        self.open("overview", "document.querySelector('#tiles dd')")
        time.sleep(25)  # for steps a second
        take(self.driver, self.directory / "page-overview.png", WIDE)
        self.open("episodes?where=return+%3E+10+and+ending+%3D%3D+%27terminated%27", "document.querySelector('#commands dd')")
        time.sleep(1)
        take(self.driver, self.directory / "page-episodes.png", WIDE)
        self.open(f"player?id={best}", "document.querySelector('#deck').dataset.at")
        self.seek(60)
        take(self.driver, self.directory / "page-player.png", WIDE)
        self.open("health", "document.querySelector('#findings li')")
        take(self.driver, self.directory / "page-health.png", (WIDE[0], 310))

    def phone(self, best: int) -> None:
        """Take the pictures of a phone's window."""
        resize(self.driver, PHONE)
        self.open("overview", "document.querySelector('#tiles dd')")
        time.sleep(3)
        take(self.driver, self.directory / "page-phone-overview.png", PHONE)
        self.open(f"player?id={best}", "document.querySelector('#deck').dataset.at")
        self.seek(60)
        take(self.driver, self.directory / "page-phone-player.png", PHONE)

    def terminal(self, store: Path) -> None:
        """Take a picture of what ``diskbuffer info`` prints."""
        environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "96"}
        command = [sys.executable, "-m", "diskbuffer", "info", str(store)]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        console = Console(record=True, width=96, file=io.StringIO())
        console.print("[bold]$ diskbuffer info runs/breakout[/bold]")
        console.print(Text.from_ansi(printed))
        form = "<pre id=all style='display:inline-block;margin:0;padding:20px;font:14px/1.35 monospace'>{code}</pre>"
        page = console.export_html(inline_styles=True, code_format=f"<body style='margin:0'>{form}")
        self.driver.get("data:text/html;charset=utf-8;base64," + base64.b64encode(page.encode()).decode())
        size = self.script("const box = document.getElementById('all'); return [box.offsetWidth, box.offsetHeight]")
        take(self.driver, self.directory / "info.png", tuple(size))

    def seek(self, step: int) -> None:
        """Move the slider."""
        self.script(f"const s = document.getElementById('slider'); s.value = {step}; s.dispatchEvent(new Event('input'))")
        until(lambda: self.script("return document.querySelector('#deck').dataset.at") == str(step))
        time.sleep(1)


def main() -> None:
    """Play, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    if (why := why_not()) is not None:
        sys.exit(why)
    options.directory.mkdir(parents=True, exist_ok=True)
    runs = Path(tempfile.gettempdir()) / "runs"
    runs.mkdir()  # an error, where there is one: it is somebody else's
    try:
        player = Player(runs / "breakout", options.steps)
        for _ in tqdm(range(options.steps), desc="playing", leave=False, disable=None):
            player.step()
        episodes = player.buffer.episodes
        episodes = episodes[episodes.ending != "running"]
        episodes[episodes.returns >= np.quantile(episodes.returns, 0.95)].set_tag("good")
        best = int(episodes.id[episodes.returns.argmax()])
        with serving(runs / "breakout") as address, playing(player, 150), chromium(WIDE) as driver:
            photographer = Photographer(driver, address, options.directory)
            photographer.terminal(runs / "breakout")
            photographer.wide(best)
            photographer.phone(best)
        player.buffer.close()
    finally:
        shutil.rmtree(runs)


if __name__ == "__main__":
    main()
