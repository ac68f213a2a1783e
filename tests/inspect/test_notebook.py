"""What a notebook shows, and tables for pandas and xarray: the same as the buffer itself returns, and little is read for it."""

from __future__ import annotations

import base64
import copy
import io
import pickle
import re
import subprocess
import sys
import threading
import time
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

import diskbuffer as db
from diskbuffer.inspect import pictures
from diskbuffer.reading.gather.structs import ROW_BYTES
from diskbuffer.schema.nested import flatten
from tests.support.experience import Experience, Feeder
from tests.support.specimens import contents

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parents[2]
EVIL = "<script>alert('x')</script>\"&"

PIXELS = {"obs": db.Column((20, 16), "uint8"), "action": db.Column((), "int64")}
DICT = {
    "obs/camera": db.Column((3, 24, 20), "uint8"),
    "obs/depth": db.Column((16, 16), "float32"),
    "obs/joints": db.Column((2, 3), "float32"),
    "action": db.Column((2,), "float32"),
}
FLOATS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64"), "t": db.Column((), "int32")}
STORES: dict[str, dict[str, Any]] = {
    "pixels": {"columns": PIXELS},
    "wrapped around": {"columns": PIXELS, "capacity": 60, "segment_rows": 16},
    "dict observations": {"columns": DICT},
    "dict observations, wrapped around, stacked": {"columns": DICT, "capacity": 60, "segment_rows": 16, "frame_stack": 3},
    "floats": {"columns": FLOATS},
    "floats, stacked with zeros": {"columns": FLOATS, "frame_stack": 2, "padding": "zeros", "capacity": 70, "segment_rows": 16},
    "many environments": {"columns": PIXELS, "n_envs": 5, "frame_stack": 4, "autoreset": "disabled"},
}


def some(rng: np.random.Generator, column: db.Column, n: int) -> Array:
    """Values of a column."""
    if column.np_dtype.kind in "ui":
        return rng.integers(0, 100, (n, *column.shape)).astype(column.np_dtype)
    return rng.random((n, *column.shape)).astype(column.np_dtype)


def fill(buffer: db.ReplayBuffer, rng: np.random.Generator, episodes: int = 12) -> None:
    """Add episodes of all endings to a buffer; the last of each environment runs."""
    for n in range(episodes):
        length = int(rng.integers(1, 30))
        values: dict[str, Any] = {}
        for path, column in buffer.columns.items():
            if path.split("/")[0] not in ("terminated", "truncated", "is_last", "row_checksum", *buffer.columns.derived):
                *parents, name = path.split("/")
                place = values.setdefault(parents[0], {}) if parents else values
                place[name] = some(rng, column, length + (path.split("/")[0] == "obs"))
        last = np.arange(length) == length - 1
        ends: dict[str, Any] = {["terminated", "truncated", ""][n % 3]: last}
        ends.pop("", None)
        buffer.extend(**values, **ends, env=n % buffer.n_envs)
        if n % 3 == 2 and n < episodes - buffer.n_envs:
            buffer.cut_off()
    if n > 3:
        buffer.episodes[buffer.episodes.ending != "running"][1::3].set_tag(EVIL)


@pytest.fixture(params=list(STORES))
def buffer(request: pytest.FixtureRequest, tmp_path: Path, any_seed: int) -> Any:
    with db.ReplayBuffer(tmp_path / request.param.replace(",", ""), **STORES[request.param]) as found:
        fill(found, np.random.default_rng(any_seed))
        yield found


def newest(buffer: db.ReplayBuffer, stacks: Array) -> Array:
    """Single frames of what batches have."""
    return stacks[:, -1] if buffer.frame_stack > 1 else stacks


def batch_of(values: Any) -> dict[str, Array]:
    return {path: tensor.numpy() for path, tensor in flatten(values).items()}


# Episodes


