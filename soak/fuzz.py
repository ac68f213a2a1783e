"""Stores from strangers: whatever their metadata, index and chunks say, no code is run and no byte read out of bounds.

Three campaigns: whole stores are changed by a seeded mutator, with right checksums, opened and read in a process that may
crash, hang (10 s), take too much memory (2 GB), run code or open files elsewhere, which an audit hook sees; hostile chunks go
to the compiled decoder (`soak.decoder`); changed states go to samplers. Links that lead elsewhere are those of `soak.links`.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import math
import os
import random
import reprlib
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import diskbuffer as db
from diskbuffer.schema.nested import put
from soak import decoder, vouching
from soak.audit import Watch
from soak.damage import check
from soak.table import Row, tally
from soak.workers import Answer, Job, Pool, scratch
from tests.support.specimens import KINDS, adopt, make, replace

BASES = ("pixels, closed", "flat, killed", "nested, killed", "3 envs, closed")
FINE = {"refused": "refused, at opening or reading", "read": "read, wholly in bounds"}
BROKEN = {
    "crash": "the process crashed",
    "hang": "the process hung",
    "memory": "took more than 2 GB",
    "code": "ran code",
    "outside": "opened files elsewhere",
    "flags": "returned bools that are neither 0 nor 1",
    "untyped": "an error that is no DiskBufferError",
}
HUGE = "chunks of more than 2 GB"
_DEEP = "deep"  # stands for nesting that `json.dumps` could not write
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 8, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64),
    *(-(2**31), -(2**63), 10**400, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf),
    *("", "\0", "a\0b", "../../x", "a/../../b", "/etc/passwd", ".", "é" * 50, "x" * 10_000, "__class__", "obs", "is_last"),
    *("int64", "object", "O", "V8", "U10", "M8[s]", ">i8", "float128", "bool", "complex128"),
    *([], [[]], {}, {"a": 1}, [1] * 33, [1] * 70, [2**31] * 3, [2**62, 2], [0], [-1], [3.5], ["3"], [0] * 100_000, _DEEP),
)
NAMES: tuple[str, ...] = (
    *("../../x", "a/../../b", "", "\0", "/x", "obs", "obs/", "/", "_segments", "_tail/obs", "x" * 300, "é", "\uff41", "class"),
    *("tag", "next_obs", "steps", "priority", "is_last/x", "obs/a/b/c/d/e", "c", "zarr", "terminated"),
)
NUMBERS: tuple[int, ...] = (
    *(-(2**63), -(2**62), -1, 0, 1, 7, 8, 15, 16, 17, 48, 2**20, 2**31 - 1, 2**31, 2**32, 2**62),
    *(2**63 - 32, 2**63 - 16, 2**63 - 1),
)


# Hostile stores


def mutate(root: Path, rng: random.Random) -> list[str]:
    """Change a store as no writer of ours would; return what was done."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_CHANGES)
        with contextlib.suppress(Exception):  # an earlier one may have left nothing to change
            done.append(f"{change.__name__.strip('_')}: {change(root, rng)}")
    if rng.random() < 0.85:
        vouching.vouch(root)
        done.append("vouched for")
    return done


def remove(root: Path) -> None:
    """Remove what was a store; there may be anything now."""
    if root.is_symlink() or root.is_file():
        root.unlink()
    shutil.rmtree(root, ignore_errors=True)


def hostile_json(told: Any) -> bytes:
    """Return what `mutate_json` made as it is written."""
    return json.dumps(told).replace(f'"{_DEEP}"', "[" * 20_000 + "]" * 20_000).encode(errors="surrogatepass")


