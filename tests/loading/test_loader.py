"""The loader: the same batches as by hand, ahead of the learner; and sampling from many threads beside one that adds."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import diskbuffer as db
from tests.support.experience import Experience, Feeder

ACCELERATOR = torch.accelerator.current_accelerator()
accelerated = [
    pytest.mark.gpu,
    pytest.mark.skipif(ACCELERATOR is None, reason="needs an accelerator, and torch sees none"),
]
DEVICES = [None, "cpu", torch.device("cpu"), pytest.param(ACCELERATOR, marks=accelerated)]


@pytest.fixture
def world() -> Experience:
    return Experience(2)


@pytest.fixture
def buffer(tmp_path: Path, world: Experience) -> Iterator[db.ReplayBuffer]:
    with world.open(tmp_path / "store", frame_stack=2, segment_rows=64, seed=11) as buffer:
        Feeder(world, buffer).add(200)
        yield buffer


def take(loader: Any, n: int) -> list[dict[str, Any]]:
    return [on_cpu(batch, copy=True) for batch in itertools.islice(loader, n)]


def on_cpu(batch: dict[str, Any], *, copy: bool = False) -> dict[str, Any]:
    return {name: value.cpu().clone() if copy else value.cpu() for name, value in batch.items()}


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert torch.equal(value, b[name]), name


def loading() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("diskbuffer-transform")]


@pytest.mark.some(1)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("prefetch", "threads"), [(1, 1), (3, None), (8, 4)])
def test_a_loader_gives_the_batches_of_a_uniform_draw_with_the_same_seed(
    device: Any, prefetch: int, threads: int | None, buffer: db.ReplayBuffer, world: Experience
) -> None:
    by_hand = db.Uniform(seed=7)
    expected = [on_cpu(buffer.sample(32, by_hand), copy=True) for _ in range(25)]
    loader = buffer.loader(32, db.Uniform(seed=7), device=device, prefetch=prefetch, threads=threads)
    loaded = take(loader, 25)
    assert_same(loaded, expected)
    for batch in loaded:
        world.check_batch(batch, stack=2)


def test_batches_on_another_device_have_its_shapes(buffer: db.ReplayBuffer) -> None:
    expected = buffer.sample(16)
    for batch in itertools.islice(buffer.loader(16, device=torch.device("meta")), 5):
        assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
            name: (value.shape, value.dtype) for name, value in expected.items()
        }
        assert all(value.device.type == "meta" for value in batch.values())


@pytest.fixture(params=[pytest.param(None, marks=accelerated)])
def device() -> torch.device:
    assert ACCELERATOR is not None
    return ACCELERATOR


def test_batches_on_an_accelerator_stay_as_they_are_while_it_computes(
    device: torch.device, buffer: db.ReplayBuffer, world: Experience
) -> None:
    kept, weight = [], torch.randn(2000, 2000).to(device)
    for batch in itertools.islice(buffer.loader(64, device=device, prefetch=2), 40):
        weight = weight @ weight / 2000  # the copies run beside this
        kept.append(batch)
    for n in range(40):
        kept.append(buffer.sample(64, device=device))
        weight = weight @ weight / 2000
        if n % 3 == 0:
            buffer.sample(32, device=device)
    for batch in kept:
        assert all(value.device.type == device.type for value in batch.values())
        world.check_batch(on_cpu(batch), stack=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: db.Uniform(3),
        lambda: db.Uniform(3, n_step=3),
        lambda: db.Slices(5, seed=3),
        lambda: db.Slices(5, seed=3, crossing=True),
        lambda: db.Prioritized(3),
    ],
)
def test_an_accelerator_gets_what_the_cpu_gets_and_shared_frames_once(
    make: Callable[[], db.Sampler], device: torch.device, buffer: db.ReplayBuffer
) -> None:
    sampler = make()
    state = sampler.state_dict()
    expected = [on_cpu(buffer.sample(16, sampler), copy=True) for _ in range(6)]
    sampler.load_state_dict(state)
    assert_same([on_cpu(buffer.sample(16, sampler, device=device), copy=True) for _ in range(6)], expected)
    sampler.load_state_dict(state)
    loader = buffer.loader(16, sampler, device=device)
    assert_same(take(loader, 6), expected)
    whole = sum(value.nbytes for value in expected[0].values())
    if isinstance(sampler, db.Uniform) and "discount" not in expected[0]:
        exact = 6 * (whole - expected[0]["obs"].nbytes // 2)  # three frames for two stacks of two
        assert exact <= loader.nbytes_sent <= exact + 6 * 64 * len(expected[0])
    else:
        assert 0 < loader.nbytes_sent <= 6 * whole


def test_what_a_function_keeps_of_pinned_memory_stays_as_it_is(device: torch.device, buffer: db.ReplayBuffer) -> None:
    kept: list[tuple[Any, Any]] = []

    def keep(batch: Any) -> Any:
        assert batch["obs"].is_pinned()
        assert batch["steps"].is_pinned()
        kept.append((batch, {name: value.clone() for name, value in batch.items()}))
        return batch["steps"]

    steps: Any
    for steps in itertools.islice(buffer.loader(16, device=device, transform=keep), 30):
        assert steps.device.type == device.type
    for _ in range(10):
        buffer.sample(16, device=device, transform=keep)
    for batch, copy in kept:
        assert_same([batch], [copy])


# Threads


def test_leaving_the_loop_stops_the_threads(buffer: db.ReplayBuffer) -> None:
    assert loading() == []
    for n, _ in enumerate(buffer.loader(8, prefetch=4, transform=lambda batch: batch, transform_threads=3)):
        assert loading()
        if n == 5:
            break
    assert loading() == []


def test_an_error_in_the_loop_stops_the_threads(buffer: db.ReplayBuffer) -> None:
    def learn() -> None:
        for _ in buffer.loader(8):
            raise RuntimeError("the learner's own")

    with pytest.raises(RuntimeError, match="the learner's own") as caught:
        learn()
    del caught  # its traceback holds the loop
    assert loading() == []


def test_two_loops_at_once_do_not_disturb_each_other(buffer: db.ReplayBuffer) -> None:
    one, other = buffer.loader(8, db.Uniform(1)), buffer.loader(8, db.Uniform(2))
    pairs = [(on_cpu(a, copy=True), on_cpu(b, copy=True)) for a, b in itertools.islice(zip(one, other, strict=False), 10)]
    assert_same([a for a, _ in pairs], take(buffer.loader(8, db.Uniform(1)), 10))
    assert_same([b for _, b in pairs], take(buffer.loader(8, db.Uniform(2)), 10))


def test_a_loop_goes_on_where_the_last_one_was_left(buffer: db.ReplayBuffer) -> None:
    loader = buffer.loader(8, db.Uniform(3), prefetch=5)
    assert_same(take(loader, 4) + take(loader, 3), take(buffer.loader(8, db.Uniform(3)), 7))


def test_the_time_that_a_learner_waited_is_counted(buffer: db.ReplayBuffer) -> None:
    loader = buffer.loader(8)
    begin = time.perf_counter()
    take(loader, 20)
    assert 0 < loader.waited <= time.perf_counter() - begin


# Batches that are kept


@pytest.mark.some(2)
@pytest.mark.parametrize("device", DEVICES)
def test_kept_batches_are_not_overwritten(device: Any, buffer: db.ReplayBuffer, world: Experience) -> None:
    kept = list(itertools.islice(buffer.loader(16, device=device, prefetch=2), 60))
    for batch in kept:
        world.check_batch(on_cpu(batch), stack=2)
    assert len({tuple(batch["steps"].tolist()) for batch in kept}) == 60


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch["next_obs"],
        lambda batch: batch["obs"][3:5],
        lambda batch: batch["action"].view(4, 4),
        lambda batch: batch["obs"].numpy(),
        lambda batch: batch["obs"][:, -1].numpy()[2:3],
        lambda batch: memoryview(batch["reward"].numpy()),
        lambda batch: batch["steps"],
    ],
)
@pytest.mark.parametrize("how", ["loader", "sample"])
def test_a_part_that_is_kept_is_not_overwritten(keep: Callable[[Any], Any], how: str, buffer: db.ReplayBuffer) -> None:
    kept, copies = [], []
    batches = buffer.loader(16) if how == "loader" else (buffer.sample(16) for _ in itertools.count())
    for batch in itertools.islice(batches, 30):
        kept.append(keep(batch))
        copies.append(np.asarray(kept[-1]).copy())
        del batch
    for part, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(np.asarray(part), copy)


def test_batches_that_are_not_kept_use_the_same_memory_again(buffer: db.ReplayBuffer) -> None:
    places = set()
    for batch in itertools.islice(buffer.loader(16, prefetch=2), 60):
        places.add(batch["obs"].data_ptr())
    assert len(places) < 20


# Errors


def damage(path: Path, chunk: int, rows: int = 64, chunk_rows: int = 4) -> None:
    """Flip a bit in the middle of a chunk of the first slot's sealed shard."""
    data = bytearray(path.read_bytes())
    entries = np.frombuffer(data, np.int64)[-2 * rows // chunk_rows :].reshape(-1, 2)
    at, size = entries[chunk].tolist()
    with path.open("r+b") as file:
        file.seek(at + size // 2)
        file.write(bytes([data[at + size // 2] ^ 4]))


@pytest.fixture
def damaged(buffer: db.ReplayBuffer) -> tuple[int, list[int]]:
    """Damage chunk 4 of a sealed segment of `buffer`; return its stream, and the steps of its rows."""
    buffer.flush(recompress=True)
    root = zarr.open_group(buffer.path, mode="r")
    table = {name: np.asarray(root[f"_segments/{name}"]) for name in ("stream", "first_row", "length")}
    slot = int(np.flatnonzero((table["first_row"] == 64) & (table["length"][:, 0] > 0))[0])
    damage(buffer.path / "obs" / f"c.{slot}.0.0", 4)
    stream = int(table["stream"][slot])
    return stream, [position * 2 + stream for position in range(64 + 16, 64 + 20)]


def test_a_damaged_chunk_is_named_by_sample_and_at(
    damaged: tuple[int, list[int]], buffer: db.ReplayBuffer, world: Experience
) -> None:
    stream, steps = damaged
    message = rf"'obs', rows 80 to 83 of stream {stream}.*checksum"
    some = [step for step in steps if not world.is_last(stream, np.array(step // 2))]
    for step in some:
        with pytest.raises(db.CorruptionError, match=message):
            buffer.at([step])
    with pytest.raises(db.CorruptionError, match=message):
        take((buffer.sample(32) for _ in range(200)), 200)
    fine = [10, 12, 14]
    world.check_batch(buffer.at(fine), stack=2)  # the others can be read


@pytest.mark.parametrize("device", [None, torch.device("meta")])
def test_an_error_in_a_thread_reaches_the_learner(device: Any, damaged: tuple[int, list[int]], buffer: db.ReplayBuffer) -> None:
    stream, _ = damaged
    with pytest.raises(db.CorruptionError, match=rf"'obs', rows 80 to 83 of stream {stream}.*checksum"):
        for _ in itertools.islice(buffer.loader(32, device=device, threads=2), 200):
            pass
    assert loading() == []


def test_an_error_comes_in_its_turn_and_a_new_loop_goes_on_there(damaged: tuple[int, list[int]], buffer: db.ReplayBuffer) -> None:
    def until_it_fails(batches: Iterator[Any]) -> int:
        delivered: list[Any] = []
        with pytest.raises(db.CorruptionError):
            delivered.extend(batches)  # keeps what came before the error
        return len(delivered)

    by_hand, sampler = db.Uniform(9), db.Uniform(9)
    expected = until_it_fails(buffer.sample(4, by_hand) for _ in itertools.count())
    assert until_it_fails(iter(buffer.loader(4, sampler, prefetch=6, threads=3))) == expected
    assert sampler.batches == by_hand.batches == expected + 1  # the one that failed is behind us
    assert_same(take(buffer.loader(4, sampler), 1), [buffer.sample(4, by_hand)])
    assert loading() == []


def test_an_index_entry_that_points_outside_is_found(buffer: db.ReplayBuffer) -> None:
    buffer.flush(recompress=True)
    buffer.close()
    for file in (buffer.path / "obs").glob("c.*"):
        data = bytearray(file.read_bytes())
        data[-256:] = np.array([[2**40, 100]] * 16, np.int64).tobytes()
        file.write_bytes(data)
    with db.ReplayBuffer(buffer.path, mode="r") as reader, pytest.raises(db.CorruptionError, match="checksum"):
        reader.sample(32)


def test_an_index_entry_of_a_live_shard_that_points_outside_is_found(buffer: db.ReplayBuffer) -> None:
    buffer.flush(recompress=True)  # or the sealing thread puts other files beside these, and in their places
    for file in (buffer.path / "obs").glob("c.*"):
        with file.open("r+b") as shard:
            shard.seek(-256, 2)
            entries = np.frombuffer(shard.read(), np.int64).copy().reshape(16, 2)
            entries[entries[:, 0] >= 0] = 2**40, 100
            shard.seek(-256, 2)
            shard.write(entries.tobytes())
    with pytest.raises(db.CorruptionError, match=r"index points outside|checksum does not match"):
        buffer.sample(512)


def test_a_shard_that_was_cut_short_is_found(buffer: db.ReplayBuffer) -> None:
    buffer.flush(recompress=True)
    buffer.close()
    for file in (buffer.path / "obs").glob("c.*"):
        with file.open("r+b") as shard:
            shard.truncate(100)
    with pytest.raises(db.CorruptionError), db.ReplayBuffer(buffer.path, mode="r") as reader:
        reader.sample(32)


# Resume


@pytest.mark.some(1)
@pytest.mark.parametrize("prefetch", [1, 3, 9])
def test_a_loader_that_is_resumed_gives_the_batches_of_one_that_was_not_interrupted(
    prefetch: int, buffer: db.ReplayBuffer, world: Experience
) -> None:
    state = buffer.state_dict()
    expected = take(buffer.loader(16), 12)
    buffer.load_state_dict(state)
    loaded = take(buffer.loader(16, prefetch=prefetch), 5)  # others were drawn ahead, and belong to the state
    saved = json.loads(json.dumps(buffer.state_dict()))
    buffer.close()
    with db.ReplayBuffer(buffer.path, seed=99) as again:
        again.load_state_dict(saved)
        loaded += take(again.loader(16, prefetch=prefetch), 7)
    assert_same(loaded, expected)


def test_a_state_saved_within_the_loop_counts_the_batches_that_were_delivered(buffer: db.ReplayBuffer) -> None:
    for n, _ in enumerate(buffer.loader(8, prefetch=6)):
        assert buffer.state_dict()["loader"]["batches"] == n + 1
        if n == 10:
            break
    assert buffer.state_dict()["sample"]["batches"] == 0


def test_sample_and_loader_can_be_resumed_apart(buffer: db.ReplayBuffer) -> None:
    state = buffer.state_dict()
    first = [on_cpu(buffer.sample(8), copy=True) for _ in range(3)] + take(buffer.loader(8), 3)
    buffer.load_state_dict(state)
    loaded = take(buffer.loader(8), 3)
    assert_same([on_cpu(buffer.sample(8), copy=True) for _ in range(3)] + loaded, first)


def test_a_ctrl_c_while_a_loop_that_was_left_is_freed_is_not_lost(buffer: db.ReplayBuffer) -> None:
    filled, busy, interrupted = threading.Semaphore(0), threading.Event(), threading.Event()

    def transform(batch: Any) -> Any:
        if interrupt.is_alive():  # the loop cannot be freed before its thread is done
            busy.set()
            interrupted.wait()
        filled.release()
        return batch

    def send() -> None:
        busy.wait()
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        interrupted.set()

    def leave() -> None:
        batches = iter(buffer.loader(8, transform=transform, transform_threads=1, prefetch=4))
        next(batches)
        for _ in range(5):
            filled.acquire()
        interrupt.start()
        next(batches)  # one that was there; the thread gets another to fill
        busy.wait()
        del batches
        time.sleep(10)

    interrupt = threading.Thread(target=send)
    with pytest.raises(KeyboardInterrupt):
        leave()
    interrupt.join()
    assert loading() == []


# Beside a thread that adds


def run(*tasks: Callable[[threading.Event], None]) -> None:
    """Run tasks in threads, until the first is done; raise what one of them raised."""
    errors: list[BaseException] = []
    done = threading.Event()

    def work(task: Callable[[threading.Event], None]) -> None:
        try:
            task(done)
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)
            done.set()

    threads = [threading.Thread(target=work, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    threads[0].join()
    done.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.some(1)
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("how", ["add", "extend"])
def test_sampling_threads_beside_one_that_adds_and_evicts_get_right_bytes(stack: int, how: str, tmp_path: Path) -> None:
    world, batches = Experience(2), [0] * 4
    with world.open(tmp_path / "store", 300, frame_stack=stack, segment_rows=16, threads=2) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)

        def add(done: threading.Event) -> None:
            n = 0
            while (n < 300 or min(batches) <= 50) and not done.is_set():
                n += 1
                if how == "add":
                    feed.add()
                else:
                    feed.extend(n % 2, 1 + n % 50)

        def sample(number: int) -> Callable[[threading.Event], None]:
            def work(done: threading.Event) -> None:
                sampler = db.Uniform(number)
                while not done.is_set():
                    batch = buffer.sample(48, sampler)
                    world.check_batch(batch, stack)
                    batches[number] += 1

            return work

        run(add, *(sample(number) for number in range(4)))
        assert min(batches) > 50
        assert buffer.stats()["added"] > 300
        assert buffer.stats()["seal_error"] is None
        world.check(buffer)


def test_a_loader_beside_a_thread_that_adds_and_evicts_gets_right_bytes(
    tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    world, batches = Experience(2), 0
    with world.open(tmp_path / "store", 300, frame_stack=4, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)

        def add(done: threading.Event) -> None:
            added = 0
            while (added <= amount(300, 1000) or batches <= amount(30, 100)) and not done.is_set():
                feed.add()
                added += 1

        def learn(done: threading.Event) -> None:
            nonlocal batches
            kept: list[Any] = []
            for batch in buffer.loader(48, threads=2):
                world.check_batch(batch, 4)
                kept = [*kept[-3:], batch]
                batches += 1
                if done.is_set():
                    break
            for batch in kept:
                world.check_batch(batch, 4)

        run(add, learn)
        assert batches > amount(30, 100)
        assert buffer.stats()["added"] > amount(300, 1000)
    assert loading() == []


def test_looking_from_another_thread_while_one_adds_is_fine(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    world, looks = Experience(2), 0
    lengths, seen = set(), set()  # after an add, and at any time
    with world.open(tmp_path / "store", 200, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(50)
        lengths.add(len(buffer))

        def add(done: threading.Event) -> None:
            added = 0
            while (added <= amount(300, 1000) or looks <= amount(30, 100)) and not done.is_set():
                feed.add()
                lengths.add(len(buffer))
                added += 1

        def look(done: threading.Event) -> None:
            nonlocal looks
            while not done.is_set():
                episodes = buffer.episodes
                assert 100 <= episodes.length.sum() <= 200 + 2 * 16
                assert buffer.stats()["steps"] >= 100
                assert "store" in repr(buffer)
                looks += 1

        def count(done: threading.Event) -> None:
            while not done.is_set():
                seen.add(len(buffer))

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads take turns between any two instructions
        try:
            run(add, look, count)
        finally:
            sys.setswitchinterval(before)
        assert seen <= lengths, "an add is seen whole, or not at all"
        assert 100 <= min(lengths) <= max(lengths) <= 200 + 2 * 16
