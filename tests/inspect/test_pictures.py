"""Pictures of arrays: what is drawn is decoded again, and compared."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

import diskbuffer as db
from diskbuffer.inspect import pictures
from diskbuffer.inspect.pictures.images import enlarged
from diskbuffer.plugin import PictureKind, picture_kind
from tests.amounts import examples

Array = np.ndarray[Any, Any]
CASES = examples(10, 200)
SIDES = st.integers(8, 40)


def decoded(data: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(data)))


@st.composite
def films(draw: st.DrawFn, most: int = 6) -> Array:
    """uint8 frames of any layout that is a picture."""
    n, height, width = draw(st.integers(1, most)), draw(SIDES), draw(SIDES)
    shape = draw(
        st.sampled_from([(height, width), (1, height, width), (height, width, 1), (3, height, width), (height, width, 3)])
    )
    if draw(st.booleans()):  # few colours
        return np.random.default_rng(draw(st.integers(0, 99))).choice(np.array([0, 7, 90, 255], np.uint8), (n, *shape))
    return np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (n, *shape), np.uint8)


def plainly(frame: Array) -> Array:
    """What a uint8 frame of one or three channels looks like, by another way than the code's."""
    if frame.ndim == 2:
        return frame
    if frame.shape[0] == 1 or frame.shape[-1] == 1:
        return frame.squeeze(0 if frame.shape[0] == 1 else 2)
    return frame if frame.shape[2] == 3 else np.stack(list(frame), axis=-1)


# Which columns are pictures


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((84, 84), "uint8", (84, 84, None, 1)),
        ((1, 84, 80), "uint8", (84, 80, 0, 1)),
        ((84, 80, 1), "uint8", (84, 80, 2, 1)),
        ((3, 64, 96), "uint8", (64, 96, 0, 3)),
        ((210, 160, 3), "uint8", (210, 160, 2, 3)),
        ((4, 84, 84), "uint8", (84, 84, 0, 4)),
        ((84, 84, 4), "uint8", (84, 84, 2, 4)),
        ((9, 84, 84), "uint8", (84, 84, 0, 9)),
        ((10, 10, 4), "bool", (10, 10, 2, 4)),
        ((64, 64), "float32", (64, 64, None, 1)),
        ((480, 640), "uint16", (480, 640, None, 1)),
        ((), "uint8", None),
        ((100,), "uint8", None),
        ((7, 7, 3), "uint8", None),
        ((12, 12), "float32", None),
        ((17, 84, 84), "uint8", None),
        ((4, 84, 84, 3), "uint8", None),
        ((84, 84), "complex64", None),
    ],
)
def test_pictures_are_told_from_other_columns(shape: tuple[int, ...], dtype: str, expected: tuple[Any, ...] | None) -> None:
    found = picture_kind(shape, dtype)
    assert found == (None if expected is None else PictureKind(*expected))
    frames = np.zeros((2, *shape), dtype)
    if found is None:
        with pytest.raises(db.InputError, match="no pictures"):
            pictures.as_pictures(frames)
    else:
        assert pictures.as_pictures(frames).shape[:3] == (2, found.height, found.width)


def test_the_observation_comes_first_among_picture_columns() -> None:
    columns = {
        "depth": db.Column((32, 32), "uint16"),
        "action": db.Column((), "int64"),
        "obs/state": db.Column((5,), "float32"),
        "obs/camera": db.Column((3, 64, 64), "uint8"),
    }
    assert list(pictures.picture_columns(columns)) == ["obs/camera", "depth"]


# Pixels


@given(films())
@CASES
def test_every_pixel_is_shown_as_it_is(film: Array) -> None:
    assert (pictures.as_pictures(film)[0] == plainly(film[0])).all()
    larger = enlarged(pictures.as_pictures(film), 3)[0]
    assert (larger == np.kron(plainly(film[0]), np.ones((3, 3, 1) if larger.ndim == 3 else (3, 3), np.uint8))).all()


@given(arrays(np.float32, (2, 16, 17), elements=st.floats(0, 1, width=32)))
@CASES
def test_floats_from_0_to_1_span_black_to_white(film: Array) -> None:
    assert (pictures.as_pictures(film) == np.rint(film.astype(np.float64) * 255)).all()


