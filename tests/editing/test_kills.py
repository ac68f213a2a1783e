"""A SIGKILL in the middle of an edit: the same call finishes it, nothing is there twice, and nothing half-made is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer import editing
from tests.editing import stores
from tests.formats.interrupted import killed

CODE = """
import sys
from diskbuffer import editing
from diskbuffer import ReplayBuffer
from diskbuffer.formats import rows
rows.BLOCK = 20_000
told = ReplayBuffer.extend
def slow(self, *given, **named):
    told(self, *given, **named)
    print("added", flush=True)
    sys.stdin.readline()
ReplayBuffer.extend = slow
{call}
"""
CALLS = {
    "copy": "editing.copy({one!r}, {new!r}, where='length > 0', progress=False)",
    "merge": "editing.merge([{one!r}, {two!r}], {new!r}, progress=False)",
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", CALLS)
def test_what_was_killed_is_finished_by_the_same_call(what: str, tmp_path: Path) -> None:
    options = {"columns": stores.COLUMNS["dict"], "frame_stack": 3, "padding": "first", "environment": None, "metadata": None}
    for name, seed in (("one", 21), ("two", 22)):
        made = stores.make(tmp_path / name, seed, capacity=None, n_envs=2, **options)
        with db.ReplayBuffer(made.path, autoreset="disabled") as buffer:
            random = np.random.default_rng(seed)
            for n in range(12):
                stores.add_episode(buffer, 25, random, "truncated", n % 2)
            buffer.episodes[-3:].set_tag("late")
            for column in ("priority", "advantage"):
                if column in buffer.columns.derived:
                    buffer.columns.remove(column)
            buffer.columns.write("value", buffer.steps(), random.normal(size=len(buffer)))
    places = {"one": str(tmp_path / "one"), "two": str(tmp_path / "two")}
    exec(CALLS[what].format(**places, new=str(tmp_path / "whole")), {"editing": editing})
    code = CODE.format(call=CALLS[what].format(**places, new=str(tmp_path / "new")))
    for after in (8, 14):
        killed(code, after, said="added")
        assert not (tmp_path / "new").exists()
        assert (tmp_path / ".new.unfinished").is_dir()
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    stores.assert_same(stores.episodes(tmp_path / "new"), stores.episodes(tmp_path / "whole"))
    assert db.check(tmp_path / "new", progress=False).ok
    assert not list(tmp_path.glob(".*"))
