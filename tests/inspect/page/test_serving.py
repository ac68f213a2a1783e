"""The command: where it listens, what it prints, how it ends."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from diskbuffer.commands.app import run
from diskbuffer.errors import InputError
from diskbuffer.inspect.page.serving import FIRST_PORT, bind
from tests.inspect.stores import make_store
from tests.support.specimens import contents


def test_the_first_free_port_is_taken_and_a_given_one_is_not_replaced() -> None:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(contextlib.closing(bind(None))).getsockname()[1] for _ in range(3)]
        assert len(set(found)) == 3
        assert all(FIRST_PORT <= port < FIRST_PORT + 40 for port in found)
        with pytest.raises(InputError, match=r"in use.*--port"):
            bind(found[0])
    for wrong in (-1, 65536):
        with pytest.raises(InputError, match="port, 0 for any free one, must be"):
            bind(wrong)


def test_what_cannot_be_shown_is_told_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", str(tmp_path / "nothing"), "--no-browser"]) == 2
    assert "there is no store" in capsys.readouterr().err
    store = make_store(tmp_path / "store", (5,))
    with contextlib.closing(bind(0)) as taken:
        assert run(["view", str(store), "--no-browser", "--port", str(taken.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err


def test_a_real_socket_from_the_first_line_to_ctrl_c(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", (5, 6))
    before = contents(store)
    command = [sys.executable, "-m", "diskbuffer", "view", str(store), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        parts = urlsplit(next(word for word in lines[0].split() if word.startswith("http://")))
        assert f"ssh -L {parts.port}:127.0.0.1:{parts.port} " in lines[1]
        assert f"@{socket.gethostname()}" in lines[1]

        def ask(path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", path, headers=headers)
                return connection.getresponse().status

        assert ask(parts.path) == ask(f"{parts.path}api/state") == 200
        assert ask(parts.path, Host="evil.example") == 403
        assert ask("/") == ask("/api/state") == 404
        for outside in (
            "../../../../../etc/passwd",
            "static/../../app.py",
            "static/%2e%2e/app.py",
        ):  # http.client sends them as they are
            assert ask(f"{parts.path}{outside}") == 404
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert contents(store) == before


@pytest.mark.nightly
def test_neither_torch_nor_numba_is_loaded_for_the_first_page() -> None:
    program = "import sys, diskbuffer.inspect.page.serving; print({'torch', 'numba', 'zarr'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
