"""The wheel, and the sdist it is built from, install in an empty environment and work there, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

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


@pytest.mark.nightly
def test_the_wheel_installs_and_works_away_from_the_checkout(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("which files belong to the project is known to git")
    checkout = tmp_path / "checkout"
    files = run("git", "ls-files", cwd=ROOT).splitlines()
    for file in files:
        if file.startswith(("diskbuffer/", "README", "LICENSE", "pyproject", "CHANGELOG", "setup.py", "MANIFEST.in")):
            (checkout / file).parent.mkdir(parents=True, exist_ok=True)
            (checkout / file).write_bytes((ROOT / file).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", checkout, cwd=tmp_path)
    (wheel,), (sdist,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")

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
