"""Where compiled code is kept: anywhere that numba can write to, or nowhere, and never where somebody else can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diskbuffer.native import libraries

PROGRAM = """
import ctypes, os, sys, warnings
from numba.core import caching

def refuse(self):
    raise PermissionError("read-only")

for name in sys.argv[1].split():
    getattr(caching, name).ensure_cache_path = refuse
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from diskbuffer.recording.equality import all_zero, same_values
    place = (ctypes.c_char * 16)()
    assert all_zero(ctypes.addressof(place), 16, 0)
import numba
assert not numba.config.CACHE_DIR or numba.config.CACHE_DIR == os.environ.get("NUMBA_CACHE_DIR")
for warning in told:
    if "numba" in str(warning.message):
        print("told:", warning.message)
for function in (all_zero, same_values):
    print("kept:", getattr(function.stats, "cache_path", None))
"""
NOWHERE = "InTreeCacheLocator UserWideCacheLocator"


def run(locators: str, temporary: Path, **environment: str) -> tuple[list[str], list[str]]:
    """Compile functions where numba's places cannot be written to; return what was told, and where compiled code is kept."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, locators],
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    told, kept = ([line[6:] for line in lines if line.startswith(what)] for what in ("told: ", "kept: "))
    assert len(kept) == 2
    return told, kept


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir(mode=0o700)
    return tmp_path / "temporary"


def test_where_numba_finds_no_place_compiled_code_is_kept_in_a_temporary_directory(temporary: Path) -> None:
    told, kept = run(NOWHERE, temporary)
    assert len(told) == 1
    assert "NUMBA_CACHE_DIR" in told[0]
    assert all(path.startswith(str(temporary)) for path in kept)
    (own,) = temporary.glob("diskbuffer-numba-*")
    assert own.stat().st_mode & 0o777 == 0o700
    assert list(own.rglob("*.nbc"))


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["writable by all", "a link", "in a directory of all"])
def test_a_directory_that_others_can_write_to_is_not_used(how: str, tmp_path: Path, temporary: Path) -> None:
    planted = temporary / f"diskbuffer-numba-{os.getuid()}"
    if how == "writable by all":
        planted.mkdir()
        planted.chmod(0o777)
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir()
        planted.symlink_to(tmp_path / "elsewhere")
    else:
        temporary.chmod(0o777)
    told, kept = run(NOWHERE, temporary)
    assert len(told) == 1
    assert kept == ["None", "None"]
    assert not list(tmp_path.rglob("*.nb?"))


@pytest.mark.some(1)
@pytest.mark.parametrize("unwritable", ["InTreeCacheLocator", "UserWideCacheLocator"])
def test_one_place_that_can_be_written_to_is_enough(unwritable: str, tmp_path: Path, temporary: Path) -> None:
    told, kept = run(unwritable, temporary, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert told == []
    assert all(str(tmp_path / "cache") in path for path in kept) == (unwritable == "InTreeCacheLocator")
    assert not list(temporary.glob("diskbuffer-numba-*"))


@pytest.mark.parametrize("module", ["numcodecs.blosc", "numcodecs.is_not_installed"])
def test_a_c_function_that_is_missing_is_told_with_what_to_install(module: str) -> None:
    with pytest.raises(ImportError, match=rf"no_such_function inside {module}.*pip install .* numcodecs$"):
        libraries._external(module, "no_such_function", None)


USES = """
import numpy as np, sys, tempfile
import diskbuffer as db
columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
with db.ReplayBuffer(sys.argv[1], 1000, columns=columns, frame_stack=4) as b:
    frame = np.zeros((84, 84), np.uint8)
    for step in range(100):
        b.add(frame, step, 1.0, frame, False, step % 10 == 9)
    for sampler in (None, db.Uniform(n_step=2), db.Slices(4), db.Prioritized(), db.Uniform(replace=False)):
        b.sample(16, sampler)
        next(iter(b.loader(16, sampler)))
    b.returns_and_advantages(values=None)
print("used")
"""


ONE = """
import ctypes
from diskbuffer.recording.equality import all_zero
place = (ctypes.c_char * 16)()
print(all_zero(ctypes.addressof(place), 16, 0), all_zero(ctypes.addressof(place), 8, 0))
"""


@pytest.mark.nightly
def test_compiling_is_told_once(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> tuple[str, str]:
        ran = subprocess.run(
            [sys.executable, "-c", ONE], capture_output=True, text=True, env=environment, timeout=300, check=True
        )
        return ran.stdout, ran.stderr

    told, errors = run()
    assert told == "True True\n"
    assert errors.count("diskbuffer: compiling for this machine") == len(errors.splitlines()) == 1
    assert run() == (told, "")


@pytest.mark.nightly
def test_all_of_it_is_told_once_and_can_be_done_beforehand(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run(*arguments: str) -> tuple[str, str]:
        ran = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=600, check=True
        )
        return ran.stdout, ran.stderr

    told, errors = run("-m", "diskbuffer", "warmup")
    assert told.startswith("ready, after")
    assert errors.count("diskbuffer: compiling for this machine") == len(errors.splitlines()) == 1
    assert run("-c", USES, str(tmp_path / "store")) == ("used\n", "")