@given(
    arrays(np.float64, (2, 16, 16), elements=st.floats(allow_nan=True, allow_infinity=True))
    | arrays(np.float16, (1, 16, 16), elements=st.floats(allow_nan=True, allow_infinity=True, width=16))
    | arrays(np.uint16, (2, 8, 8))
    | arrays(np.int64, (1, 8, 8))
    | arrays(np.uint64, (1, 8, 8))
)
@CASES
def test_whatever_numbers_there_are_their_order_is_kept(film: Array) -> None:
    pixels = pictures.as_pictures(film)
    assert pixels.dtype == np.uint8
    finite = np.isfinite(film)
    assert not pixels[~finite].any()
    order = np.argsort(film[finite], kind="stable")
    assert (np.diff(pixels[finite][order].astype(int)) >= 0).all()
    if film.dtype.kind in "ui" and film.min() < film.max():
        assert (pixels.min(), pixels.max()) == (0, 255)


def test_the_newest_of_a_stack_is_shown_and_boolean_planes_are_coloured() -> None:
    rng = np.random.default_rng(0)
    stack = rng.integers(0, 256, (2, 4, 20, 20), np.uint8)
    assert (pictures.as_pictures(stack) == stack[:, 3]).all()
    stack = rng.integers(0, 256, (2, 9, 20, 20), np.uint8)
    assert (pictures.as_pictures(stack) == stack[:, 6:].transpose(0, 2, 3, 1)).all()
    planes = rng.random((3, 10, 10, 4)) < 0.2
    coloured = pictures.as_pictures(planes)
    assert (coloured.any(-1) == planes.any(-1)).all()
    first = [np.unique(coloured[planes[..., n] & ~planes[..., :n].any(-1)], axis=0) for n in range(4)]
    assert [len(each) for each in first] == [1] * 4
    assert len(np.unique(np.concatenate(first), axis=0)) == 4


# Film strips


@given(films(), st.integers(1, 8))
@CASES
def test_a_film_strip_has_the_frames_in_their_places(film: Array, n: int) -> None:
    shown = pictures.spread(len(film), n)
    assert len(shown) == min(n, len(film))
    assert shown[0] == 0
    assert n == 1 or shown[-1] == len(film) - 1
    assert (np.diff(shown) > 0).all()
    height, width = plainly(film[0]).shape[:2]
    strip = decoded(pictures.film_strip(film[shown], [""] * len(shown), height=2 * height, width=4 * width + 18, title="title"))
    assert strip.shape[1] == (2 * width + 6) * min(2, len(shown)) + 6
    for place, at in enumerate(shown.tolist()):  # 6 pixels between two, 13 of text, and two across
        y, x = 13 + 12 + place // 2 * (2 * height + 25), 6 + place % 2 * (2 * width + 6)
        tile = plainly(film[at]).repeat(2, 0).repeat(2, 1)
        assert (strip[y : y + 2 * height, x : x + 2 * width] == (tile if tile.ndim == 3 else tile[..., None])).all()


def test_labels_are_drawn_below_their_frames_and_cut_to_their_width() -> None:
    film = np.zeros((3, 84, 84), np.uint8)
    plain, labelled = (decoded(pictures.film_strip(film, labels)) for labels in (["", "", ""], ["", "W" * 500, ""]))
    differs = np.argwhere((plain != labelled).any(-1))
    assert len(differs) > 50
    (top, left), (bottom, right) = differs.min(0), differs.max(0)
    assert 6 + 168 <= top < bottom < plain.shape[0]
    assert 6 + 174 <= left < right < 6 + 174 + 168
    assert pictures.film_strip(film, ["\n<b>", "ä\x00\u202e", "日本"]).startswith(b"\x89PNG")


def test_large_frames_are_made_smaller() -> None:
    film = np.full((5, 480, 640, 3), 77, np.uint8)
    strip = decoded(pictures.film_strip(film, [""] * 5, height=120, width=1000))
    assert strip.shape[0] < 200
    assert strip.shape[1] == 5 * (160 + 6) + 6
    assert (strip[6:126, 6:166] == 77).all()


