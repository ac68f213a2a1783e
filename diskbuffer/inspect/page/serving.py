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
from collections.abc import Callable

import uvicorn

from diskbuffer.errors import InputError
from diskbuffer.inspect.page.app import create_app
from diskbuffer.inspect.page.guard import LOOPBACK
from diskbuffer.inspect.page.watched import Watched
from diskbuffer.plugin import Reader, integer_or_none, local_path

FIRST_PORT, _PORTS = 8460, 40
_LETTERS, _LETTERS_OF_PREFIX = "abcdefghjkmnpqrstuvwxyz23456789", 10  # 49 bits; none that looks like another


def bind(host: str, port: int | None) -> socket.socket:
    """Listen on loopback: on a port, or on the first free one from 8460 on.

    Raises
    ------
    InputError
        The host is not loopback, or the port is taken.
    """
    if host not in LOOPBACK:
        raise InputError(
            f"host must be one of {', '.join(LOOPBACK)}, found {host!r}: the page has no password. To see it from another "
            "machine, use ssh -L, as is printed when it starts"
        )
    port = integer_or_none("port, 0 for any free one,", port, 0, 65535)
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    for tried in range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, tried))
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise InputError(f"cannot listen on {host}, port {tried}: {error.strerror}") from error
            continue
        listening.listen(128)
        return listening
    which = f"port {port} is" if port is not None else f"the ports {FIRST_PORT} to {FIRST_PORT + _PORTS - 1} are"
    raise InputError(f"{which} in use; give another with --port, or --port 0 for a free one")


def serve(
    path: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    browser: bool = True,
    say: Callable[[str], object] = print,
) -> None:
    """Serve the page of a store until Ctrl-C.

    Parameters
    ----------
    path : path-like
        A store.
    host : str
        A name or address of loopback; nothing else is served.
    port : int, optional
        The first free one from 8460 on where it is missing, and any free one for 0.
    browser : bool
        Whether a browser is opened, where there is a display.
    say : callable
        Where the address is printed.

    Raises
    ------
    NotAStoreError, CorruptionError, FormatError
        There is no store that can be looked at.
    InputError
        Host or port cannot be had.
    """
    reader = Reader(local_path(path), tolerate_damage=True)
    with contextlib.closing(bind(host, port)) as listening:
        prefix = "/" + "".join(secrets.choice(_LETTERS) for _ in range(_LETTERS_OF_PREFIX))
        found, shown = listening.getsockname()[1], f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{found}{prefix}/"
        app = create_app(Watched(local_path(path), reader), prefix)
        say(f"{reader.path} is shown at  {address}")
        tunnel = f"ssh -L {found}:{shown}:{found} {_user()}@{socket.gethostname()}"
        say(f"From another machine:  {tunnel}  and open the same address there.")
        say("Ctrl-C ends it.")
        sys.stdout.flush()
        if browser and _has_display():
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="warning", access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=2
            )
        )
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "USER"


def _has_display() -> bool:
    """Tell whether a browser can open a window here: over ssh it would be one for terminals, in place of this command."""
    if any(name in os.environ for name in ("SSH_CONNECTION", "SSH_TTY")):
        return False
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