@contextlib.contextmanager
def _metadata(root: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Have the group's metadata, and what the store says of itself in it; they are written again."""
    metadata = json.loads((root / "zarr.json").read_bytes())
    yield metadata, metadata["attributes"]["diskbuffer"]
    replace(root / "zarr.json", hostile_json(metadata))


def _described(root: Path) -> Any:
    return json.loads((root / "zarr.json").read_bytes())["attributes"]["diskbuffer"]


def _attributes(root: Path, rng: random.Random) -> str:
    """Put something else into what the store says of itself."""
    with _metadata(root) as (metadata, _):
        return mutate_json(metadata["attributes"] if rng.random() < 0.85 else metadata, rng)


def mutate_json(place: Any, rng: random.Random) -> str:
    """Change one value somewhere below `place`, a dict or a list."""
    steps: list[Any] = []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return "nothing"
        key = rng.choice(keys)
        steps.append(key)
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner and rng.random() < (0.95 if isinstance(inner, dict) else 0.57)):
            break
        place = inner
    way = rng.randrange(8)
    if way == 0:
        del place[key]
        return f"{steps} deleted"
    if way == 1 and isinstance(place, dict):
        name = rng.choice(NAMES)
        place[name] = place.pop(key)
        return f"{steps} named {name!r}"
    choices: tuple[Any, ...] = HOSTILE
    if way == 2 and isinstance(inner, int):
        choices = (inner + 1, inner - 1, inner * 2, inner * 2**20, -inner, float(inner), str(inner), [inner])
    elif way == 3 and isinstance(inner, list):
        choices = (inner * 3, inner[::-1], [*inner, rng.choice(HOSTILE)], inner * (1000 if len(inner) < 100 else 2))
    elif way == 4:
        choices = (copy.deepcopy(place[rng.choice(keys)]),)
    place[key] = rng.choice(choices)
    return f"{steps} set to {reprlib.repr(place[key])}"


def _raw_json(root: Path, rng: random.Random) -> str:
    """Damage the text itself."""
    file = rng.choice([root / "zarr.json", root / "zarr.json", rng.choice(sorted(root.rglob("zarr.json")))])
    text = bytearray(file.read_bytes())
    at = rng.randrange(len(text))
    parts = (b"", b"\xff\xfe", b"[" * 100_000, b'{"a":', b"\0", b"1e999", b"9" * 5000)
    text[at : at + rng.choice((0, 1, 40, len(text)))] = rng.choice(parts)
    replace(file, bytes(text))
    return f"{file.relative_to(root)} at {at}"


def _column(root: Path, rng: random.Random) -> str:
    """Give a column another shape or dtype, and files that fit it; as large as they are, they take no room."""
    shapes: Any = ([], [1], [3], *([2**n] for n in (10, 20, 27, 31, 40, 59)), [2, 3], [34, 33], *([1] * n for n in (5, 33, 64)))
    with _metadata(root) as (_, described):
        name = rng.choice(list(described["columns"]))
        column = described["columns"][name]
        column["shape"] = rng.choice((column["shape"], rng.choice(shapes)))
        column["dtype"] = rng.choice((column["dtype"], *("bool", "int8", "float16", "float64", "complex128", "uint16")))
        column["derived"] = rng.choice((column["derived"], column["derived"], True, False))
        if rng.random() < 0.4:
            described["chunk_rows"] = {**described["chunk_rows"], name: rng.choice((1, 2, 4, 8))}
        elif rng.random() < 0.2:
            described["chunk_rows"].pop(name, None)
        described["segment_rows"] = rng.choice((described["segment_rows"],) * 6 + (8, 32, 2**16, 2**30))
        described["streams"] = rng.choice((described["streams"],) * 6 + (1, 2, 3, 10_000))
    for path, other in described["columns"].items():  # all, for the rows of a segment may be others
        with contextlib.suppress(OSError, OverflowError):
            _fit_files(root, described, path, other)
        checksums = root / "_segments/checksum" / path / "c.0"  # of columns that are flat now
        checksums.parent.mkdir(parents=True, exist_ok=True)
        if not checksums.exists():
            checksums.write_bytes(bytes(4096 * 4))
    return f"{name}: {column}"


def _fit_files(root: Path, described: Any, path: str, column: Any) -> None:
    each, zeros = math.prod(column["shape"]) * np.dtype(column["dtype"]).itemsize, ".0" * len(column["shape"])
    for file in (root / path).glob("c.*"):
        wanted = file.with_name("c." + file.name.split(".")[1] + zeros)
        file.rename(wanted)
        if path not in described["chunk_rows"]:
            os.truncate(wanted, described["segment_rows"] * each)
    if path in described["chunk_rows"]:
        tail = root / "_tail" / path / f"c.0.0{zeros}"
        tail.parent.mkdir(parents=True, exist_ok=True)
        with tail.open("ab") as opened:
            opened.truncate(described["streams"] * described["tail_rows"] * each)


