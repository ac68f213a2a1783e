"""The examples run, and do what they say."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

import diskbuffer as db
from diskbuffer.formats import import_

EXAMPLES = Path(__file__).parent.parent / "examples"


SHORT: dict[str, tuple[object, ...]] = {
    "record_robot.py": ("--episodes", 2, "--hz", 1e4),
    "world_model.py": ("--steps", 200, "--updates", 4),
    "train_diffusion_policy.py": ("--episodes", 3, "--updates", 4),
    "prioritized_dqn.py": ("--steps", 600),
    "ppo_from_disk.py": ("--steps", 60, "--iterations", 1),
    "train_sb3.py": ("--capacity", 1000, "--steps", 120),
    "train_torchrl.py": ("--capacity", 1000, "--steps", 120),
    "train_tianshou.py": ("--capacity", 1000, "--steps", 120),
}


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it as short as may be, in this process, which has imported all that it needs; the nightly set sees what it learns."""
    place, threads = "--rollouts" if name.startswith("ppo") else "--store", torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [name, place, str(tmp_path / "store"), *map(str, SHORT[name])])
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        torch.set_num_threads(threads)


def test_an_example_whose_store_is_being_written_says_so_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["prioritized_dqn.py", "--store", str(tmp_path / "store")])
    with (
        db.ReplayBuffer(tmp_path / "store", columns={"obs": db.Column(), "action": db.Column()}),
        pytest.raises(SystemExit, match="store is being written to by this process"),
    ):
        runpy.run_path(str(EXAMPLES / "prioritized_dqn.py"), run_name="__main__")


