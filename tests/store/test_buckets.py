"""Stores in a bucket against the same stores in a directory: a real server, small caches, answers that are spoilt."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.inspect.summary import summary
from diskbuffer.plugin import Reader
from diskbuffer.store.system.block_cache import BlockCache
from diskbuffer.store.system.files import Files
from tests.amounts import examples
from tests.s3_server import S3Server, some_faults

Columns = dict[str, db.Column]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _well(server: S3Server) -> Iterator[None]:
    yield
    server.fault = lambda method, path: ""


COLUMNS: Columns = {"obs": db.Column((34, 33), "uint8"), "action": db.Column((), "int64")}
KINDS: tuple[Columns, ...] = (
    COLUMNS,
    {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float32")},
    {
        "obs/front%20camera": db.Column((40, 40), "uint8"),
        "obs/state": db.Column((4,), "float32"),
        "action": db.Column((), "int8"),
    },
    {"obs": db.Column((70, 70), "uint8"), "action": db.Column((), "int64")},  # rows of which single ones are read
)


def fill(buffer: db.ReplayBuffer, steps: int, seed: int, env: int = 0) -> None:
    """Add episodes of noise, which nothing can compress, and of plain frames."""
    rng, schema = np.random.default_rng(seed), buffer.columns
    while steps > 0:
        n = int(rng.integers(1, 40))
        values: dict[str, Any] = {}
        for path, column in schema.items():
            if path == "action" or path.startswith("obs"):
                rows = rng.integers(0, 250, (n + path.startswith("obs"), *column.shape)).astype(column.np_dtype)
                if rng.random() < 0.5:
                    rows.reshape(len(rows), -1)[:, 8:] = 7
                if path.startswith("obs/"):
                    values.setdefault("obs", {})[path.removeprefix("obs/").replace("%20", " ")] = rows
                else:
                    values[path] = rows
        buffer.extend(**values, reward=rng.normal(size=n), terminated=np.arange(n) == n - 1, env=env)
        steps -= n


def stored(path: Path, steps: int = 400, seed: int = 0, seal: bool = True, columns: Columns = COLUMNS, **options: Any) -> Path:
    """Make a store and close it."""
    options = {"segment_rows": 64, "frame_stack": 2} | options
    with db.ReplayBuffer(path, columns=columns, **options) as buffer:
        for env in range(buffer.n_envs):
            fill(buffer, steps, seed + env, env)
        if seal:
            buffer.flush(recompress=True)
    return path


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool((one == other).all())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("bucket") / "store")


@pytest.fixture(scope="module")
def url(server: S3Server, store: Path) -> str:
    return server.put(store)


def taken(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.iterdir())


@examples(3, 60)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from([None, 80]),
    st.sampled_from([4096, 16384, 1 << 20]),
    st.sampled_from([1, 40, 10_000]),
    st.sampled_from([0, 0.1]),
    st.integers(0, 2**32),
)
def test_what_is_read_from_a_bucket_is_what_is_in_the_store(
    server: S3Server,
    columns: Columns,
    n_envs: int,
    seal: bool,
    capacity: int | None,
    block: int,
    blocks: int,
    share: float,
    seed: int,
) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        stored(path / "store", 150, seed, seal, columns, n_envs=n_envs, capacity=capacity)
        bucket = server.bucket(server.put(path / "store"), path / "cache", block_bytes=block, cache_bytes=block * blocks)
        server.fault = some_faults(seed, share)
        remote, local = (db.ReplayBuffer(where, mode="r", seed=seed) for where in (bucket, path / "store"))
        with remote, local:
            assert len(remote) == len(local)
            assert (remote.steps() == local.steps()).all()
            assert remote.episodes.returns.tolist() == local.episodes.returns.tolist()

            def read(number: int) -> bool:
                rng = np.random.default_rng([seed, number])
                named = rng.choice(local.steps(), 20)
                return same(remote.at(named), local.at(named))

            with ThreadPoolExecutor(3) as pool:
                assert all(pool.map(read, range(5)))
            for sampler in (lambda: None, lambda: db.Slices(4, seed=seed), lambda: db.Uniform(n_step=3, seed=seed)):
                assert same(remote.sample(30, sampler()), local.sample(30, sampler()))
            assert same(remote.episode(remote.episodes[-1]), local.episode(local.episodes[-1]))
            passes = [list(buffer.batches(60, shuffle=True, seed=seed, threads=2)) for buffer in (remote, local)]
            assert all(same(*pair) for pair in zip(*passes, strict=True))
            loaders = [iter(buffer.loader(20, db.Uniform(seed=seed), threads=3)) for buffer in (remote, local)]
            assert all(same(*map(next, loaders)) for _ in range(3))
        server.fault = lambda method, path: ""


def test_what_is_in_the_cache_is_not_asked_for_again(server: S3Server, store: Path, url: str, tmp_path: Path) -> None:
    bucket = server.bucket(url, tmp_path)
    with db.ReplayBuffer(bucket, mode="r", seed=1) as first:
        batch = first.sample(50)
        before = first.stats()["bucket"]
        assert before["requests"] > 10
        assert same(first.at(batch["steps"]), batch)
        assert first.stats()["bucket"] == before
    with db.ReplayBuffer(bucket, mode="r", seed=1) as second:
        assert same(second.sample(50), batch)
        assert second.stats()["bucket"]["requests"] == 0
        with db.ReplayBuffer(store, mode="r", seed=1) as local:
            assert same(batch, local.sample(50))
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "secret" not in repr(bucket)
    assert os.stat(tmp_path).st_mode & 0o777 in (0o700, 0o755)


def threads() -> int:
    return sum(thread.name.startswith("diskbuffer-bucket") for thread in threading.enumerate())


@pytest.mark.nightly
def test_closing_ends_the_threads_of_requests_and_unmaps_the_cache(server: S3Server, url: str, tmp_path: Path) -> None:
    gc.collect()
    before = threads()
    buffer = db.ReplayBuffer(server.bucket(url, tmp_path), mode="r", seed=1)
    batch, planned = buffer.sample(50), buffer._drawing.source(db.Uniform(1), 50).next_planned()
    arrays = buffer._reader.pool.take(planned.request)
    assert threads() > before
    buffer.close()
    planned.gather(arrays)  # which asks for what is missing
    assert arrays.batch()["obs"].shape == batch["obs"].shape
    until = time.monotonic() + 60
    while threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == before
    del planned
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_closing_a_mark_ends_the_threads_of_requests(server: S3Server, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=64) as buffer:
        fill(buffer, 200, 0)
        buffer.copies.mark("half")
    before = threads()
    marked = db.ReplayBuffer(server.bucket(server.put(tmp_path / "store"), tmp_path / "cache"), mode="r", mark="half")
    marked.sample(50)
    assert threads() > before
    marked.close()
    until = time.monotonic() + 60
    while threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == before


@pytest.mark.nightly
def test_one_cache_of_bounded_size_serves_several_readers_and_stores(
    server: S3Server, store: Path, url: str, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    """Each reader has a cache object of its own, as a process of its own would have."""
    other, most = stored(tmp_path / "other", seed=9), 48 * 4096
    places = [(url, store), (server.put(other), other), (url, store)]
    over: list[int] = []

    def read(number: int) -> None:
        there, here = places[number]
        bucket = server.bucket(there, tmp_path / "cache", cache_bytes=most, block_bytes=4096)
        with db.ReplayBuffer(bucket, mode="r", seed=number) as remote, db.ReplayBuffer(here, mode="r", seed=number) as local:
            for _ in range(amount(4, 100)):
                assert same(remote.sample(4), local.sample(4))
                with contextlib.suppress(FileNotFoundError):
                    over.append(taken(tmp_path / "cache"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(read, range(3)))
    assert max(over) <= 2 * most  # each may not know yet what the others wrote last


def test_what_was_used_longest_ago_makes_room(server: S3Server, url: str, tmp_path: Path) -> None:
    whole = server.bucket(url, tmp_path, block_bytes=4096)
    with db.ReplayBuffer(whole, mode="r") as buffer:
        buffer.at(buffer.steps())
        parts: Any = buffer._reader.gatherer._elsewhere
        oldest = buffer.steps()[:5]
        for file in tmp_path.iterdir():
            os.utime(file, (1000, 1000))
        parts._used[:] = 0
        buffer.at(oldest)
        parts._look()
        used = {file.name for file in tmp_path.iterdir() if file.stat().st_mtime > 1000}
        size, every = taken(tmp_path), set(os.listdir(tmp_path))
    assert 0 < len(used) < len(every)
    BlockCache(tmp_path, size // 2, 4096)
    assert used <= set(os.listdir(tmp_path)) < every


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", [0, 1, 3])
def test_a_damaged_cache_mends_itself_and_a_damaged_bucket_is_told(kind: int, server: S3Server, tmp_path: Path) -> None:
    store = stored(tmp_path / "store", columns=KINDS[kind])
    bucket = server.bucket(server.put(store), tmp_path / "cache", block_bytes=4096)
    with db.ReplayBuffer(store, mode="r") as local, db.ReplayBuffer(bucket, mode="r") as remote:
        every = local.at(local.steps())
        assert same(remote.at(local.steps()), every)
        for file in (tmp_path / "cache").iterdir():
            data = bytearray(file.read_bytes())
            behind = len(data) * 4096 // 4097 // 2
            data[:behind:97] = bytes(byte ^ 8 for byte in data[:behind:97])
            with file.open("r+b") as opened:
                opened.write(data)
        assert kind == 1 or same(remote.at(local.steps())["obs"], every["obs"])  # flat columns are verified when they are mapped
        with db.ReplayBuffer(bucket, mode="r") as again:
            assert same(again.at(local.steps()), every)
    if kind == 0:
        damaged = bytearray((store / "obs/c.1.0.0").read_bytes())
        damaged[:9000:50] = bytes(byte ^ 1 for byte in damaged[:9000:50])
        (store / "obs/c.1.0.0").write_bytes(damaged)
        worse = server.bucket(server.put(store), tmp_path / "cache")
        with db.ReplayBuffer(worse, mode="r") as remote:
            with pytest.raises(db.CorruptionError, match=r"some/store-\d+/obs/c\.1\.0\.0"):
                remote.at(remote.steps())
            remote.at(remote.steps()[-20:])


@pytest.mark.nightly
@pytest.mark.parametrize("right", [0, 1, 2])
@pytest.mark.parametrize("part", ["obs/c.", "action/c.", "_segments/", "zarr.json"])
def test_what_a_bucket_gave_wrong_once_does_not_stay(
    part: str, right: int, server: S3Server, store: Path, url: str, tmp_path: Path
) -> None:
    """It gives so many right answers for each object, and then wrong ones, until it is well."""
    names = itertools.count()

    def read_by_buffer(bucket: db.Bucket) -> Any:
        with db.ReplayBuffer(bucket, mode="r") as buffer:
            return buffer.at(steps)

    def read_by_view(bucket: db.Bucket) -> Any:
        reader = Reader(bucket)
        return {column: reader.read(column, steps) for column in ("obs", "action")}

    with db.ReplayBuffer(store, mode="r") as local:
        steps = local.steps()[::3]
    for read in (read_by_buffer, read_by_view):
        bucket = server.bucket(url, tmp_path / f"cache {next(names)}", block_bytes=4096)
        asked, expected = Counter[str](), read(store)  # type: ignore[arg-type]

        def lying(method: str, path: str, asked: Counter[str] = asked) -> str:
            asked[path] += method == "GET" and part in path
            return "flipped" if asked[path] > right else ""

        for lies in (True, True, False):
            server.fault = lying if lies else lambda method, path: ""
            with contextlib.suppress(db.DiskBufferError) if lies else contextlib.nullcontext():
                found = read(bucket)
                assert all((np.asarray(found[name]) == np.asarray(expected[name])).all() for name in expected)
            if not lies:  # nor does anything of it wait to be read
                fresh = server.bucket(url, tmp_path / f"cache {next(names)}", block_bytes=4096)
                read(fresh)
                right_blocks = {file.name: file.read_bytes() for file in fresh.cache.iterdir()}
                for file in bucket.cache.iterdir():
                    data, other = file.read_bytes(), right_blocks.get(file.name, b"")
                    assert not differ(data, other), f"a wrong block stayed in {file.name}"


def differ(data: bytes, other: bytes) -> bool:
    """Tell whether a block that is in two files of a cache is another in one than in the other."""
    if len(data) != len(other):
        return bool(other)
    blocks = -(-len(data) // 4097)
    both = [n for n in range(blocks) if data[len(data) - blocks + n] and other[len(data) - blocks + n]]
    return any(
        data[n * 4096 : min((n + 1) * 4096, len(data) - blocks)] != other[n * 4096 : min((n + 1) * 4096, len(data) - blocks)]
        for n in both
    )


def test_a_view_that_met_a_wrong_block_reads_it_again(server: S3Server, store: Path, url: str, tmp_path: Path) -> None:
    reader = Reader(server.bucket(url, tmp_path / "cache", block_bytes=4096))
    steps = np.arange(60) * reader.info.streams
    reader.read("obs", steps[:1])
    server.fault = lambda method, path: "flipped" if method == "GET" and "obs/c." in path else ""
    with pytest.raises(db.CorruptionError):
        reader.read("obs", steps)
    server.fault = lambda method, path: ""
    np.testing.assert_array_equal(reader.read("obs", steps), Reader(store).read("obs", steps))


@pytest.mark.nightly
def test_a_store_that_changes_while_it_is_read_is_an_error(server: S3Server, store: Path, tmp_path: Path) -> None:
    url = server.put(store)
    with db.ReplayBuffer(server.bucket(url, tmp_path / "cache", block_bytes=4096), mode="r") as buffer:
        buffer.at(buffer.steps()[:10])
        other = stored(tmp_path / "other", seed=5)
        server.put(other, url.removeprefix("s3://runs/"))
        with pytest.raises(db.CorruptionError, match="was replaced or removed since the store was opened"):
            buffer.at(buffer.steps())
        buffer.at(buffer.steps()[:10])
        buffer._store.files._listed = 0.0  # type: ignore[attr-defined]  # some time later
        with pytest.raises(db.CorruptionError, match="replaced since it was opened"):
            buffer.refresh()
    bucket = server.bucket(url, tmp_path / "cache", block_bytes=4096)
    with db.ReplayBuffer(bucket, mode="r") as again, db.ReplayBuffer(other, mode="r") as local:
        assert same(again.at(again.steps()), local.at(again.steps()))


def test_what_is_no_closed_store_is_refused(server: S3Server, store: Path, tmp_path: Path) -> None:
    def opened(url: str, **options: Any) -> None:
        db.ReplayBuffer(db.Bucket(url, cache=tmp_path, options=server.options(**options)), mode="r").close()

    with pytest.raises(db.errors.NotAStoreError, match="there is no store at s3://runs/nothing"):
        opened("s3://runs/nothing")
    with pytest.raises(db.errors.BucketError, match="there is no bucket 'no-such-bucket'"):
        opened("s3://no-such-bucket/store")
    with pytest.raises(db.InputError, match="does not take these options"):
        opened("s3://runs/x", no_such_option=3)
    with db.ReplayBuffer(tmp_path / "open", columns=COLUMNS, segment_rows=64) as buffer:
        fill(buffer, 5, 0)
        url = server.put(tmp_path / "open")
    with pytest.raises(db.CorruptionError, match="was not closed when it was copied there"):
        opened(url)
    server.fault = lambda method, path: "denied"
    with pytest.raises(db.errors.BucketError, match="Give credentials"):
        opened("s3://runs/x")


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "gs://bucket/x", "bucket", 3])
def test_a_bucket_is_named_by_its_url(url: Any) -> None:
    with pytest.raises(db.InputError, match="named as in"):
        db.Bucket(url)
    for name, value in (("cache_bytes", 3), ("block_bytes", 5000), ("requests", 0)):
        with pytest.raises(db.InputError, match=f"^{name}.* must be"):
            db.Bucket("s3://bucket/x", **{name: value})  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_buffer_outlives_a_server_that_is_gone_for_a_while(server: S3Server, store: Path, url: str, tmp_path: Path) -> None:
    from datetime import timedelta

    options = server.options(retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=1)})
    bucket = db.Bucket(url, cache=tmp_path / "cache", options=options)
    with db.ReplayBuffer(bucket, mode="r") as buffer, db.ReplayBuffer(store, mode="r") as local:
        known = buffer.at(buffer.steps()[:5])
        server.stop()
        try:
            with pytest.raises(db.errors.BucketError, match="call again"):
                buffer.at(buffer.steps())
            assert same(buffer.at(buffer.steps()[:5]), known)
        finally:
            server.start()
        server.fault = lambda method, path: "denied"
        with pytest.raises(db.errors.BucketError, match="access was denied"):
            buffer.at(buffer.steps())
        server.fault = lambda method, path: "cut"
        with pytest.raises(db.errors.BucketError):
            buffer.at(buffer.steps())
        server.fault = lambda method, path: ""
        assert same(buffer.at(buffer.steps()), local.at(buffer.steps()))


def test_a_full_disk_is_told_and_goes_on_when_there_is_room(
    server: S3Server, store: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Files, fd: int, data: Any, offset: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with db.ReplayBuffer(server.bucket(url, tmp_path), mode="r") as buffer, db.ReplayBuffer(store, mode="r") as local:
        with monkeypatch.context() as patched:
            patched.setattr(Files, "pwrite", full)
            with pytest.raises(db.errors.BucketError, match="the disk of the cache") as found:
                buffer.sample(32)
            assert found.value.errno == errno.ENOSPC
        assert same(buffer.at(buffer.steps()), local.at(buffer.steps()))
        assert not [name for name in os.listdir(tmp_path) if ".tmp" in name]


def test_nothing_is_written_to_a_bucket(server: S3Server, url: str, tmp_path: Path) -> None:
    bucket = server.bucket(url, tmp_path / "cache")
    for mode in ("a", "r+", "w-"):
        with pytest.raises(db.errors.ReadOnlyError, match="in a bucket"):
            db.ReplayBuffer(bucket, mode=mode)
    with db.ReplayBuffer(bucket, mode="r") as buffer:
        steps = buffer.steps()[:3]
        for call in (
            lambda: buffer.columns.write("value", steps, np.zeros(3)),
            lambda: buffer.episodes.of(steps).set_tag("x"),
            lambda: buffer.copies.mark("x"),
            lambda: buffer.sample(3, db.Prioritized()),
            lambda: buffer.clear(),
        ):
            with pytest.raises(db.errors.ReadOnlyError):
                call()
        for other in (buffer.check, lambda: buffer.copies.snapshot(tmp_path / "copy")):
            with pytest.raises(db.InputError, match="in a bucket"):
                other()
        assert str(bucket) in repr(buffer)


def test_a_pickled_buffer_opens_the_bucket_again_and_a_fork_says_that_it_cannot(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    with db.ReplayBuffer(server.bucket(url, tmp_path), mode="r", seed=1) as buffer:
        first, every = buffer.steps()[:5], buffer.steps()
        known = buffer.at(first)
        with pickle.loads(pickle.dumps(buffer)) as again:
            assert same(again.at(first), known)
            assert (again.draw(10)["steps"] == buffer.draw(10)["steps"]).all()
        receive, send = multiprocessing.Pipe(duplex=False)

        def child() -> None:
            found = same(buffer.at(first), known)  # which is here
            try:
                buffer.at(every)
            except db.errors.BucketError as error:
                send.send((found, str(error)))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
        assert receive.poll(1)
        found, said = receive.recv()
        assert found
        assert "fork" in said


def test_marks_and_what_tells_of_a_store_are_read_from_a_bucket(server: S3Server, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=64, frame_stack=2) as buffer:
        fill(buffer, 200, 0)
        buffer.copies.mark("half")
        fill(buffer, 100, 1)
        buffer.columns.write("value", buffer.steps(), np.arange(len(buffer), dtype=np.float32))
        buffer.episodes.of(buffer.steps()[:20]).set_tag("good")
    bucket = server.bucket(server.put(tmp_path / "store"), tmp_path / "cache")
    with db.ReplayBuffer(bucket, mode="r") as remote, db.ReplayBuffer(tmp_path / "store", mode="r") as local:
        assert remote.copies.marks == ("half",)
        assert same(remote.at(remote.steps()), local.at(local.steps()))
        assert remote.episodes.tag_names == local.episodes.tag_names == ("good",)
        assert len(remote.episodes.to_pandas(steps=True)) == len(local.episodes.to_pandas(steps=True))
    marked: dict[str, Any] = {"mode": "r", "mark": "half"}
    with db.ReplayBuffer(bucket, **marked) as remote, db.ReplayBuffer(tmp_path / "store", **marked) as local:
        assert same(remote.at(remote.steps()), local.at(local.steps()))
    told, known = summary(Reader(bucket)), summary(Reader(tmp_path / "store"))
    differ = {name for name in told if told[name] != known[name]}
    assert differ <= {"path", "disk", "columns"}
    reader, local_reader = Reader(bucket), Reader(tmp_path / "store")
    names = np.arange(20) * reader.info.streams
    assert same(reader.read("obs", names), local_reader.read("obs", names))


def test_a_mixture_draws_from_a_bucket_and_a_directory(server: S3Server, store: Path, url: str, tmp_path: Path) -> None:
    with db.ReplayBuffer(server.bucket(url, tmp_path), mode="r") as remote, db.ReplayBuffer(store, mode="r") as local:
        batch = db.Mixture([(remote, 0.5), (local, 0.5)]).sample(40)
        assert set(batch["part"].tolist()) == {0, 1}
        for part in (0, 1):
            mine = batch["part"] == part
            assert (batch["obs"][mine] == local.at(batch["steps"][mine])["obs"]).all()
    assert threading.active_count() < 300