def _table(root: Path, rng: random.Random) -> str:
    """Put other numbers into the segment table, mostly where it is in use."""
    slots, told = _slots(root), []
    for _ in range(rng.choice((1, 1, 2, 4, 20))):
        file = rng.choice([file for file in sorted((root / "_segments").rglob("c.*")) if file.stat().st_size])
        data = bytearray(file.read_bytes())
        width = max(1, len(data) // 4096)
        slot = rng.choice((*slots, rng.randrange(len(data) // width)))
        value = rng.choice((*NUMBERS, rng.randrange(2**63), *(16 * n for n in range(8))))
        new = (value % 2**64).to_bytes(8, "little")[:width]
        if rng.random() < 0.3:
            other = rng.choice(slots)
            new = bytes(data[other * width : (other + 1) * width])
        data[slot * width : (slot + 1) * width] = new
        replace(file, bytes(data))
        told.append(f"{file.parent.name}[{slot}] {value}")
    return ", ".join(told[:4])


def _slots(root: Path) -> list[int]:
    """Return the slots that are in use, by what is in the columns."""
    found = {int(file.name.split(".")[1]) for file in (root / "is_last").glob("c.*") if file.name.split(".")[1].isdigit()}
    return sorted(found) or [0]


def _first_rows(root: Path, rng: random.Random) -> str:
    """Move a whole stream elsewhere: far away, where sums overflow."""
    rows = _described(root)["segment_rows"]
    shift = rng.choice((2**62, 2**63 - 2 * rows - 2**20, 2**61, 2**53, 2**40, 2**32, 2**31)) // rows * rows
    for name in ("first_row", "episode_start"):
        file = root / "_segments" / name / "c.0"
        numbers = np.frombuffer(file.read_bytes(), np.int64).copy()
        numbers[_slots(root)] = np.minimum(numbers[_slots(root)], 2**20) + shift
        replace(file, numbers.tobytes())
    return f"moved by {shift}"


def _state(root: Path, rng: random.Random) -> str:
    """Tell of another end of the last writer: of a kill, a power loss, a close; and of other rows that were synced."""
    name = root / "_segments/length/state.json"
    found = json.loads(name.read_bytes())
    found["boot"] = rng.choice((found["boot"], "another", "", "x" * 10_000))
    found["clean"] = rng.choice((found["clean"], True, False))
    if rng.random() < 0.5:
        found["synced"] = rng.choice(([n * 2 for n in found["synced"]], [rng.choice(NUMBERS) for _ in found["synced"]]))
    if rng.random() < 0.2:
        mutate_json(found, rng)
    replace(name, hostile_json(found))
    return reprlib.repr(found)


def _a_shard(root: Path, rng: random.Random) -> tuple[Path, int, int]:
    """Return a shard, how many chunks it has, and how many bytes a chunk holds."""
    described = _described(root)
    shards = [(path, file) for path in described["chunk_rows"] for file in sorted((root / path).glob("c.*"))]
    path, shard = rng.choice([(path, file) for path, file in shards if file.stat().st_size])
    column, rows = described["columns"][path], described["chunk_rows"][path]
    return shard, described["segment_rows"] // rows, math.prod(column["shape"]) * np.dtype(column["dtype"]).itemsize * rows


def _index(root: Path, rng: random.Random) -> str:
    """Put other offsets and sizes into a shard's index."""
    shard, chunks, _ = _a_shard(root, rng)
    data = bytearray(shard.read_bytes())
    for _ in range(rng.choice((1, 2, 8))):
        at = len(data) - 16 * chunks + 8 * rng.randrange(2 * chunks)
        near = (len(data), len(data) - 16 * chunks, len(data) - 16 * chunks - 1, 2**64 - len(data), 2**63 - len(data))
        value = rng.choice((*NUMBERS, *near, rng.randrange(len(data)), int.from_bytes(data[at : at + 8], "little") + 1))
        data[at : at + 8] = (value % 2**64).to_bytes(8, "little")
    if rng.random() < 0.3:
        cut = rng.randrange(len(data))
        data = data[cut:] if rng.random() < 0.5 else data[:cut]
    replace(shard, bytes(data))
    return str(shard.relative_to(root))


def _chunk(root: Path, rng: random.Random) -> str:
    """Put a hostile chunk where one is, its checksum right; the index is told of its size."""
    shard, chunks, wanted = _a_shard(root, rng)
    data = bytearray(shard.read_bytes())
    end = len(data) - 16 * chunks
    entry = end + 16 * rng.randrange(chunks)
    at, size = (int.from_bytes(data[entry + n : entry + n + 8], "little") for n in (0, 8))
    if at + size > len(data):
        return "nothing"
    new = decoder.vouched(decoder.mutated(bytes(data[at : at + size - 4]), wanted, rng))
    if len(new) > size:  # appended behind the others
        added = new + bytes(-len(new) % 16)
        data[end:end] = added
        entry += len(added)
        data[entry : entry + 8] = end.to_bytes(8, "little")
    else:
        data[at : at + len(new)] = new
    data[entry + 8 : entry + 16] = len(new).to_bytes(8, "little")
    replace(shard, bytes(data))
    return f"{shard.relative_to(root)}, entry {entry}"


def _huge_chunk(root: Path, rng: random.Random) -> str:
    """Have a chunk of more than 2 GB, most of it a hole: sizes of 32 bits become negative."""
    shard, chunks, wanted = _a_shard(root, rng)
    size = 2**31 + 4096
    head = bytes([2, 1, 0x20, 1]) + wanted.to_bytes(4, "little") * 2 + (size - 4).to_bytes(4, "little")
    head += (20).to_bytes(4, "little") + (size - 28).to_bytes(4, "little")
    checksum, zeros = google_crc32c.value(head.ljust(4092, b"\0")), bytes(2**20)
    for _ in range((size - 4096) // 2**20):
        checksum = google_crc32c.extend(checksum, zeros)
    replace(shard, head)
    with shard.open("r+b") as opened:
        opened.seek(size - 4)
        opened.write(checksum.to_bytes(4, "little") + np.tile(np.array([0, size], np.int64), (chunks, 1)).tobytes())
    return str(shard.relative_to(root))


def _data(root: Path, rng: random.Random) -> str:
    """Put other bytes into rows: flags, tags, frames in the tail."""
    files = sorted(file for file in root.rglob("c.*") if file.stat().st_size and "_segments" not in file.parts)
    flags = ("is_last", "terminated", "truncated", "tag")
    likely = [file for file in files if file.parent.name in flags or "_tail" in file.parts]
    file = rng.choice(likely if rng.random() < 0.7 else files)
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 4, 40))):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
    if rng.random() < 0.2:
        data = bytearray(bytes([rng.choice((1, 2, 255))]) * len(data))
    replace(file, bytes(data))
    return str(file.relative_to(root))


def _copied_tail(root: Path, rng: random.Random) -> str:
    """Have the copy of the tail tell of other rows, or of more than it has."""
    for file in root.glob("_segments/length/tail.*"):
        data = np.frombuffer(file.read_bytes(), np.uint8).copy()
        numbers = data[len(data) % 8 :].view(np.int64)
        for _ in range(rng.choice((1, 2, 8))):
            numbers[-rng.randrange(1, min(len(numbers), 12) + 1)] = rng.choice((*NUMBERS, 1, 2, 3, 4)) % 2**63
        replace(file, data.tobytes()[: rng.choice((None, None, None, -8, 16))])
    return "the copy of the tail"


def _file(root: Path, rng: random.Random) -> str:
    """Put something in a file's place: another file, a directory, a link, a pipe."""
    file, other = rng.sample(sorted(file for file in root.rglob("*") if file.is_file()), 2)
    data = file.read_bytes()
    file.unlink()
    ways: dict[str, Callable[[], object]] = {
        "other": lambda: shutil.copyfile(other, file),
        "directory": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "loop": lambda: file.symlink_to(file.name),
        "inner link": lambda: file.symlink_to(os.path.relpath(other, file.parent)),
        "gone": lambda: None,
        "longer": lambda: file.write_bytes(data + bytes(rng.choice((1, 8, 4096)))),
        "empty": file.touch,
    }
    way = rng.choice(list(ways))
    ways[way]()
    return f"{file.relative_to(root)}: {way}"


def _stray(root: Path, rng: random.Random) -> str:
    """Leave things about that the store does not know."""
    names = ("c.99", "x.tmp", "c.0.new.tmp", "map.json", "writer.lock", "writer.json", "\udcff.tmp", "a" * 250 + ".tmp")
    stray = rng.choice(sorted(path for path in root.rglob("*") if path.is_dir())) / rng.choice(names)
    if rng.random() < 0.5:
        stray.mkdir()
        (stray / "x").touch()
    else:
        stray.write_bytes(rng.choice((b"", b"[]", b"\xff", b"[" * 100_000)))
    return ascii(stray.relative_to(root))


def _tags(root: Path, rng: random.Random) -> str:
    """Have many tags, or long ones."""
    n, length = rng.choice(((1, 2**20), (65_535, 1), (5000, 10), (2000, 2**20), (70_000, 3)))
    with _metadata(root) as (_, described):
        described["tags"] = ["x" * length] + [str(n) for n in range(n - 1)]
    return f"{n} tags, one of {length} characters"


_CHANGES: tuple[Callable[[Path, random.Random], str], ...] = (
    *(_attributes, _attributes, _attributes, _raw_json, _column, _column, _table, _table, _table, _first_rows, _index, _index),
    *(_chunk, _chunk, _data, _data, _file, _state, _state, _stray, _tags, _copied_tail),
)


# What is watched while a store is open


# In the worker


class Bench:
    """Copies of specimens, which are changed, opened and thrown away."""

    def __init__(self, directory: Path) -> None:
        self._pristine, self._directory = directory.parent / "pristine", directory
        self._watch = Watch()
        self._decoder: decoder.Decoder | None = None

    def do(self, job: Job) -> Answer:
        """Do one job."""
        if job["what"] == "chunks":
            self._decoder = self._decoder or decoder.Decoder()
            with progress(self._directory, job).open("wb", buffering=0) as file:
                begun: Callable[[int], Any] = lambda number: os.pwrite(file.fileno(), number.to_bytes(8, "little"), 0)  # noqa: E731
                return decoder.run(self._decoder, job["seed"], job["first"], job["count"], begun)
        made(self._pristine, job["kind"], job["seed"])
        rng = random.Random(job["seed"] * 2**40 + job["number"])
        return self._state(job, rng) if job["what"] == "state" else self._store(job, rng)

    def _store(self, job: Job, rng: random.Random) -> Answer:
        root = self._directory / "store"
        remove(root)
        shutil.copytree(self._pristine / job["kind"], root)
        adopt(root)
        done = [_huge_chunk(root, rng)] if job["what"] == HUGE else mutate(root, rng)
        with self._watch.over(root):
            answer = tried(lambda: use(root, job["mode"], KINDS[job["kind"]].n_envs))
        if self._watch.seen and answer["class"] in FINE:
            answer = {"class": self._watch.seen[0][0], "error": self._watch.seen[0][1]}
        return {**answer, "done": done}

    def _state(self, job: Job, rng: random.Random) -> Answer:
        root = self._directory / "sampled"
        if not root.exists():
            shutil.copytree(self._pristine / job["kind"], root)
            adopt(root)
        name = rng.choice(list(SAMPLERS))
        with db.ReplayBuffer(root, threads=1) as buffer:
            ahead = SAMPLERS[name]()
            for _ in zip(range(2), buffer.loader(16, ahead, prefetch=2, threads=1), strict=False):
                pass
            state = json.loads(json.dumps(ahead.state_dict()))
            done = [mutate_json(state, rng) for _ in range(rng.choice((1, 1, 2, 4)))]

            def load() -> None:
                sampler = SAMPLERS[name]()
                sampler.load_state_dict(state)
                for _ in range(3):
                    flags(buffer.sample(16, sampler))
                sampler.load_state_dict(sampler.state_dict())

            return {**tried(load), "done": [name, *done]}


def tried(do: Callable[[], str | None]) -> Answer:
    """Judge what comes of it: a DiskBufferError is well, and so is none; `do` returns what it was refused."""
    begin = time.monotonic()
    try:
        refused = do()
    except db.DiskBufferError as error:
        refused = str(error)
    except MemoryError as error:
        return {"class": "memory", "error": f"{error} ({_where(error)})"}
    except FlagsError as error:
        return {"class": "flags", "error": str(error)}
    except Exception as error:  # noqa: BLE001  which is what is looked for
        return {"class": "untyped", "error": f"{type(error).__name__}: {str(error)[:200]} ({_where(error)})"}
    return {"class": "read" if refused is None else "refused", "seconds": round(time.monotonic() - begin, 2)}


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}diskbuffer{os.sep}" in frame.filename] or list(frames)
    return f"{Path(own[-1].filename).name}:{own[-1].name}:{own[-1].lineno}"


class FlagsError(Exception):
    """Bools in a batch that are neither 0 nor 1."""


def flags(batch: dict[str, Any]) -> None:
    """Look at the bools of a batch: other bytes than 0 and 1 in them are undefined behaviour, for torch as for numpy."""
    for name, value in batch.items():
        if isinstance(value, dict):
            flags(value)
        elif str(value.dtype) == "torch.bool" and value.numel() and int(value.numpy().view(np.uint8).max()) > 1:
            raise FlagsError(f"{name} has bytes up to {int(value.numpy().view(np.uint8).max())}")


SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: db.Uniform(seed=1),
    "recent": lambda: db.Uniform(max_age=30, seed=1),
    "n steps": lambda: db.Uniform(n_step=3, gamma=0.9, seed=1),
    "epochs": lambda: db.Uniform(replace=False, seed=1),
    "slices": lambda: db.Slices(4, seed=1),
    "burn-in": lambda: db.Slices(3, burn_in=2, seed=1),
    "padded": lambda: db.Slices(8, strict=False, over="episodes", seed=1),
    "crossing": lambda: db.Slices(4, crossing=True, seed=1),
    "prioritized": lambda: db.Prioritized(seed=1),
}


