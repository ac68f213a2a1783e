"""Stores to Dreamer's replays and back."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.formats import export, import_
from diskbuffer.formats.npz import dreamer_writing
from tests.amounts import examples
from tests.formats import episodes as made


@given(
    seed=st.integers(0, 10**6),
    version=st.sampled_from([2, 3]),
    streams=st.integers(1, 3),
    rows=st.integers(2, 50),
    block=st.integers(1, 10),
)
@examples(1, 20)
def test_a_store_comes_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, seed: int, version: int, streams: int, rows: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("dreamer")
    streams = streams if version == 3 else 1
    random = np.random.default_rng(seed)
    episodes = [one for n in range(4) for one in made.some(2, seed + n, stream=int(random.integers(streams)))]
    made.store_of(path / "store", episodes, n_envs=streams, metadata={"a": 1})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dreamer_writing, "_ROWS", rows)
        made.read_here(patched, block * 1500)
        export("dreamer", path / "store", path / "out", version=version, progress=False)
        import_("dreamer", path / "out", path / "back", progress=False)
    for stream in range(streams):
        of_stream = [[one for one in made.read(path / name) if one["stream"] == stream] for name in ("store", "back")]
        made.assert_same(*of_stream)
    with db.ReplayBuffer(path / "back", mode="r") as buffer:
        assert buffer.metadata == {"a": 1}
        assert buffer.n_envs == streams


def test_stacks_of_frames_come_back(tmp_path: Path) -> None:
    columns = {"obs": db.Column((12, 12), "uint8"), "action": db.Column((), "int64")}
    episodes = made.some(5, 1, columns)
    made.store_of(tmp_path / "store", episodes, columns, frame_stack=4)
    export("dreamer", tmp_path / "store", tmp_path / "out", progress=False)
    import_("dreamer", tmp_path / "out", tmp_path / "back", progress=False)
    made.assert_same(made.read(tmp_path / "back"), made.expected(episodes))
    with db.ReplayBuffer(tmp_path / "back", mode="r") as buffer:
        assert buffer.sample(2)["obs"].shape == (2, 4, 12, 12)


def test_rows_are_as_dreamerv3_has_them(tmp_path: Path) -> None:
    episodes = made.some(3, 5)
    made.store_of(tmp_path / "store", episodes)
    export("dreamer", tmp_path / "store", tmp_path / "out", progress=False)
    (file,) = (tmp_path / "out").glob("*.npz")
    with np.load(file) as arrays:
        row = 0
        for one in episodes:
            n, c = one.steps, one.columns
            np.testing.assert_array_equal(arrays["camera"][row : row + n + 1], c["obs/camera"])
            np.testing.assert_array_equal(arrays["action"][row : row + n], c["action"])
            assert not arrays["action"][row + n].any()
            np.testing.assert_array_equal(arrays["reward"][row + 1 : row + n + 1], c["reward"])
            assert arrays["reward"][row] == 0
            assert arrays["is_first"][row : row + n + 1].tolist() == [True] + [False] * n
            last, terminal = one.flag("terminated") or one.flag("truncated"), one.flag("terminated")
            assert arrays["is_last"][row : row + n + 1].tolist() == [False] * n + [last]
            assert arrays["is_terminal"][row : row + n + 1].tolist() == [False] * n + [terminal]
            row += n + 1
        assert arrays["stepid"].shape == (row, 20)


def test_what_dreamer_cannot_hold_is_named(tmp_path: Path) -> None:
    made.store_of(tmp_path / "store", made.some(2, tag="good"), n_envs=2)
    with pytest.raises(db.errors.LossError, match="tags: ") as raised:
        export("dreamer", tmp_path / "store", tmp_path / "out", version=2, progress=False)
    assert "streams: " in str(raised.value)
    with pytest.raises(db.InputError, match="version must be"):
        export("dreamer", tmp_path / "store", tmp_path / "out", version=4, allow_loss=["tags"], progress=False)


def saved(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


FINE: dict[str, Any] = {
    "image": np.zeros((5, 4, 4, 3), np.uint8),
    "action": np.zeros((5, 2), np.float32),
    "reward": np.zeros(5, np.float32),
    "is_first": np.arange(5) == 0,
    "is_last": np.arange(5) == 4,
    "is_terminal": np.zeros(5, bool),
}


def damaged(change: Callable[[bytearray], object]) -> bytes:
    """Return a file whose bytes were changed."""
    data = bytearray(saved(**FINE))
    change(data)
    return bytes(data)


def claiming(member: bytes) -> bytes:
    """Return a file in which an array of this header and rows lies beside the others."""
    stream = io.BytesIO(saved(**FINE))
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("other.npy", member)
    return stream.getvalue()


def header(text: str, version: int = 1) -> bytes:
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


SHAPE = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }\n"
HOSTILE = {
    "no zip": b"nothing of the kind",
    "empty": b"",
    "cut short": saved(**FINE)[:-100],
    "a flipped byte": damaged(lambda data: data.__setitem__(60, data[60] ^ 255)),
    "rows missing": saved(**{**FINE, "action": np.zeros((4, 2), np.float32)}),
    "no action": saved(**{name: FINE[name] for name in FINE if name != "action"}),
    "pickles": saved(**FINE, other=np.array([{}] * 5, object)),
    "texts": saved(**FINE, other=np.array(["a"] * 5)),
    "a single value": saved(**FINE, other=np.float32(1)),
    "rows of nothing": saved(**FINE, other=np.zeros((5, 0))),
    "flags of pictures": saved(**{**FINE, "is_last": np.zeros((5, 3), bool)}),
    "flags of records": saved(**{**FINE, "is_last": np.zeros(5, [("a", "?"), ("b", "i4")])}),
    "flags of texts": saved(**{**FINE, "is_last": np.array(["0"] * 5)}),
    "two episodes": saved(**{**FINE, "is_first": np.array([1, 0, 1, 0, 0], bool)}),
    "one row": saved(**{name: value[:1] for name, value in FINE.items()}),
    "a shape larger than its bytes": claiming(header(SHAPE % 10**15) + bytes(20)),
    "a negative shape": claiming(header(SHAPE % "-5") + bytes(20)),
    "a header that is code": claiming(header("__import__('os')\n") + bytes(20)),
    "a header of 4 GB": claiming(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100)),
    "a version of the future": claiming(header(SHAPE % 5, 9) + bytes(20)),
    "no array": claiming(b"text"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_errors(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "20260101T000000-abc-4.npz").write_bytes(HOSTILE[kind])
    with pytest.raises((db.errors.SourceError, db.InputError)) as raised:
        import_("dreamer", tmp_path / "in", tmp_path / "store", progress=False)
    assert raised.type in (db.errors.SourceError, db.InputError)
    assert not (tmp_path / "store").exists()


def test_a_file_that_is_well_is_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "20260101T000000-abc-4.npz").write_bytes(saved(**FINE))
    import_("dreamer", tmp_path / "in", tmp_path / "store", progress=False)
    assert [one["steps"] for one in made.read(tmp_path / "store")] == [4]


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("a.npy", header(SHAPE % 500) + bytes(2000))
        for number in range(9):  # each of them a name for the same bytes
            info = zipfile.ZipInfo(f"b{number}.npy")
            first = file.infolist()[0]
            for name in ("compress_size", "file_size", "CRC", "header_offset"):
                setattr(info, name, getattr(first, name))
            file.filelist.append(info)
            file.NameToInfo[info.filename] = info
    (tmp_path / "20260101T000000-abc-4.npz").write_bytes(stream.getvalue())
    with pytest.raises(db.errors.SourceError, match="overlap"):
        import_("dreamer", tmp_path, tmp_path / "store", progress=False)


def chunk(path: Path, name: str, rows: int = 6) -> None:
    arrays: dict[str, Any] = {key: np.zeros((rows, *value.shape[1:]), value.dtype) for key, value in FINE.items()}
    np.savez_compressed(path / name, **arrays)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["20260101T000000F1-a-b-6", "20260101T000000F2-b-a-6"], "circle"),
        (["20260101T000000F1-a-c-6", "20260101T000000F2-b-c-6", "20260101T000000F3-c-0-6"], "same file"),
        (["20260101T000000F1-a-c-6", "20260101T000000F2-a-0-6"], "same identifier"),
        (["20260101T000000F1-a-c-7"], "should have 7"),
        (["first"], "version=2"),
    ],
)
def test_names_that_contradict_themselves_are_errors(tmp_path: Path, names: list[str], match: str) -> None:
    for name in names:
        chunk(tmp_path, f"{name}.npz")
    with pytest.raises((db.errors.SourceError, db.InputError), match=match):
        import_("dreamer", tmp_path, tmp_path / "store", progress=False)


def test_files_that_differ_are_errors(tmp_path: Path) -> None:
    (tmp_path / "20260101T000000-a-4.npz").write_bytes(saved(**FINE))
    (tmp_path / "20260101T000001-b-4.npz").write_bytes(saved(**{**FINE, "reward": np.zeros(5)}))
    with pytest.raises(db.errors.SourceError, match="'reward' should be the same in all files"):
        import_("dreamer", tmp_path, tmp_path / "store", progress=False)


@pytest.mark.parametrize("told", [b"{", b"[]", b'{"version": 1}', b'{"version": 2}', b"{}", b"[" * 100_000])
def test_a_damaged_description_is_an_error(tmp_path: Path, told: bytes) -> None:
    (tmp_path / "20260101T000000-a-4.npz").write_bytes(saved(**FINE))
    (tmp_path / "diskbuffer.json").write_bytes(told)
    with pytest.raises(db.errors.SourceError):
        import_("dreamer", tmp_path, tmp_path / "store", progress=False)
