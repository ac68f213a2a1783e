"""HDF5 of robomimic, LIBERO, ManiSkill and D4RL, written in the layouts that they have published; and hostile files.

robomimic: https://robomimic.github.io/docs/datasets/overview.html. LIBERO: scripts/create_dataset.py in its sources. ManiSkill:
mani_skill/utils/wrappers/record.py of its package. D4RL: https://github.com/Farama-Foundation/D4RL/wiki, and d4rl/offline_env.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import import_
from tests.formats import episodes as made
from tests.formats import interrupted

LENGTHS = (3, 1, 7)


def arrays(steps: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 256, (steps + 1, 8, 9, 3), dtype=np.uint8),
        "state": random.normal(size=(steps + 1, 4)),
        "actions": random.normal(size=(steps, 7)),
        "rewards": random.normal(size=steps),
        "states": random.normal(size=(steps, 11)),
    }


def imported(format: str, path: Path, tmp_path: Path, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    store = import_(format, path, tmp_path / "store", progress=False, **options)
    assert db.check(store).ok
    with db.ReplayBuffer(store, mode="r") as buffer:
        return made.read(store), (buffer.environment, buffer.metadata)


def robomimic(path: Path, next_obs: bool = True, chunks: bool = False) -> list[dict[str, Any]]:
    found = [arrays(steps, seed) for seed, steps in enumerate(LENGTHS)]
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(LENGTHS)
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}})
        for number, one in zip((0, 2, 10), found, strict=True):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = len(one["actions"])
            demo.attrs["model_file"] = "<mujoco/>"
            for name in ("image", "state"):
                options = {"compression": "gzip", "chunks": (1, *one[name].shape[1:])} if chunks else {}
                demo.create_dataset(f"obs/{name}", data=one[name][:-1], **options)
                if next_obs:
                    demo.create_dataset(f"next_obs/{name}", data=one[name][1:])
            for name in ("actions", "rewards", "states"):
                demo.create_dataset(name, data=one[name])
            dones = np.zeros(len(one["actions"]), np.int64)
            dones[-2:] = 1  # of success states, as its done mode 2 has them
            demo.create_dataset("dones", data=dones)
        file.create_dataset("mask/train", data=np.array([b"demo_0", b"demo_10"]))
    return found


@pytest.mark.parametrize("chunks", [False, True])
def test_robomimic(tmp_path: Path, chunks: bool) -> None:
    wanted = robomimic(tmp_path / "file.hdf5", chunks=chunks)
    with pytest.raises(db.errors.LossError, match="model_file"):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "store", progress=False)
    found, (environment, metadata) = imported("robomimic", tmp_path / "file.hdf5", tmp_path, allow_loss=["attributes"])
    for one, two in zip(found, wanted, strict=True):
        for path, name in (
            ("obs/image", "image"),
            ("obs/state", "state"),
            ("action", "actions"),
            ("reward", "rewards"),
            ("states", "states"),
        ):
            assert one[path].dtype == two[name].dtype
            np.testing.assert_array_equal(one[path], two[name])
        assert one["flags/dones"].sum() == min(2, len(two["actions"]))
        assert one["terminated"][-1]
        assert one["terminated"].sum() == 1
    assert environment == {"id": "Lift"}
    assert metadata["robomimic"]["dataset"]["env_args"]["env_kwargs"] == {"control_freq": 20}
    assert metadata["robomimic"]["demos"] == ["demo_0", "demo_2", "demo_10"]


def test_robomimic_by_filter_key_and_without_next_observations(tmp_path: Path) -> None:
    wanted = robomimic(tmp_path / "file.hdf5", next_obs=False)
    found, _ = imported("robomimic", tmp_path / "file.hdf5", tmp_path, allow_loss=["attributes"], mask="train")
    assert len(found) == 2
    np.testing.assert_array_equal(found[1]["obs/state"][:-1], wanted[2]["state"][:-1])
    np.testing.assert_array_equal(found[1]["obs/state"][-1], wanted[2]["state"][-2])  # the final one is not known
    with pytest.raises(db.InputError, match="train"):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "other", mask="valid", progress=False)


def test_next_observations_that_do_not_follow_are_no_silent_loss(tmp_path: Path) -> None:
    robomimic(tmp_path / "file.hdf5")
    with h5py.File(tmp_path / "file.hdf5", "a") as file:
        file["data/demo_10/next_obs/state"][3] += 1
    with pytest.raises(db.errors.LossError, match="next_obs='last'"):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "store", allow_loss=["attributes"], progress=False)
    import_("robomimic", tmp_path / "file.hdf5", tmp_path / "other", allow_loss=["attributes"], next_obs="last", progress=False)


def libero(path: Path) -> None:
    path.mkdir()
    tasks = {"open the drawer": "open the drawer", "close it": list("close it")}
    for n, (name, instruction) in enumerate(tasks.items()):
        with h5py.File(path / f"{n}_demo.hdf5", "w") as file:
            data = file.create_group("data")
            data.attrs["problem_info"] = json.dumps({"problem_name": "kitchen", "language_instruction": instruction})
            data.attrs["bddl_file_name"], data.attrs["bddl_file_content"] = f"{name}.bddl", "(define)"
            data.attrs["env_args"] = json.dumps({"env_name": "Libero_Kitchen"})
            data.attrs["num_demos"], data.attrs["total"] = 2, 9
            for number, steps in enumerate((4, 5)):
                one = arrays(steps, 10 * n + number)
                demo = data.create_group(f"demo_{number}")
                demo.attrs["num_samples"], demo.attrs["init_state"] = steps, one["states"][0]
                demo.create_dataset("obs/agentview_rgb", data=one["image"][:-1])
                demo.create_dataset("obs/ee_pos", data=one["state"][:-1])
                demo.create_dataset("actions", data=one["actions"])
                demo.create_dataset("states", data=one["states"])
                last = np.zeros(steps, np.uint8)
                last[-1] = 1
                demo.create_dataset("rewards", data=last)
                demo.create_dataset("dones", data=last)


def test_libero(tmp_path: Path) -> None:
    libero(tmp_path / "given")
    found, (environment, metadata) = imported("libero", tmp_path / "given", tmp_path, allow_loss=["attributes"])
    assert [one["tag"] for one in found] == ["open the drawer"] * 2 + ["close it"] * 2
    assert found[3]["reward"].dtype == np.uint8
    np.testing.assert_array_equal(found[3]["obs/agentview_rgb"][:5], arrays(5, 11)["image"][:5])
    assert environment == {"id": "Libero_Kitchen"}
    assert metadata["libero"]["dataset"]["1_demo"]["bddl_file_name"] == "close it.bddl"


def maniskill(path: Path, states: bool = False) -> list[dict[str, Any]]:
    wanted = [arrays(steps, seed) for seed, steps in enumerate(LENGTHS)]
    noted = []
    with h5py.File(path, "w") as file:
        for number, one in enumerate(wanted):
            steps = len(one["actions"])
            group = file.create_group(f"traj_{number}", track_order=True)
            if states:
                group.create_dataset("obs", data=one["state"])
                group.create_dataset("env_states/actors/cube", data=one["image"].reshape(steps + 1, -1))
            else:
                group.create_dataset("obs/agent/qpos", data=one["state"])
                group.create_dataset("obs/sensor_data/hand/rgb", data=one["image"], compression="gzip", compression_opts=5)
            group.create_dataset("actions", data=one["actions"].astype(np.float32))
            over = np.arange(steps) > 1  # it goes on after a success
            group.create_dataset("terminated", data=over)
            group.create_dataset("truncated", data=np.arange(steps) == steps - 1)
            group.create_dataset("success", data=over)
            noted.append(
                {
                    "episode_id": number,
                    "episode_seed": 40 + number,
                    "control_mode": "pd",
                    "elapsed_steps": steps,
                    "reset_kwargs": {"seed": 40 + number},
                }
            )
    info = {"env_info": {"env_id": "PickCube-v1", "env_kwargs": {"obs_mode": "rgb"}}, "source_type": "rl", "episodes": noted}
    path.with_suffix(".json").write_text(json.dumps(info))
    return wanted


@pytest.mark.parametrize("states", [False, True])
def test_maniskill(tmp_path: Path, states: bool) -> None:
    wanted = maniskill(tmp_path / "trajectory.h5", states)
    found, (environment, metadata) = imported("maniskill", tmp_path / "trajectory.h5", tmp_path)
    for number, (one, two) in enumerate(zip(found, wanted, strict=True)):
        state, picture = ("obs/state", "obs/env_states/actors/cube") if states else ("obs/agent/qpos", "obs/sensor_data/hand/rgb")
        np.testing.assert_array_equal(one[state], two["state"])
        np.testing.assert_array_equal(one[picture].reshape(-1), two["image"].reshape(-1))
        np.testing.assert_array_equal(one["action"], two["actions"].astype(np.float32))
        np.testing.assert_array_equal(one["flags/terminated"], one["success"])
        assert (one["terminated"][-1], one["truncated"][-1]) == (len(two["actions"]) > 2, True)
        assert set(one["episode/seed"]) == {40 + number}
    assert environment == {"id": "PickCube-v1"}
    assert metadata["maniskill"]["dataset"]["each_episode"] == {"control_mode": "pd"}


def d4rl(path: Path, timeouts: bool = True, following: bool = True, flat: bool = True) -> dict[str, Any]:
    random = np.random.default_rng(0)
    steps = 40
    found: dict[str, Any] = {
        "observations": random.normal(size=(steps, 3)).astype(np.float32),
        "actions": random.normal(size=(steps, 2)).astype(np.float32),
        "rewards": random.normal(size=steps if flat else (steps, 1)).astype(np.float32),
        "terminals": np.isin(np.arange(steps), [4, 30]).reshape(steps if flat else (steps, 1)),
        "infos/qpos": random.normal(size=(steps, 5)),
    }
    ends = np.isin(np.arange(steps), [4, 14, 30])
    if timeouts:
        found["timeouts"] = np.isin(np.arange(steps), [14])
    if following:
        after = np.roll(found["observations"], -1, axis=0)
        after[ends] += 1  # what was seen before the reset
        found["next_observations"] = after
    with h5py.File(path, "w") as file:
        for name, values in found.items():
            file.create_dataset(name, data=values, compression="gzip")
        file["metadata/algorithm"] = np.bytes_(b"SAC")
    return found


def test_d4rl(tmp_path: Path) -> None:
    wanted = d4rl(tmp_path / "file.hdf5")
    found, (_, metadata) = imported("d4rl", tmp_path / "file.hdf5", tmp_path)
    assert [one["steps"] for one in found] == [5, 10, 16, 9]
    assert [(bool(one["terminated"][-1]), bool(one["truncated"][-1])) for one in found] == [
        (True, False),
        (False, True),
        (True, False),
        (False, False),
    ]
    for path, name in (
        ("action", "actions"),
        ("reward", "rewards"),
        ("infos/qpos", "infos/qpos"),
        ("flags/terminals", "terminals"),
    ):
        together = np.concatenate([one[path] for one in found])
        assert together.dtype == wanted[name].dtype
        np.testing.assert_array_equal(together, wanted[name])
    np.testing.assert_array_equal(np.concatenate([one["obs"][:-1] for one in found]), wanted["observations"])
    np.testing.assert_array_equal(np.concatenate([one["obs"][1:] for one in found]), wanted["next_observations"])
    assert metadata["d4rl"]["dataset"] == {"algorithm": "SAC"}


def test_d4rl_of_older_files(tmp_path: Path) -> None:
    d4rl(tmp_path / "file.hdf5", timeouts=False, following=False, flat=False)
    with pytest.raises(db.InputError, match="max_episode_steps"):
        import_("d4rl", tmp_path / "file.hdf5", tmp_path / "store", progress=False)
    found, _ = imported("d4rl", tmp_path / "file.hdf5", tmp_path, max_episode_steps=10)
    assert [one["steps"] for one in found] == [5, 10, 10, 6, 9]
    assert [bool(one["truncated"][-1]) for one in found] == [False, True, True, False, False]


def test_d4rl_where_the_ant_walks_on(tmp_path: Path) -> None:
    d4rl(tmp_path / "file.hdf5", following=False)
    found, _ = imported("d4rl", tmp_path / "file.hdf5", tmp_path, ends="timeouts")
    assert [one["steps"] for one in found] == [15, 25]
    assert found[0]["flags/terminals"].sum() == 1


def test_a_single_action_of_maniskills_is_refused(tmp_path: Path) -> None:
    maniskill(tmp_path / "trajectory.h5")
    with h5py.File(tmp_path / "trajectory.h5", "a") as file:
        del file["traj_2/actions"]
        file["traj_2/actions"] = 1.0
    with pytest.raises(db.errors.SourceError, match=r"traj_2.*has no actions"):
        import_("maniskill", tmp_path / "trajectory.h5", tmp_path / "store", progress=False)


# Kills


@pytest.mark.nightly
@pytest.mark.parametrize("format", ["robomimic", "libero", "maniskill", "d4rl"])
def test_imports_that_are_killed_go_on(tmp_path: Path, format: str, any_seed: int) -> None:
    source = tmp_path / "given.h5"
    make: dict[str, Callable[[Path], Any]] = {"robomimic": robomimic, "libero": libero, "maniskill": maniskill, "d4rl": d4rl}
    make[format](source)
    losses = ["attributes"] if format in ("robomimic", "libero") else []
    clean = import_(format, source, tmp_path / "clean", allow_loss=losses, progress=False)
    for _ in interrupted.killed_and_finished("import", format, source, tmp_path / "store", any_seed, allow_loss=losses):
        interrupted.assert_same_in_each_stream(clean, tmp_path / "store")


# Hostile files


def external(data: Any) -> None:
    del data["demo_0/actions"]
    data["demo_0/actions"] = h5py.ExternalLink("/etc/hostname", "/")


def soft(data: Any) -> None:
    del data["demo_0/actions"]
    data["demo_0/actions"] = h5py.SoftLink("/data/demo_2/actions")


def virtual(data: Any) -> None:
    del data["demo_0/actions"]
    layout = h5py.VirtualLayout((3, 7), "f8")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (3, 7))
    data.create_virtual_dataset("demo_0/actions", layout)


def elsewhere(data: Any) -> None:
    del data["demo_0/actions"]
    data.create_dataset("demo_0/actions", (3, 7), "u1", external=[("/etc/hostname", 0, 21)])


def huge(data: Any) -> None:
    del data["demo_0/actions"], data["demo_0/obs/state"]
    data.create_dataset("demo_0/actions", (10**12, 7), "f8", chunks=(1024, 7), fillvalue=1)
    data.create_dataset("demo_0/obs/state", (10**12, 4), "f8", chunks=(1024, 4))


def huge_chunks(data: Any) -> None:
    del data["demo_0/states"]
    data.create_dataset("demo_0/states", (3, 2**27), "u1", chunks=(3, 2**27), compression="gzip")


def nothing_written(data: Any) -> None:
    del data["demo_0/states"]
    data.create_dataset("demo_0/states", (3, 10**9), "f8")


def too_short(data: Any) -> None:
    del data["demo_0/obs/state"]
    data["demo_0/obs/state"] = np.zeros((2, 4))


def another_dtype(data: Any) -> None:
    del data["demo_2/obs/state"], data["demo_2/next_obs/state"]
    data["demo_2/obs/state"] = data["demo_2/next_obs/state"] = np.zeros((1, 4), np.float32)


def another_shape(data: Any) -> None:
    del data["demo_2/actions"]
    data["demo_2/actions"] = np.zeros((1, 8))


def texts(data: Any) -> None:
    del data["demo_0/actions"]
    data["demo_0/actions"] = [b"left", b"right", b"left"]


def no_obs(data: Any) -> None:
    del data["demo_2/obs"]


def itself(data: Any) -> None:
    data["demo_0/obs/again"] = data["demo_0"]


@pytest.mark.parametrize(
    "harm",
    [
        external,
        soft,
        virtual,
        elsewhere,
        huge,
        huge_chunks,
        nothing_written,
        too_short,
        another_dtype,
        another_shape,
        texts,
        no_obs,
        itself,
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, harm: Callable[[Any], None]) -> None:
    robomimic(tmp_path / "file.hdf5")
    with h5py.File(tmp_path / "file.hdf5", "a") as file:
        harm(file["data"])
    with pytest.raises(db.errors.SourceError, match=r"file\.hdf5|episode"):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "store", allow_loss=["attributes", "arrays"], progress=False)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("next_obs", [True, False])
def test_a_demonstration_without_a_step_is_told_as_such(tmp_path: Path, next_obs: bool) -> None:
    robomimic(tmp_path / "file.hdf5", next_obs=next_obs)

    def empty(group: Any) -> None:
        for name in list(group):
            if isinstance(group[name], h5py.Group):
                empty(group[name])
            else:
                rows = group[name][:0]
                del group[name]
                group.create_dataset(name, data=rows)

    with h5py.File(tmp_path / "file.hdf5", "a") as file:
        empty(file["data/demo_2"])
    with pytest.raises(
        db.errors.SourceError, match=r"demo_2.*(expected observations of one step at least, found none|has no steps)"
    ):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "store", allow_loss=["attributes"], progress=False)


@pytest.mark.parametrize("part", np.linspace(0, 0.99, 12).tolist())
def test_files_cut_short_are_refused(tmp_path: Path, part: float) -> None:
    robomimic(tmp_path / "whole.hdf5", chunks=True)
    whole = (tmp_path / "whole.hdf5").read_bytes()
    (tmp_path / "file.hdf5").write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(db.errors.SourceError, match=r"file\.hdf5"):
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "store", allow_loss=["attributes"], progress=False)


def test_nan_among_flags_is_an_error(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"observations": np.zeros((9, 2)), "actions": np.zeros((9, 1)), "terminals": np.eye(9)[8]}
    rows["terminals"][4] = np.nan
    np.savez(tmp_path / "data.npz", **rows)
    with pytest.raises(db.errors.SourceError, match=r"terminals should be.*found NaN in row 4"):
        import_("ogbench", tmp_path / "data.npz", tmp_path / "store", progress=False)
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in {**rows, "rewards": np.zeros(9), "timeouts": np.zeros(9, bool)}.items():
            file[name] = values
    with pytest.raises(db.errors.SourceError, match=r"terminals should be.*found NaN in row 4"):
        import_("d4rl", tmp_path / "data.hdf5", tmp_path / "store", progress=False)
