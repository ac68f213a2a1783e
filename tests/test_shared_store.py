"""Buffers that libraries hold: opened for reading, and for writing by who writes first, whatever other threads are at."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import diskbuffer as db
from diskbuffer.plugin import SharedStore
from tests.support.experience import Experience, Feeder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    world = Experience(1)
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(200)
    return tmp_path / "store"


def test_threads_that_read_go_on_while_it_is_opened_for_writing(path: Path) -> None:
    for _ in range(10):
        late, stop, failed = SharedStore(path), threading.Event(), list[BaseException]()

        def read(late: SharedStore = late, stop: threading.Event = stop, failed: list[BaseException] = failed) -> None:
            try:
                while not stop.is_set():
                    opened = late.open_to_read()
                    assert opened is not None
                    assert opened.sample(16)["reward"].shape == (16,)
            except BaseException as error:  # noqa: BLE001  for the test to tell
                failed.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        opened = [late.open_to_write() for _ in range(3)]
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert all(one is late.buffer for one in opened)
        assert late.writes
        late.close()


ENDING = """
import sys
import numpy as np
import diskbuffer as db
from diskbuffer.plugin import SharedStore

late = SharedStore(sys.argv[1])
opened = late.open_to_write(columns={"obs": db.Column((3,))})
opened.extend(obs=np.zeros((6, 3), np.float32), reward=np.zeros(5, np.float32))
"""


@pytest.mark.nightly
def test_a_program_that_just_ends_has_closed_it(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", ENDING, str(tmp_path / "store")], capture_output=True, text=True, check=True)
    assert not ran.stderr
    state = json.loads((tmp_path / "store" / "_segments" / "length" / "state.json").read_text())
    assert state["clean"]


@pytest.mark.nightly
def test_a_program_whose_store_is_gone_says_so_in_a_line(tmp_path: Path) -> None:
    gone = ENDING + "import shutil\nshutil.rmtree(sys.argv[1])\n"
    ran = subprocess.run([sys.executable, "-c", gone, str(tmp_path / "store")], capture_output=True, text=True, check=True)
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert str(tmp_path / "store") in ran.stderr


def test_where_another_writes_what_is_open_for_reading_stays_so(path: Path) -> None:
    late = SharedStore(path)
    before = late.open_to_read()
    with db.ReplayBuffer(path), pytest.raises(db.LockedError):
        late.open_to_write()
    assert late.open_to_read() is before
    assert before is not None
    assert len(before.sample(4)["reward"]) == 4
    copied = pickle.loads(pickle.dumps(late))
    assert copied.open_to_write() is copied.buffer
    copied.close()
    late.close()