def use(root: Path, mode: Any, streams: int, threads: int = 2) -> str | None:
    """Open a store and ask for everything; return what was refused on the way."""
    refused: list[str] = []

    def ask(*questions: Callable[[], Any]) -> Any:
        answer = None
        for question in questions:
            try:
                answer = question()
            except db.DiskBufferError as error:
                answer = None
                refused.append(str(error))
        return answer

    with db.ReplayBuffer(root, mode=mode, seed=0, threads=threads) as buffer:
        episodes = ask(lambda: repr(buffer), buffer.stats, lambda: buffer.episodes)
        ask(lambda: flags(buffer.sample(64)))
        for name in ("burn-in", "crossing", "n steps", "epochs"):
            ask(lambda name=name: flags(buffer.sample(16, SAMPLERS[name]())))  # type: ignore[misc]
        if episodes is not None and len(episodes):
            ask(
                lambda: episodes.returns,
                lambda: buffer.at(episodes.start),
                lambda: buffer.at(episodes.start + streams * (np.minimum(episodes.length, 10**6) - 1)),
                lambda: buffer.sample(8, db.Uniform(episodes=episodes[:3], seed=0)),
            )
        ask(lambda: _pass_over(buffer), buffer.refresh)
        if mode == "a":
            sampler = db.Prioritized(seed=0)
            ask(
                lambda: buffer.flush(recompress=True),
                lambda: sampler.update(buffer.sample(16, sampler)["steps"], np.ones(16)),
                lambda: buffer.columns.write("noted", buffer.episodes.start, np.ones(len(buffer.episodes))),
                lambda: buffer.episodes[:1].set_tag("seen"),
                lambda: buffer.columns.returns_and_advantages(values=None, out=("gains", "unused")),
                lambda: buffer.columns.map(lambda b: np.ones(len(b["steps"])), 64, "mapped", resume=True, progress=False),
                lambda: _add(buffer),
                buffer.flush,
            )
    check(root)
    return refused[0] if refused else None


