"""The page's server: its own files, feeds of JSON, frames. Every answer is of one store, and nothing is written."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from diskbuffer.errors import NOT_OF_ARGUMENTS, DiskBufferError, EvictedError, InputError, MissingPackageError
from diskbuffer.inspect.page import feeds
from diskbuffer.inspect.page.guard import Guard
from diskbuffer.inspect.page.watched import NotThereError, Watched

Values = Mapping[str, str]
_MOST = 2**62  # of numbers that are asked for: products of them fit int64, or are refused
# The status for each kind of error; the first that fits. All else is 500, and still says what is wrong.
_STATUS = (
    *((MissingPackageError, 501), (NOT_OF_ARGUMENTS, 500), (InputError, 400)),
    *((EvictedError, 410), (NotThereError, 503)),
)


class Page:
    """What a store's page asks for."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._heavy = threading.Lock()  # one at a time: each takes all cores, or much memory
        self.feeds: dict[str, Callable[[Values], dict[str, Any]]] = {
            "state": self._state,
            "overview": lambda _: feeds.overview(watched.last.seen()),
            "timeline": lambda query: feeds.timeline(watched.last.seen(), query.get("where", "")),
            "episodes": self._episodes,
            "episode": lambda query: feeds.episode(
                watched.last.seen(), step=_int(query, "step"), id=_int(query, "id"), by=_int(query, "by") or 0
            ),
            "findings": self._findings,
        }

    def _state(self, _: Values) -> dict[str, Any]:
        """Return what changes: this is asked for every second."""
        state, path = self._watched.look(), self._watched.path
        fields = {
            "name": path.name,
            "path": str(path),
            "token": state.token,
            "version": state.version,
            "time": self._watched.looked,
        }
        if (reader := state.reader) is None:
            return fields | {"here": False, "message": state.message}
        steps, added = (int(counts.sum()) for counts in reader.counts())
        return fields | {"here": True, "steps": steps, "added": added, "writer": reader.writer}

    def _episodes(self, query: Values) -> dict[str, Any]:
        return feeds.table(
            self._watched.last.seen(),
            self._watched.path,
            query.get("where", ""),
            query.get("sort", "ended"),
            descending=query.get("descending") == "true",
            offset=_int(query, "offset") or 0,
            limit=_int(query, "limit") or 50,
        )

    def _findings(self, _: Values) -> dict[str, Any]:
        reader = self._watched.last.seen()
        with self._heavy:
            return feeds.findings(reader)

    def frame(self, query: Values) -> Response:
        """Return the picture of a step; it is the same for good, within one token."""
        of, state = query.get("of"), self._watched.last
        if of not in (None, state.token) and of != (state := self._watched.look()).token:
            raise NotThereError(state.message or "another store is at the path by now")
        column, step = query.get("column", "obs"), _int(query, "step") or 0
        picture = feeds.frame(state.seen(), column, step, stacked=bool(query.get("stack")))
        cache = "no-store" if of is None else "private, max-age=86400, immutable"
        return Response(picture, media_type="image/png", headers={"Cache-Control": cache})

    def answer(self, make: Callable[[Values], Response]) -> Callable[[Request], Response]:
        """Return what answers a request, also where it fails: because the store is gone by now, or another one, or why else."""

        def answer(request: Request) -> Response:
            before = request.query_params.get("of") or self._watched.last.token
            try:
                return make(request.query_params)
            except (DiskBufferError, OSError) as error:
                if status(error) in (410, 500) and (now := self._watched.look(at_once=True)).token != before:
                    error = NotThereError(now.message or "another store is at the path by now")
                return _json({"message": str(error)}, status(error))

        return answer


def create_app(watched: Watched, prefix: str = "") -> Starlette:
    """Make the application of a store's page.

    Parameters
    ----------
    watched : Watched
    prefix : str
        Before all paths, such as "/k3x9": what is not below it is not found.
    """
    page, static = Page(watched), StaticFiles(packages=[("diskbuffer.inspect.page", "static")])

    async def index(request: Request) -> Response:
        return await static.get_response("index.html", request.scope)

    def feed(make: Callable[[Values], dict[str, Any]]) -> Callable[[Request], Response]:
        return page.answer(lambda query: _json(make(query)))

    routes = [
        Route("/", index),
        Route("/frame.png", page.answer(page.frame)),
        *(Route(f"/api/{name}", feed(make)) for name, make in page.feeds.items()),
        Mount("/static", static),
    ]
    below: list[Any] = [Mount(prefix, routes=routes), Route("/{path:path}", _nothing)] if prefix else routes
    return Starlette(routes=below, middleware=[Middleware(Guard), Middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)])


def _nothing(_: Request) -> Response:
    return PlainTextResponse("There is nothing here. Open the address that `diskbuffer view` printed, all of it.\n", 404)


def status(error: Exception) -> int:
    """Return the status of HTTP for an error."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def _json(values: Mapping[str, Any], code: int = 200) -> Response:
    body = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return Response(body, code, media_type="application/json", headers={"Cache-Control": "no-store"})


def _int(query: Values, name: str) -> int | None:
    try:
        number = int(query[name]) if query.get(name) else None
    except ValueError:
        number = _MOST + 1
    if number is not None and abs(number) > _MOST:
        raise InputError(f"{name} must be an integer of 62 bits, found {query[name][:100]!r}")
    return number
