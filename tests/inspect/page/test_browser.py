"""The page in a real browser: what is shown, with the mouse and the keyboard, of stores that change meanwhile."""

from __future__ import annotations

import contextlib
import http.server
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import diskbuffer as db
from bench.browser import PHONE, WIDE, chromium, complaints, resize, until, why_not
from diskbuffer.commands.cli import main
from tests.inspect.page.serving import served
from tests.inspect.stores import COLUMNS, make_store

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
PANELS = ("overview", "episodes", "player", "health")
LENGTHS = (30, 45, 20, 60, 33, 27)
IDS = (0, 31, 77, 98, 159, 193)  # of these episodes: each has a row more than steps

ROOT = Path(__file__).resolve().parents[3]
WRITER = f"""
import sys, time
sys.path.insert(0, {str(ROOT / "tests/inspect")!r})
import diskbuffer as db
from stores import COLUMNS, EXTRA, add_episode
capacity = int(sys.argv[2]) or None
with db.ReplayBuffer(sys.argv[1], capacity, columns=COLUMNS, extra=EXTRA, frame_stack=4, segment_rows=32) as buffer:
    for line in sys.stdin:
        first, n = map(int, line.split())
        for episode in range(first, first + n):
            add_episode(buffer, episode, 40)
        print("added", flush=True)
"""


_TEXT = "const e = document.getElementById(arguments[0]); return e?.checkVisibility() ? e.innerText.trim() : ''"


