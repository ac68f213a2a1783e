"""``diskbuffer view``: a store's page in a browser."""

from __future__ import annotations

from pathlib import Path


def view(path: Path, *, port: int | None = None, host: str = "127.0.0.1", browser: bool = True) -> int:
    """Show a store in a browser, also while a training writes to it; Ctrl-C ends it.

    Parameters
    ----------
    path
        The directory of the store.
    port
        Where to listen; the first free port from 8460 on where it is not given.
    host
        127.0.0.1, ::1 or localhost. To see the page from elsewhere, use the line with ssh -L that is printed.
    browser
        Whether to open a browser, where there is a display.
    """
    from diskbuffer.inspect.page.serving import serve

    serve(path, host, port, browser=browser)
    return 0
