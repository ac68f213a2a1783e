"""Who may ask: only pages that this server sent, and people who follow a link to it or type its address.

A server on loopback can be reached by every page that is open in the same browser. A page of another origin must not read what
is here (DNS rebinding: its own name, pointed at 127.0.0.1, is in ``Host``), nor embed it (``Sec-Fetch-Site``, ``Origin``).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Let only requests through that come from this server's own page, or from nobody's; an ASGI middleware.

    Any port is right in ``Host``: ``ssh -L`` may give another one. So is any of the names that loopback has.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 or 405 to what may not ask; add the headers that keep other pages out to every answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets, of which there are none here
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = refuse(scope["method"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send_guarded)
        else:
            status, why = refusal
            await PlainTextResponse(f"{why}\n", status)(scope, receive, send_guarded)


def refuse(method: str, headers: Headers) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused; None where it may pass."""
    if method not in METHODS:
        return 405, f"this server only shows a store: expected GET, found {method}"
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(hosts[0]):
        found = ", ".join(hosts) or "none"
        return 403, f"expected localhost or 127.0.0.1 in Host, found {found}; open the address that was printed"
    for origin in headers.getlist("origin"):
        if not _is_ours(origin, hosts[0]):
            return 403, f"another page may not ask: its origin is {origin}"
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    followed = mode == "navigate" and headers.get("sec-fetch-dest") == "document"  # a link; its page sees nothing of the answer
    if site not in ("same-origin", "none") and not followed:
        return 403, f"another page may not ask: Sec-Fetch-Site is {site}"
    return None


def is_loopback(host: str) -> bool:
    """Tell whether a ``Host`` header, or an authority, is loopback, with any port or none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # a ValueError where it is no number
    except ValueError:
        return False
    alone = parts.netloc == host and not parts.username and parts.password is None
    return alone and parts.hostname in LOOPBACK


def _is_ours(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() and not parts.path
