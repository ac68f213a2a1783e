"""Windows by column: random ones against a model in plain Python, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.samplers.draws import Offsets
from diskbuffer.schema.nested import flatten

COLUMNS = {
    **{"obs/camera": db.Column((36, 36), "uint8"), "obs/state": db.Column((2,), "float32"), "action": db.Column((3,), "float64")},
    **{"key": db.Column((), "int64"), "flag": db.Column((), "bool")},
}
LENGTHS = (1, 2, 3, 5, 8, 13, 30)


def row(path: str, episode: int, t: int) -> Any:
    """Return what the model has in a row of an episode, from its number."""
    column, number = COLUMNS[path], episode * 100 + t
    value = {"key": number, "flag": number % 3 == 0}.get(path, number % 200 + len(path))
    return np.broadcast_to(np.array(value, column.dtype), column.shape)


def extend(buffer: db.ReplayBuffer, episode: int, ends: np.ndarray[Any, Any], **how: Any) -> None:
    """Add an episode of as many steps as there are flags."""
    rows = {path: np.stack([row(path, episode, t) for t in range(len(ends) + 1)]) for path in COLUMNS}
    obs = {path[4:]: values for path, values in rows.items() if path.startswith("obs/")}
    steps: dict[str, Any] = {name: rows[name][:-1] for name in ("key", "flag")}
    buffer.extend(obs, rows["action"][:-1], np.zeros(len(ends)), terminated=ends, **steps, **how)


class World:
    """Writers, and what they have added: episode `n` has the rows that `row` tells."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        self._rng, self._episodes = rng, itertools.count(1)
        self._envs, writers, ring = int(rng.integers(1, 3)), int(rng.integers(1, 4)), rng.random() < 0.5
        how = {"capacity": int(rng.integers(40, 120)) if ring else None, "segment_rows": int(rng.choice([8, 16, 64]))}
        self.stack = int(rng.choice([1, 1, 2]))
        names = [None] if writers == 1 else [f"w{n}" for n in range(writers)]
        self._buffers = [
            db.ReplayBuffer(path, columns=COLUMNS, n_envs=self._envs, autoreset="disabled", writer=name, **how)  # type: ignore[arg-type]
            for name in names
        ]
        for _ in range(int(rng.integers(3, 12))):
            self.add()
        if writers == 1 and rng.random() < 0.5:
            self._buffers.pop().close()
            self.buffer = db.ReplayBuffer(path, frame_stack=self.stack, n_envs=self._envs, autoreset="disabled", seed=0)
            self._buffers.append(self.buffer)
        else:
            self.buffer = db.ReplayBuffer(path, mode="r", frame_stack=self.stack, seed=0)

    def add(self) -> None:
        """Add an episode, whole or so far, to some environment."""
        buffer = self._buffers[int(self._rng.integers(len(self._buffers)))]
        length, episode = int(self._rng.choice(LENGTHS)), next(self._episodes)
        ends = np.zeros(length, bool)
        ends[-1] = self._rng.random() < 0.8
        extend(buffer, episode, ends, env=int(self._rng.integers(self._envs)))

    def close(self) -> None:
        for buffer in (self.buffer, *self._buffers):
            buffer.close()

    # The model

    def eligible(self, window: db.Windows) -> set[int]:
        """Return the steps that may be drawn; look which there are."""
        steps, form = self.buffer.steps(), window.form
        keys = self.buffer.at(steps, columns=["key"])["key"].tolist()
        self._keys = dict(zip(steps.tolist(), keys, strict=True))
        self._firsts = {
            key // 100: key % 100 for key in sorted(keys, reverse=True)
        }  # that are there: `elapsed` counts others, too
        assert isinstance(form, Offsets)
        if form.padding is not None:
            return set(steps.tolist())
        before = np.array([key % 100 - self._firsts[key // 100] for key in keys])
        remaining = self.buffer.episodes.remaining(steps)
        fits = np.ones(len(steps), bool)
        for path, offsets in form.columns:
            after = remaining if path.startswith("obs/") else remaining - 1
            fits &= (offsets[0] >= -before) & (offsets[-1] <= after)
        return set(steps[fits].tolist())

    def expected(self, step: int, path: str, offsets: list[int], padding: str | None) -> tuple[Any, list[bool]]:
        """Return the rows of a window, and its mask."""
        episode, t = divmod(self._keys[step], 100)
        low, high = self._firsts[episode], t + int(self.buffer.episodes.remaining([step])[0])
        high -= not path.startswith("obs/")
        rows, mask = [], []
        for offset in offsets:
            at, within = min(max(t + offset, low), high), low <= t + offset <= high
            one = row(path, episode, at)
            if path.startswith("obs/") and self.stack > 1:
                one = np.stack([row(path, episode, max(at - k, 0)) for k in reversed(range(self.stack))])  # kept for them
            rows.append(one if within or padding == "edge" else np.zeros_like(one))
            mask.append(within)
        return np.stack(rows), mask

    def check(self, batches: list[Any], window: db.Windows, offsets: dict[str, list[int]], stride: int) -> None:
        """Compare batches of windows with what the model has."""
        eligible, padding = self.eligible(window), window.form.padding  # type: ignore[attr-defined]
        for batch in batches:
            masks = flatten(batch.pop("mask", {}))
            assert masks.keys() == (set() if padding is None else offsets.keys())
            assert set(flatten(batch)) == {*offsets, "steps"}
            for n, step in enumerate(batch["steps"].tolist()):
                assert step in eligible
                for path, each in offsets.items():
                    rows, mask = self.expected(step, path, [offset * stride for offset in each], padding)
                    np.testing.assert_array_equal(flatten(batch)[path][n], rows, err_msg=f"{path} {each} of step {step}")
                    if padding is not None:
                        assert masks[path][n].tolist() == mask


def random_windows(rng: np.random.Generator) -> tuple[dict[str, list[int]], int, str | None]:
    """Return offsets by column, a stride, and a padding."""
    paths = [str(path) for path in rng.permutation(list(COLUMNS))[: rng.integers(1, 5)]]
    windows, padding = dict[str, list[int]](), rng.choice(np.array([None, "edge", "zeros"], object))
    for path in paths:
        if rng.random() < 0.5:
            first = int(rng.integers(-6, 4))
            windows[path] = list(range(first, first + int(rng.integers(1, 9))))
        else:
            windows[path] = sorted(rng.choice(np.arange(-9, 10), int(rng.integers(1, 5)), replace=False).tolist())
    return windows, int(rng.choice([1, 1, 2, 3])), padding


def compare(rng: np.random.Generator, directory: Path) -> None:
    """Compare windows of three kinds with the model's."""
    world = World(directory, rng)
    for _ in range(3):
        offsets, stride, padding = random_windows(rng)
        seed, replace = int(rng.integers(2**32)), bool(rng.random() < 0.7)
        window = db.Windows(offsets, seed, padding=padding, stride=stride, replace=replace)  # type: ignore[arg-type]
        eligible = world.eligible(window)
        if not eligible:
            with pytest.raises(db.errors.EmptyBufferError, match="of a window"):
                world.buffer.sample(4, window)
            continue
        loop = iter(world.buffer.loader(4, window, numpy=True, prefetch=2))
        world.check([world.buffer.sample(n, window, numpy=True) for n in (1, 5)], window, offsets, stride)
        world.check([next(loop) for _ in range(2)], window, offsets, stride)
        if world.buffer._store.writable:
            world.add()  # which may evict what was drawn ahead
            if not world.eligible(window):
                with pytest.raises(db.errors.EmptyBufferError, match="of a window"):
                    next(loop)
                continue
            world.check([next(loop)], window, offsets, stride)
        passes = list(world.buffer.batches(7, sampler=window, numpy=True))
        seen = np.concatenate([batch["steps"] for batch in passes]).tolist() if passes else []
        assert len(seen) == len(set(seen))
        assert set(seen) == world.eligible(window)
        world.check(passes, window, offsets, stride)
    world.close()


def test_windows_are_those_of_a_model(any_seed: int, amount: Callable[[int, int], int], tmp_path: Path) -> None:
    for number in range(amount(8, 350)):
        compare(np.random.default_rng([any_seed, number]), tmp_path / f"{number}")


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(tmp_path / "plain", columns=COLUMNS, seed=0) as buffer:
        for episode, length in enumerate((3, 30, 60), 1):
            extend(buffer, episode, np.arange(length) == length - 1)
        yield buffer


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {}, "columns must be a dict of offsets"),
        (["obs/state"], {}, "columns must be a dict of offsets"),
        ({"action": (1, 0)}, {}, "'action': expected integers that ascend"),
        ({"action": (1, 1)}, {}, "'action': expected integers that ascend"),
        ({"action": ()}, {}, "'action': expected integers that ascend"),
        ({"action": (0.0, 0.5)}, {}, "(?s)the offsets of 'action': expected integers.*seconds=True"),
        ({"action": (0, 1)}, {"padding": np.array([1, 2])}, "padding must be 'edge', 'zeros' or None"),
        ({"action": np.array(0.1)}, {"seconds": True}, "'action': expected seconds, such as"),
        ({"action": 3}, {}, "the offsets of 'action': expected integers"),
        ({"action": (0, 2**40)}, {}, "'action': expected less than 2,147,483,648 steps"),
        ({"action": (-(2**63),)}, {}, "'action': expected less than"),
        ({"action": (0, 4)}, {"stride": 2**62}, "stride must be"),
        ({"action": (0, 4)}, {"stride": 2**30}, r"'action': expected less than .* found \[0, 4\] with a stride of"),
        ({"action": (0.1, 0.1)}, {"seconds": True}, "'action': expected seconds that ascend"),
        ({"action": (0.0, float("inf"))}, {"seconds": True}, "'action': expected seconds that ascend"),
        ({"action": ()}, {"seconds": True}, "'action': expected seconds, such as"),
        ({"action": (0, 1)}, {"padding": "last"}, "padding must be 'edge', 'zeros' or None"),
        ({"action": (0, 1)}, {"stride": 0}, "stride must be"),
    ],
)
def test_windows_that_are_none_are_refused(columns: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(db.InputError, match=message):
        db.Windows(columns, **options)


def test_columns_of_windows_are_the_buffers(buffer: db.ReplayBuffer) -> None:
    window = db.Windows({"obs/state": (0, 1), "action": range(3)}, seed=0)
    for call in ("sample", "loader", "batches"):
        with pytest.raises(db.InputError, match="the windows have no 'key'; they have obs/state, action"):
            getattr(buffer, call)(4, sampler=window, columns=["key"])
    assert set(buffer.sample(4, window, columns=["action"])) == {"action", "steps"}
    assert set(buffer.sample(4, window, columns=[])) == {"steps"}
    with pytest.raises(db.InputError, match="no column 'obs/nope'"):
        buffer.sample(4, db.Windows({"obs/nope": (0,)}))
    with pytest.raises(db.errors.EmptyBufferError, match=r"has the 101 steps of a window, the longest has 60; .*padding"):
        buffer.sample(4, db.Windows({"action": range(-40, 61)}))


def test_windows_resume_and_are_shared_out_and_mixed(buffer: db.ReplayBuffer) -> None:
    offsets: dict[str, Any] = {"obs/state": (-1, 0), "action": range(-1, 7)}

    def window(seed: int) -> db.Windows:
        return db.Windows(offsets, seed, padding="edge")

    one, other = window(1), window(2)
    loop = iter(buffer.loader(8, one))
    for _ in range(3):
        next(loop)
    other.load_state_dict(one.state_dict())
    assert next(iter(buffer.loader(8, other)))["steps"].tolist() == next(loop)["steps"].tolist()
    whole = buffer.sample(8, window(3))
    parts = [next(iter(buffer.loader(4, window(3), rank=rank, world_size=2))) for rank in range(2)]
    for rank, part in enumerate(parts):
        for path, values in flatten(part).items():
            np.testing.assert_array_equal(values, flatten(whole)[path][rank::2])
    mixture = db.Mixture([(buffer, 1, window(4)), (buffer, 3, window(5))])
    batch = mixture.sample(8)
    assert batch["part"].tolist() == [0, 0] + [1] * 6
    again = buffer.sample(2, window(4))
    for path, values in flatten(again).items():
        np.testing.assert_array_equal(flatten(batch)[path][:2], values)
    with pytest.raises(db.InputError, match="must agree"):
        db.Mixture([(buffer, 1, window(4)), (buffer, 1, db.Windows(offsets, padding="zeros"))])


def test_what_was_drawn_ahead_for_a_shorter_history_is_drawn_anew(buffer: db.ReplayBuffer) -> None:
    shorter, longer = (db.Windows({"key": (before, 0)}, seed=0) for before in (-1, -4))
    loop = iter(buffer.loader(64, shorter))
    next(loop)
    longer.load_state_dict(shorter.state_dict())
    for _, batch in zip(range(6), buffer.loader(64, longer), strict=False):
        assert (batch["key"][:, 1] - batch["key"][:, 0] == 4).all()


def test_windows_in_seconds_are_those_in_steps(tmp_path: Path) -> None:
    made = {}
    for name, metadata in (("ten", {"fps": 10}), ("thirty", {"fps": 29.97}), ("none", {}), ("bad", {"fps": "30"})):
        made[name] = db.ReplayBuffer(tmp_path / name, columns=COLUMNS, metadata=metadata or None, seed=0)
        extend(made[name], 1, np.zeros(40, bool))
    in_seconds: dict[str, Any] = {"obs/state": [-0.1, 0.0], "key": [n / 10 for n in range(5)]}
    in_steps: dict[str, Any] = {"obs/state": (-1, 0), "key": range(5)}
    found = made["ten"].sample(32, db.Windows(in_seconds, 1, seconds=True))
    for path, values in flatten(made["ten"].sample(32, db.Windows(in_steps, 1))).items():
        np.testing.assert_array_equal(flatten(found)[path], values)
    keys = made["thirty"].sample(8, db.Windows({"key": [0.0, 1 / 29.97, 10 / 29.97]}, 1, seconds=True))["key"]
    assert (keys - keys[:, :1]).tolist() == [[0, 1, 10]] * 8
    with pytest.raises(db.InputError, match=r"with 29.97 steps a second, 0\.1 s is no step: the nearest is at 0\.1001 s"):
        made["thirty"].sample(8, db.Windows({"key": [0.0, 0.1]}, 1, seconds=True))
    with pytest.raises(db.InputError, match="nothing tells how many steps a second the buffer has"):
        made["none"].sample(8, db.Windows(in_seconds, 1, seconds=True))
    with pytest.raises(db.InputError, match=r"metadata\['fps'\] is '30'"):
        made["bad"].sample(8, db.Windows(in_seconds, 1, seconds=True))
    with pytest.raises(db.InputError, match=r"two of .* are the same step"):
        made["ten"].sample(8, db.Windows({"key": [0.0, 0.00005]}, seconds=True))
    for name, fps in (("a", 10), ("b", 20)):
        with db.ReplayBuffer(tmp_path / "several", columns=COLUMNS, writer=name, metadata={"fps": fps}) as writer:
            extend(writer, 1, np.zeros(40, bool))
    with (
        db.ReplayBuffer(tmp_path / "several", mode="r") as several,
        pytest.raises(db.InputError, match="several steps a second, 10, 20"),
    ):
        several.sample(8, db.Windows(in_seconds, seconds=True))
    with pytest.raises(db.InputError, match="the offsets of 'key': expected seconds"):
        db.Windows({"key": ["now"]}, seconds=True)  # type: ignore[list-item]
    with pytest.raises(db.InputError, match=r"with 10 steps a second, .*, 3000000000.0\] are more than 2,147,483,648 steps"):
        made["ten"].sample(8, db.Windows({"key": [0.0, 3e9]}, seconds=True))
    given: dict[str, Any] = {"key": (n / 10 for n in range(2))}
    once = db.Windows(given, 1, seconds=True)
    given["key"] = [0.0, 0.3]  # as others may do with what is theirs
    keys = made["ten"].sample(8, once)["key"]
    assert (keys - keys[:, :1]).tolist() == [[0, 1]] * 8
    with pytest.raises(db.InputError, match=r"met a buffer with 10 steps a second before, and this one has 29\.97"):
        made["thirty"].sample(8, once)
    assert made["ten"].sample(8, once)["key"].shape == (8, 2)
    for buffer in made.values():
        buffer.close()


def test_windows_are_drawn_by_priority(buffer: db.ReplayBuffer) -> None:
    windows = db.Windows({"obs/state": (-1, 0), "key": range(-2, 3)}, padding="zeros")
    sampler = db.Prioritized(alpha=1.0, seed=0, windows=windows)
    steps = buffer.sample(64, sampler)["steps"]
    sampler.update(steps, np.where(steps == steps[0], 1e6, 0))
    batch = buffer.sample(16, sampler, numpy=True)
    assert set(batch["steps"].tolist()) == {int(steps[0])}
    assert set(flatten(batch)) == {"obs/state", "key", "mask/obs/state", "mask/key", "steps", "weights"}
    key = int(buffer.at(steps[:1], columns=["key"])["key"][0])
    assert (batch["key"][:, 2] == key).all()
    assert ((batch["key"] == key + np.arange(-2, 3)) | ~batch["mask"]["key"]).all()
    for how in ({"n_step": 2}, {"length": 4}):
        with pytest.raises(db.InputError, match="windows= is for single steps"):
            db.Prioritized(windows=windows, **how)  # type: ignore[arg-type]
    for other in (db.Windows({"key": (0,)}), db.Windows({"key": (0,)}, padding="edge", max_age=5), db.Slices(3)):
        with pytest.raises(db.InputError, match="windows must be Windows with padding="):
            db.Prioritized(windows=other)  # type: ignore[arg-type]


def test_starts_lie_in_what_was_selected_of_an_episode_that_grew_since(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, seed=0) as buffer:
        extend(buffer, 1, np.zeros(60, bool))
        selected = buffer.episodes[:]
        extend(buffer, 1, np.zeros(60, bool), new_episode=False)
        drawn = buffer.sample(512, db.Slices(5, 0, over="episodes", episodes=selected))["steps"]
        assert int(drawn[:, 0].max()) < 60
        with pytest.raises(db.errors.EmptyBufferError, match=r"has the 62 steps of a window.*the longest has 60"):
            buffer.sample(8, db.Windows({"action": (-61, 0)}, episodes=selected))
        drawn = buffer.sample(512, db.Windows({"action": (-50, 0)}, episodes=selected))["steps"]
        assert set(drawn.tolist()) == set(range(50, 60))


def test_windows_of_some_episodes(buffer: db.ReplayBuffer) -> None:
    buffer.episodes[:1].set_tag("short")
    long = buffer.episodes[buffer.episodes.length == 60]
    for how in ({"episodes": long}, {"without": "short"}, {"max_age": 20}):
        batch = buffer.sample(256, db.Windows({"key": range(-5, 2)}, seed=0, **how), numpy=True)
        assert (np.diff(batch["key"], axis=1) == 1).all()
        drawn = batch["key"][:, 5]
        assert set(drawn // 100) == ({3} if "without" not in how else {2, 3})
        assert drawn.min() == (305 if "episodes" in how else 205 if "without" in how else 340)
