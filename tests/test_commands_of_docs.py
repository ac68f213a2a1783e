"""Every command `diskbuffer` that the README and the docs show, on what its page speaks of, twice in a row."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.commands.cli import main
from diskbuffer.formats import export
from diskbuffer.schema.nested import put
from tests.s3_server import S3Server

ROOT = Path(__file__).parent.parent
PLACEHOLDERS = {
    "FORMAT SOURCE STORE": "minari ~/.minari/datasets/mine/pictures-v0 runs/pictures",
    "PATH": "runs/pong",
    "STORE": "runs/robot",
    "NEW": "runs/new",
    "TO": "runs/copy",
    "NAME": "before",
    "s3://BUCKET/PATH": "s3://bucket/path",
}
ALONE = {"view": "runs until it is stopped", "plan": "plays a game for a minute"}


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page, in its order, without prompts and comments; of those in a sentence, such as name a path."""
    text, lines = page.read_text(), []
    for block, inline in re.findall(r"^```\n(.*?)^```|`(diskbuffer [a-z]+ [^`]+)`", text, re.DOTALL | re.MULTILINE):
        if block:
            lines += re.findall(r"^(?:\$ )?(diskbuffer [a-z].*?)(?: +# .*)?$", block, re.MULTILINE)
        elif re.search(r" \S*/\S| [A-Z]{2}", inline):
            lines.append(inline)
    return list(dict.fromkeys(lines))


PAGES = {
    page: commands_of(page) for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}


# What the pages speak of


def fill(path: Path, columns: Mapping[str, db.Column], frame_stack: int = 1, tags: bool = True) -> None:
    """Make a store of two environments with episodes of 250 steps and of 30, most of them with a return above 30."""
    random = np.random.default_rng(0)
    with db.ReplayBuffer(
        path, columns=columns, n_envs=2, autoreset="next_step", frame_stack=frame_stack, segment_rows=1024
    ) as buffer:
        for number, steps in enumerate((250, 30, 30)):
            rows: dict[str, Any] = {}
            for name, column in columns.items():
                values = random.normal(size=(steps + (name[:3] == "obs"), *column.shape)) * 50 % 200
                if len(column.shape) > 1:
                    values[:, 1:] = 0  # of a picture, all but the first line
                put(rows, name, values.astype(column.dtype))
            buffer.extend(**rows, reward=np.ones(steps), terminated=np.arange(steps) == steps - 1, env=number % 2)
        for number, tag in enumerate(("good", "bad", "dropped") if tags else ()):
            buffer.episodes[number : number + 1].set_tag(tag)
        buffer.episodes[:].set_values(success=[True, False, True])
        buffer.copies.mark("before")


def atari(path: Path) -> None:
    fill(path, {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}, 4)


def robot(path: Path) -> None:
    joints = db.Column((6,), "float32")
    fill(path, {"obs/camera": db.Column((32, 32, 3), "uint8"), "obs/joints": joints, "action": joints})


def colour(path: Path) -> None:
    fill(path, {"obs": db.Column((96, 96, 3), "uint8"), "action": db.Column((), "int64")}, tags=False)


def hand(path: Path) -> None:
    fill(path, {"obs": db.Column((39,), "float32"), "action": db.Column((28,), "float32")}, tags=False)


def exported(format: str, store: Callable[[Path], None] = hand, **options: Any) -> Callable[[Path], None]:
    """Return what makes a data set by exporting a store."""

    def make(path: Path) -> None:
        store(path.parent / "exported")
        export(format, path.parent / "exported", path, progress=False, **options)

    return make


def umi(path: Path) -> None:
    from tests.formats.test_naming import diffusion_policy

    directory = path.with_suffix("")
    diffusion_policy(directory, {}, False)
    shutil.make_archive(str(directory), "zip", directory)


def named(format: str, **extra: float) -> Callable[[Path], None]:
    from tests.formats import test_naming

    return lambda path: getattr(test_naming, format)(path, extra, False)


def of_hdf5(format: str, **options: Any) -> Callable[[Path], None]:
    from tests.formats import test_hdf5

    return lambda path: getattr(test_hdf5, format)(path, **options)


def drqv2(path: Path) -> None:
    path.mkdir()
    frames = np.random.default_rng(0).integers(0, 256, (31, 3, 16, 16), dtype=np.uint8)
    stacks = np.concatenate([frames[np.maximum(np.arange(31) - back, 0)] for back in (2, 1, 0)], axis=1)
    others: dict[str, Any] = {"action": np.zeros((31, 6), np.float32), "reward": np.ones((31, 1)), "discount": np.ones((31, 1))}
    np.savez(path / "20261123T000000_0_30.npz", observation=stacks, **others)


def pickled(path: Path) -> None:
    import gymnasium as gym
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.save_util import save_to_pkl

    box = gym.spaces.Box(-1, 1, (3,))
    buffer = ReplayBuffer(100, box, box)
    for step in range(50):
        buffer.add(np.full((1, 3), step), np.full((1, 3), step + 1), np.zeros((1, 3)), np.ones(1), np.array([step == 49]), [{}])
    save_to_pkl(path, buffer)


def rlds(path: Path) -> None:
    from tests.formats import episodes, test_rlds

    made = test_rlds.make(path.parent / "made", episodes.some(3, columns=test_rlds.COLUMNS), last_counts=True)
    made.rename(path)