def _pass_over(buffer: db.ReplayBuffer) -> None:
    for n, batch in enumerate(buffer.batches(64, threads=1)):
        flags(batch)
        if n == 20:
            break


def _add(buffer: db.ReplayBuffer) -> None:
    """Add steps of zeros, if a row is not too large."""
    if sum(column.row_bytes for column in buffer.columns.values()) * buffer.n_envs > 2**20:
        return
    known = ("terminated", "truncated", "is_last", "priority", "noted", "gains", "mapped", "tag", "value")
    rows: dict[str, Any] = {}
    for path, column in buffer.columns.items():
        if path not in known:
            put(rows, path, np.zeros((buffer.n_envs, *column.shape), column.np_dtype))
    none = np.zeros(buffer.n_envs, bool)
    obs, action, reward = (rows.pop(name, None) for name in ("obs", "action", "reward"))
    for _ in range(20):
        buffer.add(obs, action, reward, obs, none, none, **rows)


# The campaigns


def made(pristine: Path, kind: str, seed: int) -> None:
    """Make a store that is to be changed, where it is not there yet."""
    if not (pristine / kind).exists():
        make(pristine / kind, kind, seed)


def progress(directory: Path, job: Job) -> Path:
    """Return the file that says which chunk of a job is decoded."""
    return directory.with_name(f"chunks from {job['first']}")


