"""A headless Chromium, driven by selenium, and the page that it shows: for tests, pictures and timings."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

T = TypeVar("T")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage"),
)
WIDE, PHONE = (1400, 900), (390, 844)


def why_not() -> str | None:
    """Return why there is no browser; None where there is one."""
    if CHROMIUM is None or DRIVER is None:
        return "there is no chromium, or no chromedriver: apt-get install chromium chromium-driver"
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    return None


@contextlib.contextmanager
def chromium(window: tuple[int, int] = WIDE, *, dark: bool = False, arguments: tuple[str, ...] = ()) -> Iterator[WebDriver]:
    """Start a browser with a window of a size, in CSS pixels, and a profile of its own; end it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for argument in (*OPTIONS, *arguments, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        try:
            resize(driver, window)
            if dark:
                colours = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
            yield driver
        finally:
            driver.quit()


def resize(driver: WebDriver, window: tuple[int, int]) -> None:
    """Give a page a size in CSS pixels, as a phone's where it is as narrow."""
    width, height = window
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def until(condition: Callable[[], T], seconds: float = 20.0, what: str = "") -> T:
    """Call until what is returned is true; return that."""
    begun, found = time.monotonic(), condition()
    while not found:
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what or condition}")
        time.sleep(0.05)
        found = condition()
    return found


def complaints(driver: WebDriver) -> list[str]:
    """Return what the browser's console has that is an error, since it was last asked."""
    entries: list[dict[str, Any]] = driver.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


@contextlib.contextmanager
def serving(store: Path) -> Iterator[str]:
    """Start ``diskbuffer view``; yield the address that it prints, and end it."""
    command = [sys.executable, "-m", "diskbuffer", "view", str(store), "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = next((line for line in process.stdout if "http://" in line), None)
            if address is None:
                raise RuntimeError(f"{' '.join(command)} printed no address")
            yield next(word for word in address.split() if word.startswith("http://"))
        finally:
            process.terminate()