MADE: dict[str, Callable[[Path], None]] = {
    "camera": atari,
    "runs/robot": robot,
    "runs/cup": robot,
    "runs/door": hand,
    "~/.minari/datasets/D4RL/door/human-v2": exported("minari", dataset_id="D4RL/door/human-v2"),
    "~/.minari/datasets/mine/pictures-v0": exported("minari", colour, dataset_id="mine/pictures-v0"),
    "~/.minari/datasets/D4RL/pen/human-v2": exported("minari", dataset_id="D4RL/pen/human-v2"),
    "lift/ph/image.hdf5": of_hdf5("robomimic"),
    "datasets/libero_spatial": of_hdf5("libero"),
    "PickCube-v1/trajectory.h5": of_hdf5("maniskill"),
    "antmaze-umaze-v2.hdf5": of_hdf5("d4rl", following=False),
    "logdir/replay": exported("dreamer"),
    "buffer": drqv2,
    "~/.ogbench/data/antmaze-large-navigate-v0.npz": named("ogbench"),
    "pusht_cchi_v7_replay.zarr": named("diffusion_policy", n_contacts=2.0),
    "example_demo_session/dataset.zarr.zip": umi,
    "checkpoint/replay_buffer": exported("tensordict"),
    "replay_buffer.pkl": pickled,
    "~/tensorflow_datasets/robo/1.0.0": rlds,
    "~/.cache/huggingface/lerobot/lerobot/pusht": exported("lerobot", allow_loss=["final_obs"], fps=10),
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    from moto.s3.models import s3_backends

    for backend in [backend for account in s3_backends.values() for backend in account.values()]:
        backend.reset()  # of what other servers of this process were given
    server = S3Server()
    for bucket in ("bucket", "experience"):
        urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/{bucket}", b"", method="PUT")).close()
    yield server
    server.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page, lines in PAGES.items() if lines])
def test_the_commands_of_a_page_do_what_it_says(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if any("s3://" in line for line in PAGES[page]):
        for name, value in request.getfixturevalue("server").environment().items():
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = [line for line in PAGES[page] if line.split()[1] not in ALONE]
    for again in (False, True):
        for line in lines:
            arguments = arguments_of(line)
            for word in arguments[1:]:
                if word not in new_in(line):
                    make_what_is_missing(word)
            if "67456" in arguments:  # an episode's id, as a table before had it
                with db.ReplayBuffer(arguments[1], mode="r") as buffer:
                    arguments[arguments.index("67456")] = str(int(buffer.episodes.id[0]))
            capsys.readouterr()
            code = main([os.path.expanduser(word) for word in arguments])
            told = "".join(capsys.readouterr())
            if again and code and new_in(line):  # nothing is overwritten
                assert re.search(r"already|exists|there is something|is not empty", told), f"{line}: {told}"
            else:
                assert (code == 0) == ("lenght" not in line), f"{line}: {told}"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line", sorted({line for lines in PAGES.values() for line in lines if line.split()[1] in ALONE}), ids=lambda line: line
)
def test_the_page_and_forecasts(line: str, tmp_path: Path) -> None:
    (tmp_path / "my_package.py").write_text("import gymnasium as gym\n\ndef make():\n    return gym.make('CartPole-v1')\n")
    atari(tmp_path / "runs/breakout")
    arguments = arguments_of(line)
    if arguments[0] == "view" and arguments[1] != "runs/breakout":
        (robot if "robot" in arguments[1] else atari)(tmp_path / arguments[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    command = [sys.executable, "-m", "diskbuffer", *arguments, *(("--seconds", "20") if arguments[0] == "plan" else ())]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if arguments[0] == "view":
            address = next(word for text in process.stdout for word in text.split() if word.startswith("http://127.0.0.1"))
            assert b"<title" in urllib.request.urlopen(address).read()
            process.send_signal(signal.SIGINT)
        else:
            assert "diskbuffer, on disk" in process.stdout.read()
    assert process.returncode == 0


def test_what_docs_tell_to_make_install_and_run_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    from soak.__main__ import CAMPAIGNS

    for page in PAGES:
        code = " ".join(re.findall(r"```\n.*?```|`[^`]+`", page.read_text(), re.DOTALL))
        assert set(re.findall(r"(?:^|[`\n])make ([a-z]+)", code)) <= targets, page
        for names in re.findall(r"pip install 'diskbuffer\[([^]]*)\]'", code):
            assert set(names.split(",")) <= set(extras), page
        for package, name in re.findall(r"python -m (bench|soak)\.(\w+)", code):
            assert (ROOT / package / f"{name}.py").is_file(), page
        for campaign in re.findall(r"python -m soak --only (\w+)", code):
            assert campaign in {*CAMPAIGNS, "CAMPAIGN"}, page
        for example in re.findall(r"python (examples/\w+\.py)", code):
            assert (ROOT / example).is_file(), page


def arguments_of(line: str) -> list[str]:
    """Return a command's arguments, with names in place of the words that stand for some."""
    for word, name in PLACEHOLDERS.items():
        line = re.sub(rf"(?<![\w/=.]){re.escape(word)}(?![\w/])", name, line)
    return shlex.split(line)[1:]


def new_in(line: str) -> list[str]:
    """Return what a command makes."""
    command, *words = arguments_of(line)
    places = [word for n, word in enumerate(words) if not word.startswith("--") and (n == 0 or not words[n - 1].startswith("--"))]
    return {"import": places[2:3], "export": places[2:3], "merge": places[-1:]}.get(
        command, places[1:2] if command in ("copy", "snapshot") else []
    )


def make_what_is_missing(word: str) -> None:
    """Make a store or a data set that a page takes for granted."""
    path = Path(word).expanduser()
    if (word in MADE or word.startswith("runs/")) and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        MADE.get(word, atari)(path)


def test_workflows_run_what_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {page.name: set(re.findall(r"run: make ([a-z]+)", page.read_text())) for page in ROOT.glob(".github/workflows/*.yml")}
    assert told == {"tests.yml": {"check", "test", "nightly", "sanitize", "newest"}, "docs.yml": {"docs"}, "wheels.yml": set()}
    assert all(names <= targets for names in told.values())
