"""Serving a store's page on loopback, until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import secrets
import socket
import sys
import threading
import webbrowser
from typing import Any

import uvicorn

from diskbuffer.errors import InputError
from diskbuffer.inspect.page.app import create_app
from diskbuffer.inspect.page.watched import Watched
from diskbuffer.plugin import Reader, integer_or_none, local_path, printable

FIRST_PORT, _PORTS = 8460, 40
_LOOPBACK = "127.0.0.1"  # and nothing else: the page has no password
_LETTERS, _LETTERS_OF_PREFIX = "abcdefghjkmnpqrstuvwxyz23456789", 10  # 49 bits; none that looks like another


def bind(port: int | None) -> socket.socket:
    """Listen on loopback: on a port, or on the first free one from 8460 on; an InputError where it is taken."""
    port = integer_or_none("port, 0 for any free one,", port, 0, 65535)
    for tried in range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,):
        try:
            return socket.create_server((_LOOPBACK, tried), backlog=128)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise InputError(f"cannot listen on {_LOOPBACK}, port {tried}: {error.strerror}") from error
    which = f"port {port} is" if port is not None else f"the ports {FIRST_PORT} to {FIRST_PORT + _PORTS - 1} are"
    raise InputError(f"{which} in use; give another with --port, or --port 0 for a free one")


def serve(path: str | os.PathLike[str], port: int | None = None, *, browser: bool = True) -> None:
    """Serve the page of a store until Ctrl-C, and print its address.

    Parameters
    ----------
    path : path-like
        A store.
    port : int, optional
        The first free one from 8460 on where it is missing, and any free one for 0.
    browser : bool
        Whether a browser is opened, where there is a display.

    Raises
    ------
    NotAStoreError, CorruptionError, FormatError
        There is no store that can be looked at.
    InputError
        The port cannot be had.
    """
    path = local_path(path)
    watched = Watched(path, Reader(path))
    with contextlib.closing(bind(port)) as listening:
        prefix = "/" + "".join(secrets.choice(_LETTERS) for _ in range(_LETTERS_OF_PREFIX))
        port = listening.getsockname()[1]
        address = f"http://{_LOOPBACK}:{port}{prefix}/"
        print(f"{printable(str(path.resolve()))} is shown at  {address}")
        tunnel = f"ssh -L {port}:{_LOOPBACK}:{port} {_user()}@{socket.gethostname()}"
        print(f"From another machine:  {tunnel}  and open the same address there.")
        print("Ctrl-C ends it.", flush=True)
        if browser and _has_display():
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        options: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "lifespan": "off"}
        config = uvicorn.Config(create_app(watched, prefix), timeout_graceful_shutdown=2, **options)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "USER"


def _has_display() -> bool:
    """Return whether a browser can open a window here: over ssh it would be one for terminals, in place of this command."""
    if any(name in os.environ for name in ("SSH_CONNECTION", "SSH_TTY")):
        return False
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