class Page:
    """A page in the browser, as a user has it."""

    def __init__(self, driver: WebDriver) -> None:
        self.driver = driver

    def open(self, address: str, panel: str = "overview", query: str = "") -> None:
        self.driver.get("about:blank")  # a page of its own: a change of the fragment alone would load nothing
        self.driver.get(f"{address}#/{panel}{query}")
        until(lambda: self.text("status") not in ("", "opening …"), what="an answer of the server")

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def text(self, name: str) -> str:
        return str(self.script(_TEXT, name))

    def find(self, css: str) -> Any:
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.CSS_SELECTOR, css)

    def click(self, css: str) -> None:
        self.find(css).click()

    def has(self, name: str, text: str) -> None:
        until(lambda: text in self.text(name), 60, f"{text!r} in {name}")

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def press_together(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.driver)
        for key in keys:
            chain.key_down(key)
        for key in keys:
            chain.key_up(key)
        chain.perform()

    def errors(self, *expected: str) -> list[str]:
        """Return the console's errors, but for those that are expected, and for requests to a server that has ended."""
        return [entry for entry in complaints(self.driver) if not any(text in entry for text in ("ERR_", *expected))]

    def tiles(self) -> dict[str, str]:
        code = (
            "return [...document.querySelectorAll('#tiles > div')].map(d => [d.children[0].innerText, d.children[1].innerText])"
        )
        return {name: value.split("\n")[0] for name, value in self.script(code)}

    def rows(self) -> list[str]:
        code = "return [...document.querySelectorAll('#episode-table tbody tr')].map(row => row.cells[0].innerText)"
        return list(self.script(code))

    def at(self) -> int:
        """Return the step whose frame is shown."""
        return int(self.script("return document.getElementById('deck').dataset.at ?? -1"))

    def episode(self) -> str:
        return str(self.script("return document.getElementById('episode-title').innerText")).split("\n")[0]

    def shown(self) -> Any:
        """Return the pixels that are shown, as the browser decoded them, grey."""
        code = """
            const image = document.getElementById('frame');
            const canvas = document.createElement('canvas');
            canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            const data = [...context.getImageData(0, 0, canvas.width, canvas.height).data];
            return [canvas.height, canvas.width, data.filter((_, n) => n % 4 === 0)];
        """
        height, width, values = self.script(code)
        return np.array(values).reshape(height, width)

    def is_drawn(self, name: str) -> bool:
        """Tell whether a chart has other pixels than its background."""
        code = """
            const canvas = document.querySelector(`#${arguments[0]} canvas`);
            if (!canvas) return false;
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return data.some((value, n) => n % 4 === 3 && value > 0);
        """
        return bool(self.script(code, name))

    def is_cut_off(self) -> bool:
        """Tell whether a frame is larger than the place where it is shown."""
        code = """
            return [...document.querySelectorAll('.screen')].some((screen) => {
                const [inner, outer] = [screen.querySelector('img'), screen].map((one) => one.getBoundingClientRect());
                return inner.height > outer.height + 1 || inner.width > outer.width + 1 || inner.height < 30;
            });
        """
        return bool(self.script(code))

    def is_too_wide(self) -> bool:
        return bool(self.script("return document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def becomes(read: Callable[[], Any], expected: Any) -> None:
    until(lambda: read() == expected, what=f"{expected!r}, found {read()!r}")


@pytest.fixture(scope="module")
def driver() -> Iterator[WebDriver]:
    with chromium(WIDE) as driver:
        yield driver


@pytest.fixture
def page(driver: WebDriver) -> Iterator[Page]:
    resize(driver, WIDE)
    complaints(driver)
    yield Page(driver)
    driver.get("about:blank")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("page") / "store", LENGTHS)


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    with served(store) as address:
        yield address


class Writer:
    """A process that adds episodes when it is told to."""

    def __init__(self, path: Path, capacity: int = 0) -> None:
        command = [sys.executable, "-c", WRITER, str(path), str(capacity)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def add(self, first: int, n: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{first} {n}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "added\n"


@contextlib.contextmanager
def writing(path: Path, capacity: int = 0) -> Iterator[Writer]:
    writer = Writer(path, capacity)
    with writer.process:
        yield writer
        writer.process.communicate()


@pytest.mark.nightly
def test_a_first_look(page: Page, address: str) -> None:
    page.open(address)
    until(page.tiles)
    assert page.tiles()["Steps"] == str(sum(LENGTHS))
    assert page.errors() == []


@pytest.mark.nightly
def test_the_overview(page: Page, address: str) -> None:
    page.open(address)
    until(page.tiles)
    assert (page.tiles()["Episodes"], page.tiles()["Return"]) == (str(len(LENGTHS)), "2.5")
    assert all(page.is_drawn(name) for name in ("returns-chart", "lengths-chart"))
    assert "obs\t36\u00d740\tuint8" in page.text("columns")
    assert "none; closed" in page.text("facts")
    assert page.driver.title == "store \u2013 diskbuffer"
    assert "6 episodes, return from 0 to 5" in page.find("#returns-chart").get_attribute("aria-label")
    assert page.errors() == []


@pytest.mark.nightly
def test_episodes_are_filtered_sorted_and_opened(page: Page, address: str) -> None:
    page.open(address, "episodes")
    until(lambda: page.rows() == [str(IDS[5]), str(IDS[4]), str(IDS[3]), str(IDS[2]), str(IDS[1]), str(IDS[0])])
    assert page.is_drawn("timeline")
    page.click("#where")
    page.press("length > 28 and ending == 'terminated'\n")
    until(lambda: page.rows() == [str(IDS[4]), str(IDS[3]), str(IDS[1]), str(IDS[0])])
    assert "4 episodes of 6" in page.text("timeline-note")
    page.driver.find_element("xpath", "//table[@id='episode-table']//button[text()='length']").click()
    until(lambda: page.rows() == [str(IDS[3]), str(IDS[1]), str(IDS[4]), str(IDS[0])])
    page.driver.find_element("xpath", "//table[@id='episode-table']//button[text()='length']").click()
    until(lambda: page.rows() == [str(IDS[0]), str(IDS[4]), str(IDS[1]), str(IDS[3])])
    page.find("#where").clear()
    page.click("#where")
    page.press("length > \n")
    until(lambda: page.text("where-error"))
    assert page.find("#where").get_attribute("aria-invalid") == "true"
    page.click("#where-clear")
    until(lambda: len(page.rows()) == 6)
    assert page.text("where-error") == ""
    page.script("document.querySelector('#episode-table tbody tr:nth-child(2) td:nth-child(2)').click()")
    until(lambda: page.episode() == f"Episode {IDS[5]}")  # the second shortest
    assert page.errors("400") == []  # the condition that was refused


@pytest.mark.nightly
def test_the_commands_for_what_is_filtered_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "a 'store'", LENGTHS)
    with served(store) as address:
        page.open(address, "episodes")
        until(lambda: len(page.rows()) == 6)
        assert page.text("commands") == ""
        page.click("#where")
        page.press(f"episode in [{IDS[0]}, {IDS[3]}] and ending != 'running'\n")
        until(lambda: len(page.rows()) == 2)
        tag, copy = (block.text for block in page.driver.find_elements("css selector", "#commands pre"))
    monkeypatch.chdir(tmp_path)
    for command in (tag, copy):
        assert main(shlex.split(command)[1:]) == 0
    with db.ReplayBuffer(store, mode="r") as buffer, db.ReplayBuffer(tmp_path / f"{store.name}-chosen", mode="r") as other:
        assert buffer.episodes.tag.tolist() == ["chosen", "", "", "chosen", "", ""]
        assert other.episodes.returns.tolist() == buffer.episodes.returns[[0, 3]].tolist()
    assert page.errors() == []


@pytest.mark.nightly
def test_a_stretch_of_the_time_line_is_filtered_with_the_mouse(page: Page, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page.open(address, "episodes")
    until(lambda: page.is_drawn("timeline"))
    plot = page.find("#timeline .u-over")
    half = plot.size["width"] // 2
    dragged = ActionChains(page.driver).move_to_element_with_offset(plot, 0, 0).click_and_hold().move_by_offset(half - 2, 20)
    dragged.release().perform()
    until(lambda: len(page.rows()) == 3)
    assert "ended >= " in page.find("#where").get_attribute("value")
    page.click("#where-clear")
    until(lambda: len(page.rows()) == 6)
    ActionChains(page.driver).move_to_element_with_offset(page.find("#timeline .u-over"), half - 3, 0).click().perform()
    until(lambda: page.episode() == f"Episode {IDS[5]}")


@pytest.mark.nightly
def test_the_player_by_keyboard(page: Page, address: str, store: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    with db.ReplayBuffer(store, mode="r") as buffer:
        stacks = buffer.episode(IDS[3])["obs"].numpy()
        frames = stacks[:, -1]
    page.open(address, "player", f"?id={IDS[3]}")
    until(lambda: page.at() == 0)
    assert page.episode() == f"Episode {IDS[3]}"
    for keys, at in (((Keys.ARROW_RIGHT,), 1), ((Keys.SHIFT, Keys.ARROW_RIGHT), 11), ((Keys.ARROW_LEFT,), 10), ((Keys.END,), 60)):
        page.press_together(*keys)
        becomes(page.at, at)
        assert (page.shown() == frames[at]).all()
    assert "final observation" in page.text("deck")
    page.press(Keys.HOME)
    until(lambda: page.at() == 0)
    page.press("s")
    until(lambda: page.shown().shape == (36, 166))
    assert not page.is_cut_off()
    page.press(Keys.ARROW_RIGHT)
    until(lambda: page.at() == 1)
    assert (page.shown()[:, 42:82] == stacks[1, 1]).all()
    page.press("s", " ")
    until(lambda: page.at() >= 3)
    page.press(" ")
    page.press("n")
    until(lambda: page.episode() == f"Episode {IDS[4]}")
    page.press("p", "p")
    until(lambda: page.episode() == f"Episode {IDS[2]}")
    assert page.driver.current_url.endswith(f"?id={IDS[2]}")
    assert page.errors() == []


@pytest.mark.nightly
def test_the_player_by_mouse(page: Page, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page.open(address, "player")
    until(lambda: page.at() == 0)
    plot = page.find("#curves .u-over")
    ActionChains(page.driver).move_to_element(plot).click().perform()
    until(lambda: page.at() == 13)  # of 0 to 26
    page.click("#step-on")
    until(lambda: page.at() == 14)
    assert "1.75" in page.text("values")  # log_prob
    page.script("const s = document.getElementById('slider'); s.value = 20; s.dispatchEvent(new Event('input'))")
    until(lambda: page.at() == 20)
    assert page.errors() == []


@pytest.mark.nightly
def test_all_panels_by_keyboard(page: Page, address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    def panels() -> list[str]:
        return list(page.script("return [...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).map(p => p.id)"))

    page.open(address)
    for n, name in [*enumerate(PANELS, 1), (1, "overview")]:
        page.press(str(n))
        becomes(panels, [name])
        assert page.find(f"#tab-{name}").get_attribute("aria-selected") == "true"
    page.click("#tab-overview")
    for key, name in (
        (Keys.ARROW_RIGHT, "episodes"),
        (Keys.END, "health"),
        (Keys.ARROW_RIGHT, "overview"),
        (Keys.ARROW_LEFT, "health"),
    ):
        page.press(key)
        becomes(panels, [name])
        assert page.script("return document.activeElement.id") == f"tab-{name}"
    page.press("?")
    until(lambda: page.find("#help").is_displayed())
    page.press(Keys.ESCAPE)
    until(lambda: not page.find("#help").is_displayed())
    page.press("/")
    until(lambda: page.script("return document.activeElement.id") == "where")
    page.press("1?3")  # typed, and no keys of the page
    assert panels() == ["episodes"]
    assert page.find("#where").get_attribute("value") == "1?3"
    nameless = page.script(
        "return [...document.querySelectorAll('button, input, select')].filter("
        "e => !(e.labels?.length || e.innerText || e.getAttribute('aria-label'))).map(e => e.outerHTML)"
    )
    assert nameless == []


@pytest.mark.nightly
def test_health(page: Page, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        buffer.extend(obs=np.zeros((301, 36, 40), np.uint8), action=np.zeros(300, int), reward=np.ones(300))
    with served(tmp_path / "store") as address:
        page.open(address, "health")
        until(lambda: page.text("findings"))
        assert "black" in page.text("findings")
        assert "action" in page.text("findings")
    assert page.errors() == []


@pytest.mark.nightly
def test_it_follows_a_store_that_grows(page: Page, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", (40, 40), segment_rows=32)
    with served(store) as address:
        page.open(address)
        until(lambda: page.tiles().get("Steps") == "80")
        with writing(store) as writer:
            writer.add(2, 3)
            until(lambda: page.tiles()["Steps"] == "200")
            assert f"being written by process {writer.process.pid}" in page.text("status")
            until(lambda: page.is_drawn("pace-chart"))
            assert page.tiles()["Steps a second"] != "0"
            page.press("2")
            until(lambda: page.rows()[:1] == ["164"])
            writer.add(5, 1)
            until(lambda: page.rows()[:1] == ["205"])
            page.press("3")
            until(lambda: page.episode().startswith("Episode"))
        until(lambda: "nobody writes" in page.text("status"))
    assert page.errors() == []


@pytest.mark.nightly
def test_a_running_episode_grows_under_the_player(page: Page, tmp_path: Path) -> None:
    frame = np.zeros((36, 40), np.uint8)
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer, served(_first_step(buffer, frame)) as address:
        page.open(address, "player")
        until(lambda: page.at() == 0)
        assert "running" in page.text("deck")
        for n in range(5):
            buffer.add(frame + n + 1, 0, 1.0, frame + n + 2, n == 4, False)
        until(lambda: "terminated" in page.text("deck"))
        assert "of 6" in page.text("deck")
        assert page.at() == 0
    assert page.errors() == []


def _first_step(buffer: db.ReplayBuffer, frame: Any) -> Path:
    buffer.add(frame, 0, 1.0, frame + 1, False, False)
    return buffer.path


@pytest.mark.nightly
def test_the_episode_that_is_shown_is_evicted(page: Page, tmp_path: Path) -> None:
    with writing(tmp_path / "store", 300) as writer:
        writer.add(0, 5)
        with served(tmp_path / "store") as address:
            page.open(address, "player", "?id=41")
            until(lambda: page.at() == 0)
            assert page.episode() == "Episode 41"
            writer.add(5, 25)
            until(lambda: "evicted" in page.text("gone"))
            page.press("1")
            until(lambda: page.tiles().get("Steps", "").startswith("3"))
            page.press("3")
            page.click("#newest-episode")
            until(lambda: "return 29" in page.text("deck"))
            until(lambda: page.at() == 0)
            until(lambda: not page.find("#gone").is_displayed())
    assert page.errors("410") == []


@pytest.mark.nightly
def test_a_store_that_is_moved_deleted_replaced(page: Page, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", (30, 40))
    with served(store) as address:
        page.open(address)
        until(lambda: page.tiles().get("Steps") == "70")
        store.rename(tmp_path / "away")
        until(lambda: "no store" in page.text("problem"))
        assert page.text("status") == "nothing to show"
        for name in PANELS[1:]:
            page.press(str(PANELS.index(name) + 1))
        page.press("1")
        (tmp_path / "away").rename(store)
        until(lambda: page.text("problem") == "" and page.text("status") == "70 steps, nobody writes")
        shutil.rmtree(store)
        until(lambda: "no store" in page.text("problem"))
        make_store(store, (11, 12, 13))
        until(lambda: page.tiles()["Steps"] == "36")
        page.press("3")
        until(lambda: page.episode() == "Episode 25")
        store.rename(tmp_path / "away")
        shutil.copytree(make_store(tmp_path / "other", (50,)), store)
        until(lambda: page.episode() == "Episode 0")
        until(lambda: "of 50" in page.text("deck"))
    assert page.errors("503") == []


@pytest.mark.nightly
def test_the_server_ends_and_is_there_again(page: Page, store: Path) -> None:
    with served(store) as address:
        page.open(address)
        until(page.tiles)
    until(lambda: "does not answer" in page.text("problem"))
    with served(store, urlsplit(address).port or 0):
        until(lambda: "started anew" in page.text("problem"))


@pytest.mark.nightly
@pytest.mark.parametrize("panel", PANELS)
def test_a_phone(page: Page, address: str, panel: str) -> None:
    resize(page.driver, PHONE)
    page.open(address, panel)
    ready = {"overview": page.tiles, "episodes": page.rows, "player": lambda: page.at() == 0}
    until(ready.get(panel, lambda: page.text(panel)))
    assert not page.is_too_wide()
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    if panel == "player":
        page.click("#stacked")
        until(lambda: page.shown().shape == (36, 166))
        assert not page.is_cut_off()
        assert not page.is_too_wide()
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


@pytest.mark.nightly
def test_another_name_for_loopback_sees_nothing(address: str) -> None:
    parts = urlsplit(address)
    with chromium(arguments=("--host-resolver-rules=MAP evil.example 127.0.0.1",)) as driver:
        driver.get(f"http://evil.example:{parts.port}{parts.path}")
        assert "expected localhost" in driver.page_source
        assert "tablist" not in driver.page_source
        driver.get(f"http://localhost:{parts.port}{parts.path}")
        assert "tablist" in driver.page_source


@pytest.mark.nightly
def test_another_page_on_this_machine_can_read_and_embed_nothing(page: Page, address: str) -> None:
    with _OtherServer(("127.0.0.1", 0), _Empty) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            page.driver.get(f"http://127.0.0.1:{other.server_port}/")
            found = page.driver.execute_async_script(
                """
                const [address, done] = arguments;
                const body = (answer) => answer.text().then((text) => text || 'opaque');
                const read = (mode) => fetch(address + 'api/state', { mode }).then(body, () => 'refused');
                const load = (tag, path) => new Promise((end) => {
                    const one = document.createElement(tag);
                    one.onload = () => end('loaded'); one.onerror = () => end('refused'); one.src = address + path;
                    document.body.append(one);
                });
                const loaded = [load('img', 'frame.png?step=0'), load('script', 'static/uplot/uPlot.iife.min.js')];
                Promise.all([read('cors'), read('no-cors'), ...loaded]).then(done);
                """,
                address,
            )
        finally:
            other.shutdown()
    assert found == ["refused"] * 4


class _OtherServer(http.server.ThreadingHTTPServer):
    daemon_threads = False  # so that the end waits for them


class _Empty(http.server.BaseHTTPRequestHandler):
    timeout = 1  # seconds that a connection may be idle

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><link rel=icon href=data:,><body>")

    def log_message(self, format: str, *args: Any) -> None:
        pass
