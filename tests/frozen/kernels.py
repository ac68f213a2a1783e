"""What the compiled functions return of numbers that a seed gives, digested: for whoever writes them anew.

Where there is a function or a class of Python's around a compiled function, that is called. Where there is none, the compiled
function itself is, with addresses of arrays as its callers have them; the docstrings below name these. Whoever replaces such a
function calls the one that takes its place here, and leaves the digest as it is.

Not digested: what c-blosc makes of a chunk, as another version of it may do that in another way, and the checksums of a store's
rows as they are on the disk, as every store has a salt of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import diskbuffer as db
from diskbuffer.adapters.frame_stacks import Frames
from diskbuffer.index.fields import EPISODES, FLOOR, HEAD
from diskbuffer.limiting import fields
from diskbuffer.native import checksums as native_checksums
from diskbuffer.native import codec as native_codec
from diskbuffer.native import limiter, recording
from diskbuffer.native.arrays import address_of
from diskbuffer.native.returns import advantages, returns_to_go
from diskbuffer.native.sampling import Philox
from diskbuffer.recording.values import bools
from diskbuffer.samplers.permutation import Permutation
from diskbuffer.samplers.sum_tree import LARGEST, TINY, SumTree
from diskbuffer.schema.schema import BUILT_IN, Schema
from diskbuffer.store.format import checksums, codec, encoding
from diskbuffer.writers.watching import changed
from tests.frozen.stores import STORES, Numbers, pictures

Array = npt.NDArray[Any]
CASES: dict[str, Callable[[Path], Iterator[Any]]] = {}


def _case(name: str) -> Callable[[Callable[[Path], Iterator[Any]]], None]:
    def put(case: Callable[[Path], Iterator[Any]]) -> None:
        CASES[name] = case

    return put


def _floats(numbers: Numbers, n: int) -> Array:
    """Return doubles of many magnitudes, (n,), all of which come of integers by exact operations."""
    return np.asarray(np.ldexp(numbers.integers(2**53, (n,)).astype(np.float64), numbers.integers(60, (n,)) - 80))


# The index


def _looked_up(store: str, path: Path) -> Iterator[Any]:
    """Look steps and episodes up with every method of `Index`."""
    with STORES[store].open(path, 1) as buffer:
        index, numbers = buffer._reader.index, Numbers(3)
        n, streams = len(index), len(index.table)
        table: Array = index.table
        ordinals = np.concatenate([np.arange(n), numbers.integers(n, (300,))])
        yield "locate", n, index.locate(ordinals)
        counts = index.steps()
        yield "counts", counts
        some = numbers.integers(streams, (300,))
        ages = numbers.integers(1000, (300,)) % np.maximum(counts[some], 1)
        there = counts[some] > 0
        yield "recent", *index.recent(some[there], ages[there])
        yield "recent, of which one is missing", index.recent(some, ages + (np.arange(300) > 200) * 10**6)[1]
        episodes = int(table[:, EPISODES].sum())
        yield "locate_episodes", index.locate_episodes(np.arange(episodes))
        positions = numbers.integers(int(table[:, HEAD].max()) + 20, (500,)) - 5
        yield "episodes_of", *index.episodes_of(numbers.integers(streams + 2, (500,)) - 1, positions)
        kept = [
            (stream, position)
            for stream in range(streams)
            for position in range(int(table[stream, FLOOR]), int(table[stream, HEAD]) + 1)
        ]
        of, rows = np.array(kept, np.int64).T.copy()
        yield "rows_of", index.rows_of(of, rows)
        inner = rows + 9 <= table[of, HEAD]
        yield "episodes_along", *index.episodes_along(of[inner], rows[inner], 9)


for _name in ("vectors", "a ring of vectors", "a ring of frames", "stacks, begun in the middle of episodes", "several writers"):

    @_case(f"the index of {_name}")
    def _of_store(path: Path, _name: str = _name) -> Iterator[Any]:
        yield from _looked_up(_name, path)


# Draws


@_case("random numbers")
def _random_numbers(_: Path) -> Iterator[Any]:
    """Call `Philox`, and numpy's Philox, which gives the same numbers."""
    numbers = Numbers(4)
    for below in (1, 2, 3, 10, 1000, 2**20 + 7, 2**31 + 1, 3 * 2**30, 2**32 - 1, 2**32):
        key = numbers.integers(2**53, (2,)).astype(np.uint64) * np.uint64(2**11 + 1)
        third, fourth = int(numbers.integers(2, (1,))[0]), int(numbers.integers(10**6, (1,))[0])
        philox = Philox(*key.tolist())
        philox.start(third, fourth)
        found = np.random.Generator(philox).integers(0, below, 101)  # type: ignore[arg-type]
        yield below, found
        generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, third, fourth]))
        assert generator.integers(0, below, 101).tolist() == found.tolist()