# Movies


@given(films(), st.integers(1, 50), st.integers(1, 2))
@CASES
def test_a_gif_has_every_frame_for_its_time(film: Array, fps: int, scale: int) -> None:
    image = Image.open(io.BytesIO(pictures.movie(film, "gif", fps, scale=scale)))
    assert image.size == tuple(scale * side for side in plainly(film[0]).shape[1::-1])
    shown, lasting = [], []
    for n in range(getattr(image, "n_frames", 1)):
        image.seek(n)
        shown.append(np.asarray(image.convert("RGB"))[::scale, ::scale])
        lasting.append(image.info.get("duration", 0))
    ends = np.cumsum(lasting)
    assert len(shown) == 1 or abs(ends[-1] - len(film) * 1000 / fps) <= 5
    plain = [plainly(frame) for frame in film]
    exact = plain[0].ndim == 2 or len(np.unique(np.concatenate([each.reshape(-1, 3) for each in plain]), axis=0)) <= 256
    for n, wanted in enumerate(plain):
        at = int(np.searchsorted(ends, (n + 0.5) * 1000 / fps)) if len(shown) > 1 else 0
        difference = np.abs(shown[at].astype(int) - (wanted if wanted.ndim == 3 else wanted[..., None]))
        assert not difference.any() if exact else difference.mean() < 24


def smooth(n: int, height: int, width: int, colour: bool) -> Array:
    """Frames as cameras have them: no noise."""
    time, y, x = np.ogrid[:n, :height, :width]
    waves = [127 + 120 * np.sin(time / 5 + y / 20 * (1 + c) + x / 20 * (3 - c)) for c in range(3 if colour else 1)]
    return np.stack(waves, axis=-1).astype(np.uint8)


