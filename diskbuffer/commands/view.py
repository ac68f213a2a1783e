"""``diskbuffer view``: a store's page in a browser."""

from __future__ import annotations

from diskbuffer.commands.arguments import AnyStore, Whole
from diskbuffer.commands.output import WELL, telling_damage


@telling_damage
def view(path: AnyStore, /, *, port: Whole | None = None, no_browser: bool = False) -> int:
    """Show a store in a browser, also while a training writes to it; Ctrl-C ends it.

    The page is served on this machine alone. To see it from another one, use the line with ssh -L that is printed.

    Parameters
    ----------
    port
        Where to listen; 0 for any free port. The first free one from 8460 on where it is not given.
    no_browser
        Do not open a browser.
    """
    from diskbuffer.plugin import require

    for module in ("starlette", "uvicorn"):
        require(module, module, "cli", "to serve a page")
    from diskbuffer.inspect.page.serving import serve

    serve(path, port, browser=not no_browser)
    return WELL
