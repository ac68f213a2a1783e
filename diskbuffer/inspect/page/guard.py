"""Who may ask: only pages that this server sent, and people who follow a link to it or type its address.

A server on loopback can be reached by every page that is open in the same browser. A page of another origin must not read what
is here (DNS rebinding: its own name, pointed at 127.0.0.1, is in ``Host``), nor embed it (``Sec-Fetch-Site``, ``Origin``).
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.IGNORECASE)  # any port: ``ssh -L`` may give another one
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Pass on only requests that come from this server's own page, or from nobody's; an ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 or 405 to what may not ask; add the headers that keep other pages out to every answer."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = refuse(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        answer = self._app if refusal is None else PlainTextResponse(f"{refusal[1]}\n", refusal[0])
        await answer(scope, receive, send_guarded)


def refuse(method: str, headers: Headers) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused; None where it may pass."""
    if method not in ("GET", "HEAD"):
        return 405, f"this server only shows a store: expected GET, found {method}"
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not _LOOPBACK.fullmatch(hosts[0]):
        return 403, f"expected localhost or 127.0.0.1 in Host, found {hosts}; open the address that was printed"
    if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
        return 403, f"another page may not ask: its origin is {', '.join(origins)}"
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    followed = mode == "navigate" and headers.get("sec-fetch-dest") == "document"  # a link; its page sees nothing of the answer
    if site not in ("same-origin", "none") and not followed:
        return 403, f"another page may not ask: Sec-Fetch-Site is {site}"
    return None
