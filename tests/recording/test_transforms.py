"""Pictures that are transformed when they are given: as if they had been transformed beforehand, by plain numpy."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import zarr
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

import diskbuffer as db
from diskbuffer.native.transforms import transform_pictures
from diskbuffer.recording.pictures import Pictures
from diskbuffer.schema.schema import Schema
from diskbuffer.schema.transforms import MOST_PIXELS, transforms_of
from tests.amounts import examples

Array = np.ndarray[Any, Any]


def weights(given: int, wanted: int) -> Array:
    """Return how much of each pixel that is given each pixel that is wanted covers, along one axis."""
    r, i = np.arange(given), np.arange(wanted)[:, None]
    covered: Array = np.minimum((i + 1) * given, (r + 1) * wanted) - np.maximum(i * given, r * wanted)
    return np.maximum(covered, 0)


def model(pictures: Array, transforms: Any) -> Array:
    """Transform pictures, (..., height, width[, channels]), in numpy."""
    found = pictures.astype(np.int64)
    for each in sorted(transforms, key=lambda each: isinstance(each, db.Resize)):
        if isinstance(each, db.Greyscale):
            found = ((found * [19595, 38470, 7471]).sum(-1) + 32768) // 65536
            continue
        grey = any(isinstance(other, db.Greyscale) for other in transforms)
        height, width = found.shape[-2:] if grey else found.shape[-3:-1]
        sums = np.einsum(
            "ir,nrcx,jc->nijx",
            weights(height, each.height),
            found.reshape(-1, height, width, 1 if grey else found.shape[-1]),
            weights(width, each.width),
        )
        sums = (sums + height * width // 2) // (height * width)
        lead = found.shape[: -2 if grey else -3]
        found = sums.reshape(*lead, each.height, each.width, *(() if grey else found.shape[-1:]))
    return found.astype(np.uint8)


@examples(15, 150)
@given(st.tuples(*[st.integers(1, 40)] * 4), st.sampled_from((1, 3, 4)), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_pictures_are_the_exact_means_of_areas(
    sizes: tuple[int, int, int, int], channels: int, grey: bool, resize: bool, seed: int
) -> None:
    height, width, h, w = sizes
    random = np.random.default_rng(seed)
    chosen = ((db.Greyscale(),) if grey else ()) + ((db.Resize(h, w),) if resize or not grey else ())
    channels = 3 if grey else channels
    pictures = random.integers(0, 256, (3, height, width, channels), np.uint8)
    pictures[0] = random.choice([0, 255, 254])
    plane = (h, w) if len(chosen) == 2 or not grey else (height, width)
    assume(not (grey and plane == (width, 3)))  # rows of colour pictures look like pictures that are grey and small already
    column = db.Column(plane if grey else (*plane, channels), "uint8", transform=chosen[::-1])
    found = Pictures(Schema.of({"obs": column})).transformed(pictures)
    np.testing.assert_array_equal(found, model(pictures, chosen))


@pytest.mark.parametrize("size", [(MOST_PIXELS // 2**11, 2**11), (1, MOST_PIXELS), (2160, 3840)])
def test_means_of_the_largest_pictures_are_exact(size: tuple[int, int]) -> None:
    column = db.Column((1, 2), "uint8", transform=db.Resize(1, 2))
    pictures = Pictures(Schema.of({"obs": column}))
    half, n = size[1] // 2, size[0] * size[1] // 2
    picture = np.zeros(size, np.uint8)
    assert pictures.transformed(np.full(size, 255, np.uint8)).tolist() == [[255, 255]]
    for left in (n // 2 - 1, n // 2):  # so many pixels of 255 and 254 have a mean just below 254.5, and just that
        picture[:] = 254
        columns = np.ascontiguousarray(picture[:, :half]).ravel()
        columns[:left] = 255
        picture[:, :half] = columns.reshape(size[0], half)
        assert pictures.transformed(picture).tolist() == [[254 + (2 * left >= n), 254]]


def test_grey_is_what_pillow_makes_of_all_shades() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    column = db.Column((200, 300), "uint8", transform=db.Greyscale())
    found = Pictures(Schema.of({"obs": column})).transformed(picture)
    np.testing.assert_array_equal(found, np.asarray(Image.fromarray(picture).convert("L")))


# Stores


TRANSFORMS = (db.Greyscale(), db.Resize(7, 9))


def columns_of(transform: Any) -> dict[str, db.Column]:
    return {
        "obs/camera": db.Column((7, 9), "uint8", transform=transform),
        "obs/state": db.Column((2,), "float32"),
        "action": db.Column((), "int64"),
    }


class Games:
    """Several games, whose frames, or stacks of them, are given to a buffer, and transformed beforehand to another one."""

    def __init__(self, n: int, stack: int, seed: int) -> None:
        self.n, self.stack, self.random = n, stack, np.random.default_rng(seed)
        self.frames = np.zeros((n, stack, 14, 17, 3), np.uint8)
        for game in range(n):
            self.reset(game)

    def frame(self) -> Array:
        return self.random.integers(0, 256, (14, 17, 3), np.uint8)

    def reset(self, game: int) -> None:
        self.frames[game] = self.frame()

    def step(self, moves: float = 0.8) -> None:
        for game in range(self.n):
            frame = self.frame() if self.random.random() < moves else self.frames[game, -1].copy()  # which may stand still
            self.frames[game] = [*self.frames[game, 1:], frame]

    def look(self, stacked: bool, lead: bool = True) -> dict[str, Array]:
        frames = self.frames.copy() if stacked else self.frames[:, -1].copy()
        state = frames.reshape(self.n, -1)[:, -2:].astype(np.float32)
        return {"camera": frames if lead else frames[0], "state": state if lead else state[0]}


def plainly(obs: dict[str, Array]) -> dict[str, Array]:
    return {"camera": model(obs["camera"], TRANSFORMS), "state": obs["state"]}


@examples(5, 40)
@given(
    st.sampled_from((1, 1, 2, 3)),
    st.sampled_from((1, 1, 2, 4)),
    st.booleans(),
    st.lists(st.sampled_from(("add", "add", "add", "extend", "trajectory", "reopen", "lost")), min_size=1, max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_a_store_is_as_if_pictures_had_been_transformed_beforehand(
    n: int, stack: int, as_stacks: bool, actions: list[str], seed: int
) -> None:
    games, random = Games(n, stack, seed), np.random.default_rng(seed)
    as_stacks = as_stacks and stack > 1
    with tempfile.TemporaryDirectory() as directory:
        paths = Path(directory) / "given", Path(directory) / "plain"
        options = {"n_envs": n, "frame_stack": stack, "autoreset": "disabled", "seed": 3}

        def opened() -> list[db.ReplayBuffer]:
            transforms = (TRANSFORMS, ())
            return [
                db.ReplayBuffer(path, columns=columns_of(transform), **options)  # type: ignore[arg-type]
                for path, transform in zip(paths, transforms, strict=True)
            ]

        buffers = opened()
        for action in actions:
            if action == "reopen":
                for buffer in buffers:
                    buffer.close()
                buffers = opened()
            elif action == "lost":  # frames that nobody recorded
                games.step()
            elif action == "add":
                for _ in range(random.integers(1, 12)):
                    lead = n > 1 or bool(random.random() < 0.5)
                    obs = games.look(as_stacks, lead)
                    games.step()
                    after, ended = games.look(as_stacks, lead), random.random(n) < 0.1
                    zeros = np.zeros(n, bool)
                    for buffer, now, following in ((buffers[0], obs, after), (buffers[1], plainly(obs), plainly(after))):
                        buffer.add(now, np.zeros(n, np.int64), np.ones(n), following, ended, zeros)
                    for game in np.flatnonzero(ended).tolist():
                        games.reset(game)
            else:
                seen = [games.look(as_stacks)]
                for _ in range(random.integers(1, 6)):
                    games.step()
                    seen.append(games.look(as_stacks))
                of_first = {key: np.stack([obs[key][0] for obs in seen]) for key in seen[0]}
                steps = len(seen) - 1
                for buffer, obs in zip(buffers, (of_first, plainly(of_first)), strict=True):
                    if action == "trajectory":
                        buffer.extend(obs, np.zeros(steps, np.int64), np.ones(steps), env=0)
                    else:
                        before = {key: values[:-1] for key, values in obs.items()}
                        after = {key: values[1:].copy() for key, values in obs.items()}
                        buffer.extend(before, np.zeros(steps, np.int64), np.ones(steps), after, env=0)
        one, other = buffers
        assert one.steps().tolist() == other.steps().tolist()
        assert one.episodes.start.tolist() == other.episodes.start.tolist()
        if len(one):
            found, expected = one.at(one.steps()), other.at(other.steps())
            for part in ("obs", "next_obs"):
                for key in ("camera", "state"):
                    assert torch.equal(found[part][key], expected[part][key])
        for buffer in buffers:
            buffer.close()
        assert db.check(paths[0], progress=False).ok
        column = zarr.open_group(paths[0], mode="r")["obs/camera"]
        assert isinstance(column, zarr.Array)
        assert column.shape[1:] == (7, 9)


class Camera(gymnasium.Env[Any, Any]):
    """Episodes of three steps of pictures at random."""

    observation_space = spaces.Box(0, 255, (14, 17, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int = 0) -> None:
        self.random, self.t = np.random.default_rng(number), 0

    def look(self) -> Array:
        return self.random.integers(0, 256, (14, 17, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.look(), 1.0, self.t == 3, False, {}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_environments_give_pictures_of_their_own_size(tmp_path: Path, mode: AutoresetMode) -> None:
    env = SyncVectorEnv([lambda number=number: Camera(number) for number in range(2)], autoreset_mode=mode)  # type: ignore[misc]
    expected: list[list[tuple[Array, Array]]] = [[], []]
    with db.ReplayBuffer(tmp_path / "store", env=env, transforms={"obs": TRANSFORMS}) as buffer:
        assert buffer.columns["obs"].shape == (7, 9)
        obs, _ = env.reset()
        ended = np.zeros(2, bool)
        for _ in range(20):
            following, reward, terminated, truncated, info = env.step(np.zeros(2, np.int64))
            final = np.array(following)
            for game in range(2):
                if mode is AutoresetMode.SAME_STEP and terminated[game]:
                    final[game] = info["final_obs"][game]
                if mode is AutoresetMode.SAME_STEP or not ended[game]:
                    expected[game].append((obs[game].copy(), final[game]))
            buffer.add(obs, np.zeros(2, np.int64), reward, following, terminated, truncated, info=info)
            obs, ended = following, terminated
        for game in range(2):
            steps = [step for step in buffer.steps().tolist() if step % 2 == game]
            batch = buffer.at(np.array(steps))
            for name, number in (("obs", 0), ("next_obs", 1)):
                wanted = model(np.stack([step[number] for step in expected[game]]), TRANSFORMS)
                np.testing.assert_array_equal(batch[name].numpy(), wanted)
        assert buffer.stats()["cut_off"] == 0
    env.close()


def test_an_environment_of_stacks_is_transformed_frame_by_frame(tmp_path: Path) -> None:
    env = FrameStackObservation(Camera(), 3)
    with db.ReplayBuffer(tmp_path / "store", env=env, transforms={"obs": TRANSFORMS}) as buffer:
        assert (buffer.columns["obs"].shape, buffer.frame_stack) == ((7, 9), 3)
        seen = []
        for _ in range(4):
            obs, _ = env.reset()
            over = False
            while not over:
                following, reward, over, truncated, _ = env.step(0)
                buffer.add(obs, 0, reward, following, over, truncated)
                seen.append((obs, following))
                obs = following
        batch = buffer.at(buffer.steps())
        for name, number in (("obs", 0), ("next_obs", 1)):
            np.testing.assert_array_equal(batch[name].numpy(), model(np.stack([each[number] for each in seen]), TRANSFORMS))
        np.testing.assert_array_equal(buffer.columns.transformed(seen[0][0]), batch["obs"][0].numpy())


@pytest.mark.parametrize(("n", "stack"), [(1, 1), (3, 1), (1, 4), (2, 4)])
def test_each_frame_is_transformed_once(n: int, stack: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def counted(*given: Any) -> None:
        counts.append(transform_pictures(*given))

    monkeypatch.setattr("diskbuffer.recording.pictures.transform_pictures", counted)
    games, zeros = Games(n, stack, 0), np.zeros(n)
    columns = {"obs": columns_of(TRANSFORMS)["obs/camera"], "action": db.Column((), "int64")}

    def look() -> Array:
        return games.look(stack > 1)["camera"]

    with db.ReplayBuffer(tmp_path / "store", columns=columns, n_envs=n, autoreset="next_step", frame_stack=stack) as buffer:
        for step in range(10):
            obs, counts[:] = look(), []
            games.step(moves=1.0)
            buffer.add(obs, zeros.astype(int), zeros, look(), zeros > 0, zeros > 0)
            assert step == 0 or sum(counts) == n
        counts[:] = []
        seen = [look()[0]]
        for _ in range(6):
            games.step(moves=1.0)
            seen.append(look()[0])
        buffer.extend(np.stack(seen[:-1]), np.zeros(6, np.int64), np.zeros(6), np.stack(seen[1:]), env=0)
        assert sum(counts) == 7 + stack - 1


def test_an_array_that_is_overwritten_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    column = db.Column((2, 2), "uint8", transform=db.Resize(2, 2))
    with db.ReplayBuffer(tmp_path / "store", columns={"obs": column, "action": db.Column((), "int64")}) as buffer:
        frame = np.zeros((4, 4), np.uint8)
        for step in range(5):
            now = frame.copy()
            frame += 10  # where `next_obs` of the last step lies
            buffer.add(now, 0, 0.0, frame, False, False)
            assert len(buffer.episodes) == 1, step
        assert buffer.at(buffer.steps())["next_obs"][:, 0, 0].tolist() == [10, 20, 30, 40, 50]


def test_a_store_with_other_transforms_is_refused(tmp_path: Path) -> None:
    env = Camera()
    sight, choice = env.observation_space, env.action_space
    db.ReplayBuffer(tmp_path / "store", env=env, transforms={"obs": TRANSFORMS}).close()
    for transforms in (TRANSFORMS[::-1], ["greyscale", "resize:7x9"], list(TRANSFORMS)):
        given: Any = {"obs": transforms}
        db.ReplayBuffer(tmp_path / "store", transforms=given, observation_space=sight, action_space=choice).close()
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        assert buffer.columns["obs"].transform == TRANSFORMS
        assert str(buffer.columns["obs"]) == "uint8[7, 9] (greyscale,resize:7x9)"
    with pytest.raises(
        db.errors.SchemaError, match=r"stored uint8\[7, 9\] \(greyscale,resize:7x9\), asked for uint8\[14, 17, 3\]"
    ):
        db.ReplayBuffer(tmp_path / "store", env=env)
    for other in ({}, {"transform": db.Greyscale()}, {"transform": db.Resize(7, 9)}):
        columns = {"obs": db.Column((7, 9), "uint8", **other), "action": db.Column((), "int64")}
        with pytest.raises(db.errors.SchemaError, match="pictures are stored with the transform greyscale,resize:7x9, asked for"):
            db.ReplayBuffer(tmp_path / "store", columns=columns)


def test_what_cannot_be_transformed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(db.errors.SchemaError, match="of uint8, found float32"):
        db.Column((7, 9), "float32", transform=db.Resize(7, 9))
    for shape, transform in (((7, 9, 3), TRANSFORMS), ((7, 8), TRANSFORMS), ((9, 7, 3), db.Resize(7, 9)), ((7,), db.Greyscale())):
        with pytest.raises(db.errors.SchemaError, match="that of what is stored"):
            db.Column(shape, "uint8", transform=transform)
    for wrong in (db.Greyscale, 84, "grey", "resize:0x3", (db.Resize(7, 9), db.Resize(7, 9)), [None]):
        with pytest.raises(db.errors.SchemaError, match="transform"):
            db.Column((7, 9), "uint8", transform=wrong)  # type: ignore[arg-type]
    for size in ((0, 9), (7.5, 9), (10**6, 10**6), (None, 3)):
        with pytest.raises(db.errors.SchemaError, match="Resize takes"):
            db.Resize(*size)
    camera = db.Column((7, 9), "uint8", transform=TRANSFORMS)
    with pytest.raises(db.errors.SchemaError, match="only columns of observations"):
        db.ReplayBuffer(tmp_path / "no", columns={"obs": camera, "action": camera})
    with pytest.raises(db.errors.SchemaError, match=r"transforms\['obs'\]: greyscale makes pictures of shape"):
        db.ReplayBuffer(tmp_path / "no", columns={"obs": camera}, transforms={"obs": TRANSFORMS})
    with pytest.raises(db.InputError, match="no column 'obs/camera'"):
        db.ReplayBuffer(tmp_path / "no", env=Camera(), transforms={"obs/camera": TRANSFORMS})
    with pytest.raises(db.errors.SchemaError, match=r"transforms\['action'\]"):
        db.ReplayBuffer(tmp_path / "no", env=Camera(), transforms={"action": db.Greyscale()})
    assert not (tmp_path / "no").exists()
    with db.ReplayBuffer(tmp_path / "store", columns={"obs": camera, "action": db.Column((), "int64")}) as buffer:
        good = np.zeros((14, 17, 3), np.uint8)
        for bad in (
            good[..., :2],
            good[:0],
            np.zeros((3, 4)),
            np.full(good.shape, 256),
            np.full(good.shape, 0.5),
            "no",
            [[1], []],
        ):
            with pytest.raises(db.InputError, match="obs"):
                buffer.add(bad, 0, 0.0, good, False, False)
            with pytest.raises(db.InputError, match="next_obs"):
                buffer.add(good, 0, 0.0, bad, False, False)
        with pytest.raises(db.InputError, match="obs"):
            buffer.add(np.stack([good, good]), 0, 0.0, good, False, False)
        assert len(buffer) == 0
        buffer.add(good.astype(np.int64), 0, 0.0, torch.from_numpy(good), False, False)
        good.flags.writeable = False
        buffer.add(good.tolist(), 0, 0.0, np.asfortranarray(good), False, False)
        buffer.add(good, 0, 0.0, good, False, False)
        assert len(buffer) == 3
        assert len(buffer.episodes) == 1


def test_transforms_come_back_from_their_notation() -> None:
    assert transforms_of("resize:7x9") == (db.Resize(7, 9),)
    assert transforms_of(["resize:7x9", " greyscale"]) == TRANSFORMS
    schema = Schema.of(columns_of(TRANSFORMS))
    again = Schema.from_attributes(json.loads(json.dumps(schema.to_attributes())))
    assert again["obs/camera"].transform == TRANSFORMS
    attributes = schema.to_attributes()
    for hostile in ("resize:7x9x", "resize:99999999x9", "", 7, ["resize"], {"a": 1}):
        attributes["obs/camera"]["transform"] = hostile
        with pytest.raises(db.errors.SchemaError):
            Schema.from_attributes(attributes)