def stores(pool: Pool, count: int, seed: int, what: str = "store") -> tuple[Row, list[tuple[Job, Answer]]]:
    """Open hostile stores, or those with huge chunks, or load hostile states (``what="state"``)."""
    for kind in BASES:
        made(pool.directory / "pristine", kind, seed)
    title = {"store": "hostile stores opened and read", "state": "hostile states of samplers"}.get(what, what)
    row, cases = tally(title, pool.do_all(job_of(what, n, seed) for n in range(count)), FINE, BROKEN)
    row.notes.append(f"the slowest took {max((answer.get('seconds', 0.0) for _, answer in cases), default=0.0)} s")
    return row, cases


def job_of(what: str, number: int, seed: int) -> Job:
    """Return case `number` of a campaign."""
    packed = [kind for kind in BASES if not kind.startswith(("flat", "nested"))]
    bases = packed if what == HUGE else BASES if what != "state" else BASES[:1]
    mode = "a" if number % 10 < 3 else "r"
    return {"what": what, "kind": bases[number % len(bases)], "seed": seed, "number": number, "mode": mode}


def chunks(pool: Pool, count: int, seed: int) -> Row:
    """Give hostile chunks to the decoder."""
    size = max(1, min(10_000, count // 2))
    jobs = ({"what": "chunks", "seed": seed, "first": n, "count": min(size, count - n)} for n in range(0, count, size))
    results, row = collections.Counter[str](), Row("hostile chunks decoded", 0, 0)
    for job, answer in pool.do_all(jobs):
        row.done += job["count"]
        if "died" in answer or "hung" in answer:
            number = int.from_bytes(progress(pool.directory / "worker", job).read_bytes(), "little")
            row.broken += 1
            row.notes.append(f"{answer}: {job | {'first': number, 'count': 1}}")
            continue
        if (first := answer.pop("first unwritten", None)) is not None and not results["unwritten"]:
            row.notes.append(f"the first of which a part was not written: number {first} of seed {seed}")
        results.update(answer)
    row.notes = [f"{n:,} {name}" for name, n in results.most_common()] + row.notes
    return row


def main(scale: float = 1.0, *, seed: int = 0) -> Iterator[Row]:
    """Decode 1,000,000 chunks, and open 20,000 stores, times `scale`; and some of the other kinds."""
    count = round(20_000 * scale)
    with scratch() as name, Pool("soak.fuzz", name) as pool:
        yield chunks(pool, round(1_000_000 * scale), seed)
        for what, number in {"store": count, "state": count // 5, HUGE: count // 200}.items():
            yield stores(pool, max(1, number), seed, what)[0]


def warm() -> None:
    """Compile and import what is needed, so that what happens later is a store's doing."""
    with scratch() as name:
        for kind in BASES[:3]:
            make(name / kind, kind, 0)
            for mode in ("r", "a"):
                use(name / kind, mode, KINDS[kind].n_envs, threads=1)  # and none is left when this is forked


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what uses hostile stores."""
    return Bench(directory).do
