"""The sdist has what the project has; it, and wheels that are built from it, install in empty environments and work there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import BytesParser
from pathlib import Path

import pytest

from tests.support.experience import Experience, Feeder

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
MADE = (
    "diskbuffer/native/old.so",
    "docs/_build/index.html",
    "bench/new.json",
    "bench/.cache/data",
    "soak/results.json",
    "soak/broken/store/zarr.json",
)
TRAIN = """
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from stable_baselines3 import DQN
from diskbuffer.adapters.sb3 import DiskReplayBuffer
assert files("diskbuffer.inspect.page").joinpath("static/uplot/uPlot.iife.min.js").is_file()
assert "diskbuffer.webp" in entry_points(group="zarr.codecs").names
buffer = {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": {"path": "runs/dqn"}}
model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10_000, device="cpu", **buffer).learn(1_000)
assert model.replay_buffer.size() == 1_000
"""
READ = """
import importlib, pkgutil, sys
import diskbuffer.native
from diskbuffer.plugin import Reader
for module in pkgutil.iter_modules(diskbuffer.native.__path__):
    importlib.import_module(f"diskbuffer.native.{module.name}")
reader = Reader("store")
episodes = reader.episodes()
assert "torch" not in sys.modules
print(len(episodes), int(episodes.length.sum()), float(reader.read("reward", episodes.episode).sum()))
"""


def run(*command: str | Path, cwd: Path) -> str:
    left_out = ("PYTHONPATH", "PYTHONPYCACHEPREFIX")  # the latter would keep gigabytes for an environment that goes
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | {"TMPDIR": str(cwd)}
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def interpreter(version: str) -> str | None:
    """Return a Python of a version: of the tests, on the path, or of pyenv."""
    if sys.version.startswith(f"{version}."):
        return sys.executable
    places = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    works = [str(place) for place in places if place and subprocess.run([place, "-c", ""], capture_output=True).returncode == 0]
    return works[0] if works else None


@pytest.fixture(scope="module")
def files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("which files belong to the project is known to git")
    return run("git", "ls-files", cwd=ROOT).splitlines()


@pytest.fixture(scope="module")
def sdist(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of a checkout that has what belongs to the project, and some of what is made there."""
    directory = tmp_path_factory.mktemp("sdist")
    for file in [*files, *MADE]:
        (directory / "checkout" / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / "checkout" / file).write_bytes(b"" if file in MADE else (ROOT / file).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", directory, "checkout", cwd=directory)
    (built,) = directory.glob("*.tar.gz")
    return built


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory for gigabytes: other tests have theirs in memory."""
    with tempfile.TemporaryDirectory(prefix="diskbuffer-", dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.mark.nightly
def test_the_sdist_has_all_files_of_the_project_and_no_others(files: list[str], sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        packed = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in packed if name.startswith("diskbuffer.egg-info/"))}
    assert packed - made == {file for file in files if file not in (".gitignore", ".ci/run")}


@pytest.mark.nightly
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_it_works_in_an_empty_environment_without_a_checkout(version: str, files: list[str], sdist: Path, on_disk: Path) -> None:
    """The last version gets the sdist, and the first the wheel that is built from it."""
    if (base := interpreter(version)) is None:
        pytest.skip(f"Python {version} is not there")
    run(base, "-m", "venv", "--without-pip", "user", cwd=on_disk)
    user = on_disk / "user" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", user / "python", "--disable-pip-version-check", "--quiet")
    pinned = ("--constraint", ROOT / "constraints.txt")
    package = sdist
    if version != VERSIONS[-1]:
        run(*pip, "wheel", "--no-deps", sdist, cwd=on_disk)
        (package,) = on_disk.glob("*.whl")
        check_contents(package, files)
    run(*pip, "install", "--no-compile", *pinned, f"{package}[sb3,cli]", cwd=on_disk)

    run(user / "python", "-P", ROOT / "tests" / "readme.py", cwd=on_disk)
    assert "2,000" in run(user / "diskbuffer", "info", "runs/cartpole", cwd=on_disk)
    run(user / "python", "-c", TRAIN, cwd=on_disk)
    with Experience(2).open(on_disk / "store", 300) as buffer:
        Feeder(Experience(2), buffer).add(60)
        rewards = float(buffer.at(buffer.episodes.id)["reward"].sum())
        found = [len(buffer.episodes), len(buffer), rewards]
    assert [float(word) for word in run(user / "python", "-c", READ, cwd=on_disk).split()] == pytest.approx(found)


def check_contents(wheel: Path, files: list[str]) -> None:
    """Assert that a wheel has the package, its native code, both licences, and a page whose links lead somewhere."""
    with zipfile.ZipFile(wheel) as inside:
        names = set(inside.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        page = BytesParser().parsebytes(inside.read(metadata))
    packed = {name for name in names if name.startswith("diskbuffer/")}
    own = {file for file in files if file.startswith("diskbuffer/")}
    sources = {file for file in own if file.endswith((".pyx", ".pxd", ".hpp", ".cpp"))}
    built = {name for name in packed if name.endswith(".so")}
    assert {name.partition(".")[0] for name in built} == {name.removesuffix(".pyx") for name in sources if name.endswith(".pyx")}
    assert packed - built == own - sources  # modules, py.typed, the page's files and its licences; nothing else
    licences = {"LICENSE", "diskbuffer/inspect/page/static/uplot/LICENSE"}
    assert licences == set(page.get_all("License-File", []))
    assert {f"{Path(metadata).parent}/licenses/{licence}" for licence in licences} <= names

    repository = dict(url.split(", ") for url in page.get_all("Project-URL", []))["Repository"]
    link_to = re.compile(r"(!?)\[[^]]*\]\(([^)]*)\)")
    here, body = (ROOT / "README.md").read_text(), page.get_payload(decode=True)
    assert isinstance(body, bytes)
    shown = body.decode()
    assert [link for _, link in link_to.findall(shown)] == [
        link if "://" in link else f"{repository}/{'raw' if picture else 'blob'}/v{page['Version']}/{link}"
        for picture, link in link_to.findall(here)
    ]
    assert link_to.split(here)[::3] == link_to.split(shown)[::3]  # all else


def test_one_file_has_the_address_of_the_repository(files: list[str]) -> None:
    (owner,) = re.findall(r'^OWNER = "([\w-]+)"', (ROOT / "setup.py").read_text(), re.MULTILINE)
    address = re.compile(rf"github\.com[/:]{owner}\b|\b{owner}\.github\.io".encode())
    assert [file for file in files if address.search((ROOT / file).read_bytes())] == []  # setup.py makes it of OWNER


def test_all_places_list_the_same_versions_of_python() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tests = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    python = "Programming Language :: Python :: "
    assert settings["tool"]["cibuildwheel"]["build"] == [f"cp{version.replace('.', '')}-*" for version in VERSIONS]
    assert [each.removeprefix(python) for each in settings["project"]["classifiers"] if each.startswith(python)] == list(VERSIONS)
    assert [re.findall(r'"([\d.]+)"', row) for row in re.findall(r"python: (\[.*\])", tests)] == [list(VERSIONS)]
    assert sorted(re.findall(r"^ +(3\.\d+)$", tests, re.MULTILINE)) == list(VERSIONS)