@_case("permutations")
def _permutations(_: Path) -> Iterator[Any]:
    """Call `Permutation`."""
    for n in (1, 2, 3, 7, 64, 1000, 4097, 10**6, 2**40 + 1):
        for seed in (0, (5, 6)):
            yield n, Permutation(n, seed)(0, min(n, 500)), Permutation(n, seed)(max(0, n - 50), n)


@_case("sum trees")
def _sum_trees(_: Path) -> Iterator[Any]:
    """Set, fill, clear and grow a `SumTree`, and draw from it; its nodes are digested whole, all sums and minima."""
    numbers = Numbers(5)
    for size in (1, 15, 16, 17, 257, 4096, 5000):
        tree = SumTree(size)
        for k in range(12):
            n = int(numbers.integers(3 * size, (1,))[0]) % 700 + 1
            weights = np.where(numbers.integers(4, (n,)) == 0, 0, _floats(numbers, n))
            weights[:: 1 + 7 * (k + 1)] = (TINY / 8, LARGEST)[k % 2] if k > 8 else 1.5
            if k % 4 == 3:
                first = int(numbers.integers(tree.size, (1,))[0])
                count = min(n, tree.size - first)
                tree.fill(first, weights[:count])
                tree.clear(first // 2, (tree.size - first // 2) // 3)
            else:
                tree.set(numbers.integers(tree.size, (n,)), weights)
            if k == 6:
                tree.grow(size * 3 + 1)
            yield tree.nodes, tree.total, tree.least, tree.get(np.arange(tree.size))
            if tree.total:
                shares = numbers.integers(2**53, (200,)) / 2**53
                yield tree.draw(shares * tree.total)
                yield tree.find(np.array([-1.0, 0.0, tree.total, np.inf, np.nan]))


# Bytes


def _contents() -> dict[str, Array]:
    """Return bytes of many kinds, of four frames."""
    numbers, size = Numbers(6), 4 * 34 * 33
    noise = numbers.integers(256, (size,)).astype(np.uint8)
    return {
        "frames": pictures(numbers, 4, (34, 33)).reshape(-1),
        "frames of few colours": (pictures(numbers, 4, (34, 33)) & 0xC0).reshape(-1),
        "colour": np.resize(pictures(numbers, 4, (20, 20, 3)).reshape(-1), size),
        "noise": noise,
        "half noise": noise & np.resize(noise[::9], size) & np.repeat(noise, 8)[:size],
        "zeros": np.zeros(size, np.uint8),
        "periods": np.resize(noise[:37], size),
        "small": noise[:13].copy(),
    }


def _lz4(raw: Array, room: int, distances: tuple[int, int, int]) -> bytes:
    out = np.zeros(room + 64, np.uint8)
    size = native_codec.encode_lz4(address_of(raw), len(raw), address_of(out), room, np.array(distances))
    return out[:size].tobytes()


@_case("LZ4 blocks of pictures")
def _blocks(_: Path) -> Iterator[Any]:
    """Call `native.codec.encode_lz4`, also where there is no room, and `decode_lz4`, also of blocks with an error.

    Of a block with an error it is digested whether as many bytes come out as are wanted, and which.
    """
    numbers = Numbers(7)
    for name, raw in _contents().items():
        for distances in ((1, 33, 1122), (3, 60, 1200), (0, 0, 0)):
            block = _lz4(raw, len(raw) * 2, distances)
            yield name, block, _lz4(raw, len(block) - 1, distances), _lz4(raw, len(block), distances)
            for wanted in (len(raw), len(raw) // 2, 1):
                yield _decoded(block, wanted), wanted
            for at in numbers.integers(len(block), (20,)).tolist():
                damaged = bytearray(block)
                damaged[at] ^= 1 << at % 8
                yield _decoded(bytes(damaged), len(raw))


def _decoded(block: bytes, wanted: int) -> bytes:
    source, out = np.frombuffer(block, np.uint8).copy(), np.zeros(wanted + 64, np.uint8)
    size = native_codec.decode_lz4(address_of(source), len(source), address_of(out), wanted)
    return out[:wanted].tobytes() if size == wanted else b"damaged"


@_case("chunks of pictures")
def _chunks(_: Path) -> Iterator[Any]:
    """Recode chunks that were stored as they are, by `encoding.Recoder` in the way of sealed pictures, and decode them."""
    for name, raw in _contents().items():
        if len(raw) % 4 or len(raw) < 1000:
            continue
        entries, live = np.zeros((1, 2), np.int64), np.zeros(codec.bound(len(raw)), np.uint8)
        native_codec.encode_chunks(address_of(raw), 0, len(raw), len(raw), b"lz4", 0, live, entries)
        recoder, out, moved = encoding.Recoder(len(raw), (1, 33, 1122)), np.zeros(2 * len(live), np.uint8), entries.copy()
        recoder.stored[encoding.TRIES] = 2
        recoder.recode(address_of(live), entries, out, moved, codec.PICTURES)
        at, size = moved[0].tolist()
        yield name, live[: entries[0, 1]], out[at : at + size], recoder.stored
        for wanted in (len(raw), 1122, 1):
            found, scratch = np.zeros(len(raw), np.uint8), np.zeros(len(raw), np.uint8)
            wrong = native_codec.decode(address_of(out) + at, size, len(raw), wanted, address_of(found), address_of(scratch))
            yield int(wrong), found[:wanted]
        for k in range(0, size, 41):
            out[at + k] ^= 4
            yield int(native_codec.decode(address_of(out) + at, size, len(raw), len(raw), address_of(found), address_of(scratch)))
            out[at + k] ^= 4


@_case("checksums of rows")
def _checksums(_: Path) -> Iterator[Any]:
    """Call `row_checksums`, `mix`, `length_word`, `row_seed` and `replace_rows`."""
    numbers = Numbers(8)
    columns = {
        "obs/a": db.Column((3,), "float32"),
        "obs/b": db.Column((35, 33), "uint8"),
        "action": db.Column((), "int16"),
        "reward": db.Column(),
        "half": db.Column((5,), "float16"),
    }
    schema = Schema(columns | BUILT_IN)
    for n in (1, 2, 17):
        rows = {path: numbers.of(column, n) for path, column in schema.recorded.columns.items()}
        for word in (checksums.OBS, checksums.STEP):
            for salt, stream, first, apart in ((0, 0, 0, 1), (2**40 + 3, 5, 10**7, 3)):
                yield checksums.row_checksums(schema, salt, stream, first, n, rows, word, apart)
    for number in numbers.integers(2**53, (100,)).tolist():
        yield checksums.mix(number), checksums.length_word(number, number % 1000)
        yield native_checksums.row_seed(number, number % 7, number % 10**6, number % 2)
    files = [numbers.integers(256, (size,)).astype(np.uint8) for size in (100, 4096, 70_001)]
    for row_bytes in (4, 12, 33):
        which = numbers.integers(3, (9,))
        ends = np.array([address_of(file) + len(file) for file in files])
        places = np.array([numbers.integers(len(files[k]) // row_bytes, (1,))[0] * row_bytes for k in which.tolist()])
        targets = np.array([address_of(files[k]) for k in which.tolist()]) + places
        rows_of = numbers.integers(256, (9, row_bytes)).astype(np.uint8)
        yield checksums.replace_rows(rows_of, targets, ends, which), *files


# Steps on their way in


@_case("comparisons")
def _comparisons(_: Path) -> Iterator[Any]:
    """Call the functions of `native.recording` that compare values, and `writers.watching.changed`."""
    numbers = Numbers(9)
    for dtype, width in (("float16", 2), ("float32", 4), ("float64", 8), ("uint8", 0)):
        kinds: Array = np.array([0.0, -0.0, 1.0, -1.0, np.nan, -np.nan, np.inf, -np.inf, 2.0] if width else range(9)).astype(
            dtype
        )
        a, b = kinds[numbers.integers(9, (200, 3))], kinds[numbers.integers(9, (200, 3))]
        b[::2] = np.where(a[::2] == 0, -a[::2], a[::2]) if width else a[::2]
        left, right = a.view(np.uint8), b.view(np.uint8)
        each = [recording.same_values(x, y, width) for x, y in zip(left, right, strict=True)]
        yield dtype, np.array(each), each, [recording.all_zero(x, width) for x in left]
        if width:
            yield [recording.has_nonfinite(x, width) for x in left]
        obs = kinds[numbers.integers(3, (60, 3, 1))]
        following = np.concatenate([obs[:, 1:], kinds[numbers.integers(3, (60, 1, 1))]], axis=1)
        following[::7] = obs[::7]
        obs[1::2] = following[:-1:2]
        now, after = (np.ascontiguousarray(stacks).reshape(60, -1).view(np.uint8) for stacks in (obs, following))
        frame = obs[0, 0].nbytes
        same = [i > 0 and recording.same_values(now[i], after[i - 1], width) for i in range(60)]
        yield np.array(same), np.array([recording.same_values(after[i, :-frame], now[i, frame:], width) for i in range(60)])
    for n in range(1, 40):
        some = numbers.integers(2 + n % 2, (n,)).astype(np.uint8)
        yield recording.are_bools(some), bools(some.view(np.bool_)).view(np.uint8)
    doubles = np.concatenate([_floats(numbers, 200), [0.1, -0.0, np.inf, np.nan, 3.4028235e38]])
    for given in (doubles, np.append(doubles, 1e39)):
        found, fits = recording.round_to_float32(given)
        yield fits, found[:205]
    here = numbers.integers(2, (30, 21)).astype(np.uint8)
    there = here.copy()
    there[::4, 20] ^= 1
    there[::3, 3] ^= 1
    places = [np.array([[address_of(here) + 21 * i, address_of(there) + 21 * i, 8 + i % 14]]) for i in range(30)]
    yield changed([*places, *[np.concatenate(places[k : k + 3]) for k in range(5)]])


@_case("smaller pictures")
def _transformed(path: Path) -> Iterator[Any]:
    """Call `ReplayBuffer.transformed`."""
    numbers = Numbers(10)
    columns = {
        "obs/grey": db.Column((17, 19), "uint8", transform=(db.Greyscale(), db.Resize(17, 19))),
        "obs/small": db.Column((9, 30, 3), "uint8", transform=db.Resize(9, 30)),
        "obs/flat": db.Column((12, 11), "uint8", transform=db.Resize(12, 11)),
        "action": db.Column((), "int64"),
    }
    with db.ReplayBuffer(path / "store", columns=columns) as buffer:
        for height, width in ((17, 19), (40, 61), (30, 30), (5, 100), (9, 30), (120, 12)):
            colour, grey = (numbers.integers(256, (2, height, width, *rest)).astype(np.uint8) for rest in ((3,), ()))
            found = buffer.columns.transformed({"grey": colour, "small": colour, "flat": grey})
            yield found


@_case("stacks of other libraries")
def _frame_stacks(_: Path) -> Iterator[Any]:
    """Call `Frames.split`, `join` and `copied`."""
    numbers = Numbers(11)
    for frames in (
        Frames((4, 6, 5), np.dtype("uint8"), 4),
        Frames((6, 5, 4), np.dtype("uint8"), 4, last=True),
        Frames((6, 5, 12), np.dtype("uint8"), 4, last=True),
        Frames((12, 6, 5), np.dtype("uint8"), 4),
        Frames((6, 5, 9), np.dtype("float32"), 3, last=True),
        Frames((6, 5, 3), np.dtype("float64"), 3, last=True),
        Frames((6, 5), np.dtype("int16")),
    ):
        obs = numbers.integers(200, (7, *frames.shape)).astype(frames.dtype)
        stacks = np.ascontiguousarray(frames.split(obs))
        tensors = torch.from_numpy(stacks)
        yield stacks, frames.join(tensors).contiguous(), frames.copied(tensors)
        assert frames.copied(tensors).numpy().tobytes() == obs.tobytes()


# Values of steps, and limits


@_case("returns and advantages")
def _advantages(_: Path) -> Iterator[Any]:
    """Call `advantages` and `returns_to_go`."""
    numbers = Numbers(12)
    for n in (1, 7, 500):
        rewards, of, following = (numbers.of(db.Column((), "float64"), n) for _ in range(3))
        terminated, ended = numbers.integers(9, (n,)) == 0, numbers.integers(7, (n,)) == 0
        ended |= terminated
        for gamma, gae_lambda, carry in ((0.99, 0.95, 0.0), (0.9, 1.0, 3.7), (1.0, 0.0, -1e3)):
            yield *advantages(rewards, of, following, terminated, ended, gamma, gae_lambda, carry), n
            yield *returns_to_go(rewards, following, terminated, ended, gamma, carry), n


@_case("limits")
def _limits(_: Path) -> Iterator[Any]:
    """Call the functions of `native.limiter`, on a table in memory."""
    numbers = Numbers(13)
    for ratio, size, bound in ((1.0, 1, 10.0), (0.25, 100, 30.0), (8.0, 50, 400.5), (3.3, 1000, 0.0)):
        words = np.zeros(fields.WORDS, np.int64)
        words[[fields.RATIO, fields.BOUND]] = np.array([ratio, bound]).view(np.int64)
        words[fields.MIN_SIZE], words[fields.ROWS] = size, 5
        rows, address, added = words[fields.HEAD :].reshape(-1, fields.ROW), address_of(words), np.zeros(5, np.int64)
        rows[2, fields.BEFORE], rows[3, fields.LOST] = 40, 17
        for step in range(200):
            kind, writer, n = (int(numbers.integers(below, (1,))[0]) for below in (2, 5, 60))
            if kind:
                added[writer] += n
                limiter.note_added(address, writer, int(added[writer]), n)
            else:
                limiter.note_sampled(address, n * 2, n)
            yield step, bool(limiter.may_add(address)), bool(limiter.may_sample(address)), float(limiter.surplus(address))
            yield *(int(number) for number in limiter.inserts(address)), words[: fields.HEAD + 5 * fields.ROW]


# What is read of files


def _without_steps(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: values.numpy() for name, values in batch.items() if name != "steps"}


@_case("single steps for adapters")
def _single_steps(path: Path) -> Iterator[Any]:
    """Read single steps, by id and by age."""
    for store in ("vectors", "columns written later"):
        with STORES[store].open(path / store, 1) as buffer:
            numbers, steps = Numbers(15), buffer.steps()
            buffer.at(steps)  # maps all files
            for n in (1, 7, 200):
                buffer._reader.gatherer._cold = False  # as far as page faults tell, which are other ones in each run
                yield _without_steps(buffer.at(steps[numbers.integers(len(steps), (n,))]))
                yield _without_steps(buffer.at(buffer.steps(numbers.integers(100, (n,)), numbers.integers(2, (n,)))))