@pytest.mark.nightly
@given(st.integers(1, 30), SIDES, SIDES, st.booleans(), st.sampled_from([1, 12.5, 15, 29.97, 60, 240]), st.integers(1, 3))
@CASES
def test_an_mp4_has_every_frame_in_even_sizes(n: int, height: int, width: int, colour: bool, fps: float, scale: int) -> None:
    film = smooth(n, height, width, colour)
    with av.open(io.BytesIO(pictures.movie(film, "mp4", fps, scale=scale)), "r") as container:
        stream = container.streams.video[0]
        assert float(stream.average_rate or 0) == pytest.approx(fps, rel=1e-3)
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.colorspace, context.color_range) == ("h264", "yuv420p", 6, 1)
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(shown) == n
    assert shown[0].shape[:2] == tuple(-(-scale * side // 2) * 2 for side in (height, width))
    for frame, found in zip(film, shown, strict=True):
        wanted = frame.repeat(scale, 0).repeat(scale, 1)
        difference = (found[: wanted.shape[0], : wanted.shape[1]].astype(int) - wanted).mean(-1)  # colours have half the pixels
        assert np.abs(difference).mean() < 10  # 120 on average, were it another frame


def test_what_is_no_movie_is_refused() -> None:
    film = np.zeros((3, 20, 20), np.uint8)
    for kind in ("gif", "mp4"):
        with pytest.raises(db.InputError, match="found none"):
            pictures.movie(film[:0], kind)
        for fps in (0, -1, float("nan"), 1000):
            with pytest.raises(db.InputError, match="fps"):
                pictures.movie(film, kind, fps)
        with pytest.raises(db.InputError, match="16,384"):
            pictures.movie(film, kind, scale=1000)
    with pytest.raises(db.InputError, match="found none"):
        pictures.film_strip(film[:0], [])
    with pytest.raises(db.InputError, match="at least 1"):
        pictures.spread(3, 0)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    film = np.zeros((3, 20, 20), np.uint8)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(db.errors.MissingPackageError, match=r"pip install av, or pip install 'diskbuffer\[video\]'"):
        pictures.movie(film, "mp4")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        pictures.movie(film, "gif")
    with pytest.raises(ImportError, match="pip install pillow"):
        pictures.film_strip(film, ["", "", ""])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib, or pip install 'diskbuffer\[plots\]'"):
        pictures.curves({"a": np.arange(2)}, np.arange(2), x_label="step", width=800)


@pytest.mark.nightly
def test_nothing_large_is_imported_before_something_is_drawn() -> None:
    code = """
import sys
import numpy as np
from diskbuffer.inspect import pictures
from diskbuffer.plugin import PictureKind, picture_kind
from diskbuffer.inspect.pictures.images import enlarged
assert picture_kind((84, 84), "uint8")
heavy = {"torch", "numba", "PIL", "av", "matplotlib", "pandas", "xarray", "zarr"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
pictures.film_strip(np.zeros((3, 20, 20), np.uint8), ["", "", ""])
assert heavy & set(sys.modules) == {"PIL"}, heavy & set(sys.modules)
pictures.curves({"a": np.arange(2)}, np.arange(2), x_label="step", width=800)
assert heavy & set(sys.modules) == {"PIL", "matplotlib"}, heavy & set(sys.modules)
"""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


# Curves

NUMBERS = st.one_of(
    arrays(np.float64, st.integers(0, 50), elements=st.floats(allow_nan=True, allow_infinity=True)),
    arrays(np.float32, st.integers(0, 50), elements=st.floats(-100, 100, width=32)),
    arrays(np.int64, st.integers(0, 50)),
    arrays(np.uint8, st.integers(0, 50)),
    arrays(np.bool_, st.integers(0, 50)),
    arrays(np.float32, st.tuples(st.integers(0, 20), st.integers(1, 12)), elements=st.floats(-(2.0**99), 2.0**99, width=32)),
)


@pytest.mark.nightly
@given(NUMBERS, st.text(max_size=50))
@examples(4, 100)
def test_whatever_numbers_there_are_a_plot_is_made(values: Array, name: str) -> None:
    image = plotted({name: values, "again": values}, title=name, width=300)
    assert image.shape[1] == 300
    assert (image < 200).any()


def plotted(values: dict[str, Array], *, title: str = "", width: int = 800) -> Array:
    x = np.arange(len(next(iter(values.values()))))
    return decoded(pictures.curves(values, x, x_label="step", title=title, width=width))


def drawn(image: Array) -> Array:
    """Where a plot has the colour of the first line, (n, 2)."""
    return np.argwhere((np.abs(image[:, :, :3].astype(int) - (31, 119, 180)) < 60).all(-1))


@pytest.mark.nightly
@given(st.integers(0, 99_999), st.sampled_from([1, -1]))
@examples(2, 50)
def test_no_peak_is_lost_among_many_values(at: int, sign: int) -> None:
    values = np.zeros(100_000)
    values[at] = sign
    ys, xs = drawn(plotted({"value": values})).T
    others = ys.max() if sign > 0 else ys.min()
    assert np.ptp(ys) > 40
    peak, line = xs[np.abs(ys - others) > 10], xs[np.abs(ys - others) < 5]
    assert abs(peak.mean() - (line.min() + at / 100_000 * np.ptp(line))) < 12


def test_a_curve_rises_where_its_values_do() -> None:
    ys, xs = drawn(plotted({"up": np.arange(50.0)})).T
    assert np.corrcoef(xs, ys)[0, 1] < -0.99
    ys, xs = drawn(plotted({"down": -np.arange(10)})).T
    assert np.corrcoef(xs, ys)[0, 1] > 0.9


def test_gaps_are_left_and_single_points_are_seen() -> None:
    values = np.full(100, np.nan)
    values[20], values[60:70] = 1, 1
    _, xs = drawn(plotted({"value": values})).T
    gaps = np.flatnonzero(np.diff(np.unique(xs)) > 20)
    assert len(gaps) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan, np.nan, 2.0, 3.0], [1.0, 2.0, np.nan, np.nan, 1.0]])
def test_a_point_alone_at_an_end_is_seen(values: list[float]) -> None:
    ys, xs = drawn(plotted({"value": np.array(values)})).T
    assert len(ys) > 4
    if len(values) > 1:
        assert np.ptp(xs) > 600