@pytest.mark.some(2)
def test_an_episode_has_what_the_buffer_returns_of_it(buffer: db.ReplayBuffer) -> None:
    assert len(buffer.episodes) > 2
    for n, episode in enumerate(buffer.episodes):
        whole = batch_of(buffer.episode(episode.id))
        assert episode.steps.tolist() == whole["steps"].tolist()
        assert episode.returns == pytest.approx(float(whole["reward"].astype(float).sum()))
        assert episode == buffer.episodes[n]
        for path in set(whole) - {"steps"}:
            wanted = newest(buffer, whole[path]) if path.startswith("obs") else whole[path]
            found = episode.frames(path)
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(episode.frames(path, n=3), wanted[pictures.spread(len(wanted), 3)])
    first = next(iter(pictures.picture_columns(buffer.columns)), None)
    if first is not None:
        np.testing.assert_array_equal(episode.frames(), episode.frames(first))


@pytest.mark.some(2)
def test_an_episode_is_the_tuple_that_it_was(buffer: db.ReplayBuffer) -> None:
    episode = buffer.episodes[1]
    assert episode == tuple(episode)
    assert len({episode, tuple(episode)}) == 1
    assert repr(episode).startswith(f"Episode(stream={episode.stream}, start={episode.start}, length={episode.length}, ending=")
    for other in (pickle.loads(pickle.dumps(episode)), copy.copy(episode), copy.deepcopy(episode), episode._replace(tag="b")):
        assert isinstance(other, type(episode))
        assert other[:4] == episode[:4]
        assert buffer.episode(other)["steps"].tolist() == episode.steps.tolist()
        with pytest.raises(db.InputError, match=r"take it from buffer\.episodes"):
            other.frames()
        assert "Episode" in other._repr_html_()