@pytest.mark.some(1)
def test_a_recording_that_is_killed_goes_on_and_its_good_episodes_go_to_lerobot(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lerobot"
    command = [sys.executable, str(EXAMPLES / "record_robot.py"), "--store", str(store), "--episodes", "12", "--hz", "300"]
    recording = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert recording.stdout is not None
    for _ in range(4):
        recording.stdout.readline()
    while (running := db.ReplayBuffer(store, mode="r").episodes[-1]).ending != "running" or running.length < 3:
        assert recording.poll() is None
    recording.kill()
    recording.communicate()
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert int(told[0].split()[1].rstrip(":")) in (4, 5)  # one more may have ended, and been judged, before the kill
    run("record_robot.py", "--store", store, "--export", target)
    with db.ReplayBuffer(store, mode="r") as buffer:
        values, endings = buffer.episodes.values, buffer.episodes.ending.tolist()
        assert endings.count("truncated") in (12, 13)  # one may have ended, and not been judged
        assert len(endings) - endings.count("truncated") <= 1
        good = values["success"] & (values["late"] < 0.1)
        instructions = [str(text) for text in values["instruction"][good]]
        assert good.any()
        assert not values["success"].all()
    import_("lerobot", target, tmp_path / "back", progress=False)
    with db.ReplayBuffer(tmp_path / "back", mode="r") as buffer:
        assert [episode.values["instruction"] for episode in buffer.episodes] == instructions
        assert buffer.episodes.values["success"].all()


@pytest.mark.nightly
def test_the_demo_is_interrupted(tmp_path: Path) -> None:
    """One line, a checkpoint, and no traceback."""
    store = tmp_path / "store"
    command = [sys.executable, str(EXAMPLES / "train_dqn.py"), "--store", str(store), "--steps", "1000000"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (store / "zarr.json").exists() or len(db.ReplayBuffer(store, mode="r")) < 1500:  # it learns by then
        assert demo.poll() is None
        time.sleep(0.2)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate()
    assert (demo.returncode, "Traceback" in err) == (0, False), err
    assert "Interrupted: the checkpoint is saved, and every step is kept." in out
    assert "and it goes on" in out
    assert store.with_name("store.checkpoint.pt").exists()
    assert len(db.ReplayBuffer(store, mode="r")) >= 1500


@pytest.mark.nightly
def test_the_example_for_jax_runs(tmp_path: Path) -> None:
    """In a process of its own: JAX objects to every fork of a process that has imported it, and other tests fork."""
    run("train_jax.py", "--store", tmp_path / "store", "--steps", 200, "--updates", 5)


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_the_example_for_rllib_runs_and_goes_on(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("ray.rllib", reason="needs RLlib: see docs/adapters.md")
    options = ("--store", tmp_path / "store", "--steps", 60, "--algorithm", algorithm)
    printed = [run("train_rllib.py", *options) for _ in range(2)]
    there = [int(re.findall(r"([\d,]+) steps in the buffer", text)[0].replace(",", "")) for text in printed]
    assert there[1] >= there[0] + 60 >= 120


@pytest.mark.nightly
def test_collectors_of_torchrl_write_to_the_disk_of_their_node(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")
    options = ("--store", tmp_path / "store", "--steps", 400, "--updates", 2)
    printed = [run("train_torchrl_ray.py", *options) for _ in range(2)]
    before, after = ([int(re.findall(rf"(\d+) steps {where}", text)[0]) for text in printed] for where in ("are", "in"))
    assert before[0] == 0
    assert after[0] >= 400
    assert before[1] >= after[0]  # it went on, and what was under way when the first one ended is there, too
    assert after[1] >= before[1] + 400
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        steps = buffer.at(buffer.steps())
        assert len(buffer) >= after[1]
        moved = (steps["next_obs"] - steps["obs"])[:, 0]
        assert torch.allclose(moved, 0.02 * steps["obs"][:, 1], atol=1e-4)  # what belongs to one step of CartPole came together
        assert set(steps["action"].tolist()) == {0, 1}
        assert (steps["reward"] == 1).all()
        assert steps["terminated"].sum() > 10


def run(name: str, *options: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, options)]
    environment = os.environ | {"RAY_worker_niceness": "0"}  # with Ray's 15, beside busy cores, a worker starts after minutes
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.nightly
def test_a_diffusion_policy_learns_from_demonstrations(tmp_path: Path) -> None:
    printed = run("train_diffusion_policy.py", "--store", tmp_path / "store", "--episodes", 60, "--updates", 300)
    first, last = map(float, re.findall(r"loss ([\d.]+) at first, ([\d.]+) at last", printed)[0])
    assert last < first / 3


@pytest.mark.nightly
def test_a_world_model_learns_from_crossing_sequences(tmp_path: Path) -> None:
    printed = run("world_model.py", "--store", tmp_path / "store", "--steps", 1000, "--updates", 40)
    first, last = map(float, re.findall(r"loss ([\d.]+) at first, ([\d.]+) at last", printed)[0])
    assert last < first / 5


@pytest.mark.nightly
def test_prioritized_dqn_learns_and_is_resumed(tmp_path: Path) -> None:
    printed = run("prioritized_dqn.py", "--store", tmp_path / "store", "--steps", 1500)
    assert "1,500 steps, 1,001 batches" in printed
    printed = run("prioritized_dqn.py", "--store", tmp_path / "store", "--steps", 300)
    assert "Resumed with 1,500 steps and 1,001 batches" in printed
    assert "1,800 steps, 1,301 batches" in printed


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts anonymous memory on Linux")
@pytest.mark.parametrize("policy", ["own", "sb3", "tianshou"])
def test_ppo_learns_from_a_rollout_that_is_larger_than_the_memory_it_is_allowed(policy: str, tmp_path: Path) -> None:
    allowed, how = 300, ("--steps", 12_000, "--iterations", 1, "--epochs", 1, "--policy", policy)
    printed = run("ppo_from_disk.py", "--rollouts", tmp_path, *how, "--allow", allowed)
    stacked, samples = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:MB|samples)", printed))
    assert stacked > allowed
    assert samples == 12_000
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_ppo_goes_on_in_the_middle_of_episodes(tmp_path: Path) -> None:
    printed = run("ppo_from_disk.py", "--rollouts", tmp_path, "--steps", 1000, "--iterations", 3)
    assert [int(n.replace(",", "")) for n in re.findall(r"learned from ([\d,]+) samples", printed)] == [2000] * 3


@pytest.mark.nightly
@pytest.mark.parametrize("more", [("--wait", 0.001), ("--plain",)])
def test_ppo_learns_while_it_plays(more: tuple[object, ...], tmp_path: Path) -> None:
    printed = run("ppo_while_playing.py", "--store", tmp_path / "store", "--seconds", 20, *more)
    steps, returns = zip(*re.findall(r"s: (\d+) steps, return ([\d.]+)", printed), strict=True)
    assert int(steps[-1]) > int(steps[0])
    assert max(map(float, returns)) > 2 * float(returns[0])
    assert re.search(r"environments waited \d+ % of the time, the learner \d+ %\n$", printed)


def is_complete(model: Path) -> bool:
    try:
        with zipfile.ZipFile(model) as file:
            return "system_info.txt" in file.namelist()  # which comes last
    except zipfile.BadZipFile:
        return False


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_stable_baselines3_goes_on_after_a_kill(algorithm: str, tmp_path: Path) -> None:
    options = ("train_sb3.py", "--algorithm", algorithm, "--store", tmp_path / "store", "--capacity", 10_000, "--steps", 1200)
    with subprocess.Popen([sys.executable, str(EXAMPLES / options[0]), *map(str, options[1:])]) as process:
        deadline = time.monotonic() + 240
        while not any(map(is_complete, (tmp_path / "store-models").glob("*_800_steps.zip"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    printed = run(*options)
    if algorithm == "ppo":
        assert re.search(r"updates waited for data [\d.]+ % of their time\n1312 steps trained", printed)
    else:
        there = int(re.findall(r"800 steps trained; (\d+) of experience on disk\n", printed)[0])
        assert 800 <= there <= 1200
        assert "\n1200 steps trained" in printed


def killed_and_run_again(first: str, *options: object) -> str:
    """Run an example, kill it (SIGKILL) once it has printed a line that begins with `first`, and run it again."""
    command = [sys.executable, str(EXAMPLES / str(options[0])), *map(str, options[1:])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith(first) for line in process.stdout)
        process.kill()
    return run(str(options[0]), *options[1:])


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["slices"])
def test_torchrl_goes_on_after_a_kill(algorithm: str, tmp_path: Path) -> None:
    options = ("train_torchrl.py", "--algorithm", algorithm, "--store", tmp_path / "store", "--steps", 600)
    printed = killed_and_run_again("300 steps", *options)
    there = int(re.findall(r"(\d+) steps are on disk", printed)[0])
    assert 300 <= there <= 600
    assert "600 steps" in printed


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["dqn"])
def test_tianshou_goes_on_after_a_kill(algorithm: str, tmp_path: Path) -> None:
    options = ("train_tianshou.py", "--algorithm", algorithm, "--store", tmp_path / "store", "--steps", 600)
    printed = killed_and_run_again("400 steps", *options)
    there = int(re.findall(r"(\d+) steps are on disk", printed)[0])
    assert there >= (400 if algorithm == "dqn" else 1)
    assert "600 steps" in printed


@pytest.mark.nightly
def test_jax_learns_from_the_disk(tmp_path: Path) -> None:
    printed = run("train_jax.py", "--store", tmp_path / "store", "--steps", 1000, "--updates", 100)
    first, last = map(float, re.findall(r"loss ([\d.]+) at first, ([\d.]+) at last", printed)[0])
    assert last < first / 2
