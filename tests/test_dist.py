"""The wheel, and the sdist it is built from, install in an empty environment and work there, away from the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

from tests.support.experience import Experience, Feeder

ROOT = Path(__file__).parents[1]
USE = """
import diskbuffer as db, numpy as np, sys
from importlib.metadata import entry_points
from importlib.resources import files
assert files("diskbuffer.inspect.page").joinpath("static/uplot/uPlot.iife.min.js").is_file()
assert db.__file__.startswith(sys.prefix), db.__file__
assert "diskbuffer.webp" in entry_points(group="zarr.codecs").names
with db.ReplayBuffer("store", columns={"obs": db.Column((3,), "float32")}) as buffer:
    buffer.extend(obs=np.zeros((11, 3), np.float32), reward=np.ones(10))
    assert buffer.sample(4)["obs"].shape == (4, 3)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


READ = """
import importlib, pkgutil, sys
import diskbuffer.native
from diskbuffer.plugin import Reader
assert diskbuffer.native.__file__.startswith(sys.prefix), diskbuffer.native.__file__
for module in pkgutil.iter_modules(diskbuffer.native.__path__):
    importlib.import_module(f"diskbuffer.native.{module.name}")
reader = Reader("store")
episodes = reader.episodes()
print(len(episodes), int(episodes.length.sum()), float(reader.read("reward", episodes.episode).sum()))
"""
BUILD = ("build", "setuptools", "Cython", "numpy")
DEPENDENCIES = ("numpy", "zarr", "numcodecs", "google-crc32c")  # but for PyTorch, which reading does without


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


def build(python: str | Path, files: list[str], directory: Path) -> tuple[Path, Path]:
    """Build the sdist from nothing but what belongs to the project, and the wheel from it; return both."""
    checkout = directory / "checkout"
    for file in files:
        if file.startswith(("diskbuffer/", "README", "LICENSE", "pyproject", "CHANGELOG", "setup.py", "MANIFEST.in")):
            (checkout / file).parent.mkdir(parents=True, exist_ok=True)
            (checkout / file).write_bytes((ROOT / file).read_bytes())
    run(python, "-m", "build", "--no-isolation", "--outdir", directory / "dist", checkout, cwd=directory)
    (wheel,), (sdist,) = (directory / "dist").glob("*.whl"), (directory / "dist").glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.nightly
def test_the_wheel_installs_and_works_away_from_the_checkout(files: list[str], tmp_path: Path) -> None:
    wheel, sdist = build(sys.executable, files, tmp_path)
    with zipfile.ZipFile(wheel) as inside:
        packed = {name for name in inside.namelist() if name.startswith("diskbuffer/")}
    own = {file for file in files if file.startswith("diskbuffer/")}
    sources = {file for file in own if file.endswith((".pyx", ".pxd", ".hpp", ".cpp"))}
    built = {name for name in packed if name.endswith(".so")}
    assert {name.partition(".")[0] for name in built} == {name.removesuffix(".pyx") for name in sources if name.endswith(".pyx")}
    assert packed - built == own - sources  # modules, py.typed, the page's files and its licences; nothing else
    with tarfile.open(sdist) as tar:
        assert own <= {name.partition("/")[2] for name in tar.getnames()}

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "dependencies.pth").write_text(str(Path(numpy.__file__).parents[1]))  # those of the tests; ours comes first
    run(python, "-c", USE, cwd=tmp_path)
    assert "store" in run(tmp_path / "venv" / "bin" / "diskbuffer", "info", "store", cwd=tmp_path)


@pytest.mark.nightly
@pytest.mark.limit(400)
@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_a_wheel_for_another_python_reads_stores_in_an_empty_environment(
    version: str, files: list[str], tmp_path: Path, experience: type[Experience]
) -> None:
    if (python := interpreter(version)) is None:
        pytest.skip(f"Python {version} is not there")
    if python == sys.executable:
        pytest.skip("that of the tests: see above")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    for name, packages in (("builder", BUILD), ("user", DEPENDENCIES)):
        run(python, "-m", "venv", name, cwd=tmp_path)
        run(tmp_path / name / "bin" / "python", *pip, *packages, cwd=tmp_path)
    wheel, _ = build(tmp_path / "builder" / "bin" / "python", files, tmp_path)
    user = tmp_path / "user" / "bin" / "python"
    run(user, *pip, "--no-deps", wheel, cwd=tmp_path)
    with experience(2).open(tmp_path / "store", 300) as buffer:
        Feeder(experience(2), buffer).add(60)
        rewards = float(buffer.at(buffer.episodes.id)["reward"].sum())
        found = [len(buffer.episodes), len(buffer), rewards]
    assert [float(word) for word in run(user, "-c", READ, cwd=tmp_path).split()] == pytest.approx(found)