@pytest.mark.nightly
def test_an_episode_becomes_a_movie(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", **STORES["dict observations"]) as buffer:
        fill(buffer, np.random.default_rng(0))
        episode = max(buffer.episodes, key=lambda episode: episode.length)
        video = episode.video()
        assert (video.kind, video.frames, video.every) == ("mp4", episode.length + 1, 1)
        saved = video.save(tmp_path / "episode.mp4")
        with av.open(str(saved), "r") as container:
            assert len(list(container.decode(video=0))) == video.frames
        assert pictures_in(video._repr_html_()) == [("video/mp4", video.data)]
        animated = episode.video(30, column="obs/depth", every=2, scale=1, kind="gif")
        with Image.open(io.BytesIO(animated.data)) as image:
            assert image.size == (16, 16)
            assert getattr(image, "n_frames", 1) == animated.frames == -(-(episode.length + 1) // 2)
        assert pictures_in(animated._repr_html_()) == [("image/gif", animated.data)]
        assert animated.save(tmp_path / "episode.GIF").read_bytes() == animated.data
        for movie, other, name in (
            (video, "gif", "a.gif"),
            (animated, "mp4", "a.mp4"),
            (video, "gif", "a.avi"),
            (video, "gif", "a"),
        ):
            said = rf"ends with \.{movie.kind}, found '{name}': .*makes \.{other} with kind='{other}'"
            with pytest.raises(db.InputError, match=said):
                movie.save(tmp_path / name)
            assert not (tmp_path / name).exists()
        for wrong in ({"kind": "avi"}, {"every": 0}, {"fps": 0}, {"column": "nope"}, {"column": "obs/joints"}):
            with pytest.raises(db.InputError):
                episode.video(**wrong)


def test_without_pyav_a_movie_is_a_gif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with db.ReplayBuffer(tmp_path / "store", **STORES["pixels"]) as buffer:
        fill(buffer, np.random.default_rng(0))
        assert buffer.episodes[0].video().kind == "gif"
        with pytest.raises(db.errors.MissingPackageError, match=r"diskbuffer\[video\]"):
            buffer.episodes[0].video(kind="mp4")


def test_a_film_strip_is_saved_as_png(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", **STORES["dict observations"]) as buffer:
        fill(buffer, np.random.default_rng(0))
        picture = buffer.episodes[0].film_strip()
    assert picture.save(tmp_path / "strip.png").read_bytes() == picture._repr_png_() == picture.data
    with pytest.raises(db.InputError, match=r"ends with \.png, found 'strip\.jpg'"):
        picture.save(tmp_path / "strip.jpg")


def test_frames_without_pictures_are_to_be_chosen(tmp_path: Path) -> None:
    columns = {"obs/a": db.Column((2,), "float32"), "obs/b": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        fill(buffer, np.random.default_rng(0))
        episode = buffer.episodes[0]
        with pytest.raises(db.InputError, match="choose one of obs/a, obs/b, action"):
            episode.frames()
        for draw in (episode.film_strip, episode.video):
            with pytest.raises(db.InputError, match="no column of this buffer has pictures"):
                draw()
        assert "img" not in episode._repr_html_()


# HTML


class Checked(HTMLParser):
    """Parses HTML strictly: every tag that is opened is closed, in order. Collects text, tags, and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attributes if name == "src"]
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def checked(html: str | None) -> Checked:
    assert html is not None
    found = Checked()
    found.feed(html)
    found.close()
    assert found.open == []
    assert found.tags <= {"div", "b", "table", "tr", "th", "td", "img", "video"}
    for kind, data in pictures_in(html):
        assert kind == "video/mp4" or Image.open(io.BytesIO(data)).size
    return found


def pictures_in(html: str) -> list[tuple[str, bytes]]:
    return [
        (kind, base64.b64decode(data, validate=True)) for kind, data in re.findall(r'src="data:([^;]*);base64,([^"]*)"', html)
    ]


@pytest.mark.some(1)
def test_what_is_shown_is_whole_escaped_and_small(buffer: db.ReplayBuffer) -> None:
    episodes, has_pictures = buffer.episodes, bool(pictures.picture_columns(buffer.columns))
    shown = checked(buffer._repr_html_())
    assert str(buffer.path) in shown.text
    assert f"{len(buffer):,} of " in shown.text
    assert all(path in shown.text for path in set(buffer.columns) - {"is_last", "row_checksum"})
    assert len(shown.addresses) == has_pictures
    listed = checked(episodes._repr_html_())
    assert EVIL in listed.text
    for episode in (episodes[0], episodes[1], episodes[-1]):
        one = checked(episode._repr_html_())
        assert episode.ending in one.text
        assert episode.tag in one.text
        assert len(one.addresses) == has_pictures
        assert f"{episode.returns:.6g}" in one.text
    for html in (buffer._repr_html_(), episodes._repr_html_(), episodes[0]._repr_html_()):
        assert html is not None
        assert EVIL not in html
        assert len(html) < 300_000


def test_tables_of_many_episodes_have_both_ends(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=FLOATS) as buffer:
        fill(buffer, np.random.default_rng(0), 40)
        episodes = buffer.episodes
        for some_, numbers in (
            (episodes, [*range(5), *range(len(episodes) - 5, len(episodes))]),
            (episodes[:11], list(range(11))),
        ):
            html = some_._repr_html_()
            assert checked(html)
            rows = [re.findall(r">([^<]*)</td>", row) for row in html.split("<tr>")[2:]]
            assert [int(row[0]) for row in rows if row[0] != "..."] == some_.id[numbers].tolist()
            for row in rows:
                if row[0] != "...":
                    episode = some_.find(int(row[0]))
                    assert row[1:4] == [str(v) for v in episode[:3]]
                    assert float(row[4]) == pytest.approx(episode.returns, rel=1e-4)
            lines = [re.split("  +", line.strip()) for line in str(some_).splitlines()[2:]]
            assert lines == [[unescape(cell) for cell in row if cell] for row in rows]
        assert str(episodes[:0]) == "Episodes: 0, of 0 steps"
        assert checked(episodes[:0]._repr_html_()).text.split()[:2] == ["Episodes", "0,"]


def test_empty_closed_and_evicted_ones_say_so(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", **STORES["wrapped around"]) as buffer:
        assert "0 of 60" in checked(buffer._repr_html_()).text
        assert "0, of 0 steps" in checked(buffer.episodes._repr_html_()).text
        rng = np.random.default_rng(0)
        fill(buffer, rng)
        before = buffer.episodes[:]
        fill(buffer, rng, 2)
        shown = checked(before._repr_html_())
        assert "evicted" in shown.text
        fill(buffer, rng)
        for episode in (before[0], before[len(before) // 2]):
            assert "evicted since" in checked(episode._repr_html_()).text
            assert episode.ending in checked(episode._repr_html_()).text
            for call in (episode.frames, episode.film_strip, episode.video):
                with pytest.raises(db.InputError, match="evicted since"):
                    call()
            assert np.isnan(episode.returns)
        assert "evicted" in checked(before._repr_html_()).text
        assert np.isnan(before.to_pandas()["returns"]).any()
        with pytest.raises(db.InputError, match="evicted"):
            before.to_pandas(steps=True)
        last, all_of = buffer.episodes[-1], buffer.episodes
    assert buffer._repr_html_() is None
    assert "closed" in checked(last._repr_html_()).text
    for closed in (last.frames, last.film_strip, all_of.to_pandas):
        with pytest.raises(db.errors.ClosedError):
            closed()


@pytest.mark.nightly
def test_it_is_shown_while_a_thread_writes_and_evicts(tmp_path: Path) -> None:
    """By the writer itself, and by a reader beside it, which refreshes."""
    stop, rng = threading.Event(), np.random.default_rng(0)
    with db.ReplayBuffer(tmp_path / "store", **STORES["wrapped around"]) as writer:
        fill(writer, rng)

        def write() -> None:
            while not stop.is_set():
                fill(writer, rng, 2)
                time.sleep(0.005)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
                for _ in range(20):
                    reader.refresh()
                    for buffer in (reader, writer):
                        checked(buffer._repr_html_())
                        checked(buffer.episodes._repr_html_())
                        checked(buffer.episodes[-1]._repr_html_())
        finally:
            stop.set()
            thread.join()


def test_looking_changes_no_byte(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", **STORES["wrapped around"]) as writer:
        fill(writer, np.random.default_rng(0))
        writer.flush(recompress=True)  # or that goes on in the background
        before = contents(tmp_path / "store")
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            for shown in (reader, reader.episodes, reader.episodes[0]):
                checked(shown._repr_html_())
            reader.episodes[0].video()
            reader.episodes.to_pandas(steps=True)
        assert contents(tmp_path / "store") == before


def test_what_is_shown_is_made_of_a_few_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: however many there are, only what is shown is read."""
    world = Experience(episode=20)
    with world.open(tmp_path / "store", segment_rows=512) as buffer:
        Feeder(world, buffer).add(3000)
        rows = counted_rows(buffer, monkeypatch)
        for shown, frames in ((buffer, 8), (buffer.episodes, 0), (buffer.episodes[7], 8)):
            checked(shown._repr_html_())
            assert sum(rows) == frames
            rows.clear()


def counted_rows(buffer: db.ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows of columns that are gathered, call by call."""
    gatherer, rows = buffer._reader.gatherer, list[int]()
    run = gatherer.run

    def counting(job: Any, shares: Any) -> None:
        for _, memory in shares:
            rows.extend(array.nbytes // memory.targets[0, n, ROW_BYTES] for n, (_, array) in enumerate(memory.items()))
        run(job, shares)

    monkeypatch.setattr(gatherer, "run", counting)
    return rows


# pandas


@pytest.mark.some(2)
def test_tables_have_what_the_buffer_returns(buffer: db.ReplayBuffer) -> None:
    episodes, table = buffer.episodes, buffer.episodes.to_pandas()
    assert list(table) == ["stream", "start", "length", "returns", "ending", "tag"]
    for name in table:
        np.testing.assert_array_equal(table[name].to_numpy(), getattr(episodes, name))
    assert list(episodes.to_pandas(returns=False)) == ["stream", "start", "length", "ending", "tag"]
    steps, names = buffer.episodes.to_pandas(steps=True), buffer.steps()
    batch = batch_of(buffer.at(names))
    assert steps.index.tolist() == names.tolist()
    assert steps["stream"].tolist() == (names % buffer.n_envs).tolist()
    assert steps["t"].tolist() == buffer.episodes.elapsed(names).tolist()
    assert table.index.tolist() == episodes.id.tolist()
    assert steps["episode"].tolist() == np.repeat(episodes.id, episodes.length).tolist()
    small = {
        path for path in batch if batch[path][0].size <= 32 and not path.startswith("next_") and path not in ("steps", "tag")
    }
    found = {re.sub(r"\[.*", "", name) for name in steps.columns[3:]}
    assert found == {"t_" if path == "t" else path for path in small}
    for path in small:
        name = "t_" if path == "t" else path
        flat = batch[path].reshape(len(names), -1)
        mine = steps[[column for column in steps.columns[3:] if re.sub(r"\[.*", "", column) == name]].to_numpy()
        np.testing.assert_array_equal(mine, flat)
    chosen = episodes[1:2].to_pandas(steps=True, columns=["reward"])
    assert chosen.index.tolist() == episodes[1].steps.tolist()
    assert list(chosen) == ["episode", "stream", "t", "reward"]
    for wrong in ("reward", ["nope"]):
        with pytest.raises(db.InputError):
            buffer.episodes.to_pandas(steps=True, columns=wrong)
    with pytest.raises(db.InputError, match="steps=True"):
        buffer.episodes.to_pandas(columns=["reward"])


def test_pictures_are_not_put_in_tables(tmp_path: Path) -> None:
    columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        fill(buffer, np.random.default_rng(0), 2)
        with pytest.raises(db.InputError, match=r"7,056 numbers a step.*buffer\.at"):
            buffer.episodes.to_pandas(steps=True, columns=["obs"])


# What is imported


@pytest.mark.nightly  # a process that imports torch
def test_nothing_is_imported_before_it_is_used(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
import diskbuffer as db
columns = {{"obs": db.Column((20, 16), "uint8"), "action": db.Column((), "int64")}}
with db.ReplayBuffer({str(tmp_path / "store")!r}, columns=columns) as buffer:
    buffer.extend(np.zeros((9, 20, 16), np.uint8), np.zeros(8, int), np.ones(8))
    episode = buffer.episodes[0]
    episode.frames(), episode.steps, episode.returns, episode.length
    heavy = {{"pandas", "PIL", "av", "matplotlib", "IPython"}}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
    buffer._repr_html_(), buffer.episodes._repr_html_(), episode._repr_html_()
    assert heavy & set(sys.modules) <= {{"PIL"}}, heavy & set(sys.modules)
    buffer.episodes.to_pandas(), buffer.episodes.to_pandas(steps=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with db.ReplayBuffer(tmp_path / "store", **STORES["pixels"]) as buffer:
        fill(buffer, np.random.default_rng(0))
        episode = buffer.episodes[0]
        for name in ("pandas", "PIL.Image"):
            monkeypatch.setitem(sys.modules, name, None)
        for call, package in (
            (lambda: buffer.episodes.to_pandas(steps=True), "pandas"),
            (buffer.episodes.to_pandas, "pandas"),
            (episode.film_strip, "pillow"),
        ):
            advice = rf"pip install {package}, or pip install 'diskbuffer\[notebook\]'"
            with pytest.raises(db.errors.MissingPackageError, match=advice):
                call()
        for html in (buffer._repr_html_(), episode._repr_html_()):
            assert "pip install pillow" in checked(html).text
        assert episode.ending in checked(episode._repr_html_()).text
        assert episode.frames().shape == (episode.length + 1, 20, 16)


# The documentation


@pytest.mark.nightly
def test_what_the_page_says_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/looking/notebook.md").read_text()
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "notebook.md", "exec"), {})
    assert (tmp_path / "episode.mp4").stat().st_size > 1000
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (ROOT / "docs/looking" / link).stat().st_size < 150_000
