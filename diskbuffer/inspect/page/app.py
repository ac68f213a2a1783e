"""The page's server: its own files, feeds of JSON, frames. Every answer is of one store, and nothing is written."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from diskbuffer.errors import NOT_OF_ARGUMENTS, DiskBufferError, EvictedError, InputError, MissingPackageError
from diskbuffer.inspect.page import health, table
from diskbuffer.inspect.page.episode import describe_episode, find_episode
from diskbuffer.inspect.page.guard import Guard
from diskbuffer.inspect.page.overview import overview
from diskbuffer.inspect.page.picture import frame
from diskbuffer.inspect.page.static_files import static_files
from diskbuffer.inspect.page.watched import NotThereError, Watched

Values = Mapping[str, str]
_MOST = 2**62  # of numbers that are asked for: products of them fit int64, or are refused
# The status for each kind of error; the first that fits. All else is 500, and still says what is wrong.
_STATUS = (
    *((MissingPackageError, 501), (NOT_OF_ARGUMENTS, 500), (InputError, 400)),
    *((EvictedError, 410), (NotThereError, 503)),
)
_FOR_GOOD = "private, max-age=86400, immutable"


class Page:
    """The feeds of one store."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._heavy = threading.Lock()  # one at a time: each takes all cores, or much memory

    def state(self, _: Values) -> dict[str, Any]:
        """Return what changes: this is asked for every second."""
        state, path = self._watched.look(), str(self._watched.path)
        found: dict[str, Any] = {"name": self._watched.path.name, "path": path, "literal": repr(path), "shell": shlex.quote(path)}
        found |= {"token": state.token, "version": state.version, "time": time.monotonic()}
        if (reader := state.reader) is None:
            return found | {"here": False, "message": state.message}
        steps, added = (int(counts.sum()) for counts in reader.counts())
        return found | {"here": True, "steps": steps, "added": added, "writer": reader.writer, "damage": reader.info.damage}

    def overview(self, _: Values) -> dict[str, Any]:
        """Return the store as a whole."""
        return overview(self._watched.last().seen())

    def timeline(self, asked: Values) -> dict[str, Any]:
        """Return the episodes as points."""
        return table.points(self._watched.last().seen(), asked.get("where", ""))

    def episodes(self, asked: Values) -> dict[str, Any]:
        """Return a page of the table of episodes."""
        episodes = self._watched.last().seen().episodes()
        sort, where, descending = asked.get("sort", "ended"), asked.get("where", ""), asked.get("descending") == "true"
        return table.page_of_rows(episodes, where, sort, descending, _int(asked, "offset", 0), _int(asked, "limit", 50))

    def chosen(self, asked: Values) -> dict[str, Any]:
        """Return the episodes of a stretch of the time line."""
        first, last = _float(asked, "first", -np.inf), _float(asked, "last", np.inf)
        return table.between(self._watched.last().seen(), asked.get("where", ""), first, last, _int(asked, "limit", 5000))

    def episode(self, asked: Values) -> dict[str, Any]:
        """Return one episode: with a ``step``, of an ``id``, so many newer than that (``by``), or the newest that is over."""
        reader = self._watched.last().seen()
        wanted = {name: _int(asked, name, 0) for name in ("step", "id", "by") if asked.get(name)}
        return describe_episode(reader, find_episode(reader.episodes(), reader.info.streams, wanted))

    def findings(self, _: Values) -> dict[str, Any]:
        """Return what statistics find."""
        reader = self._watched.last().seen()
        with self._heavy:
            return health.findings(reader)

    def explained(self, error: Exception, token: str | None = None) -> Exception:
        """Return the reason for an error: that the store is gone by now, or another one, where that is so."""
        if _status(error) not in (410, 500):
            return error
        before = token or self._watched.last().token
        now = self._watched.look(at_once=True)
        if now.reader is None:
            return NotThereError(now.message)
        return error if now.token == before else NotThereError("another store is at the path by now")

    def frame(self, request: Request) -> Response:
        """Return the picture of a step; it is the same for good, within one token."""
        asked = request.query_params
        try:
            state = self._watched.last()
            if asked.get("of", state.token) != state.token:
                state = self._watched.look()
                if asked["of"] != state.token:
                    raise NotThereError("another store is at the path by now")
            picture = frame(state.seen(), asked.get("column", "obs"), _int(asked, "step", 0), stacked=bool(asked.get("stack")))
        except (DiskBufferError, OSError) as error:
            return _refusal(self.explained(error, asked.get("of")))
        return Response(picture, media_type="image/png", headers={"Cache-Control": _FOR_GOOD if "of" in asked else "no-store"})


def create_app(watched: Watched, prefix: str = "") -> Starlette:
    """Make the application of a store's page.

    Parameters
    ----------
    watched : Watched
    prefix : str
        Before all paths, such as "/k3x9": what is not below it is not found.
    """
    page = Page(watched)
    feeds = [
        *(page.state, page.overview, page.timeline, page.episodes, page.chosen, page.episode, page.findings),
    ]
    routes = [
        Route("/", _static("index.html")),
        Route("/frame.png", page.frame),
        *(Route(f"/api/{feed.__name__}", _feed(feed, page.explained)) for feed in feeds),
        *(Route(f"/static/{name}", _static(name)) for name in static_files() if name != "index.html"),
    ]
    below: list[Any] = [Mount(prefix, routes=routes), Route("/{path:path}", _nothing)] if prefix else routes
    return Starlette(routes=below, middleware=[Middleware(Guard), Middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)])


def _feed(feed: Callable[[Values], dict[str, Any]], explained: Callable[[Exception], Exception]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        try:
            return _json(feed(request.query_params))
        except (DiskBufferError, OSError) as error:
            return _refusal(explained(error))

    return answer


def _static(name: str) -> Callable[[Request], Response]:
    contents, media_type = static_files()[name]

    def answer(_: Request) -> Response:
        return Response(contents, media_type=media_type, headers={"Cache-Control": "no-cache"})

    return answer


def _nothing(_: Request) -> Response:
    return PlainTextResponse("There is nothing here. Open the address that `diskbuffer view` printed, all of it.\n", 404)


def _status(error: Exception) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def _refusal(error: Exception) -> Response:
    return _json({"message": str(error)}, _status(error))


def _json(values: Mapping[str, Any], status: int = 200) -> Response:
    body = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def _int(asked: Values, name: str, default: int) -> int:
    try:
        found = int(asked.get(name) or default)
    except ValueError:
        found = _MOST + 1
    if abs(found) > _MOST:
        raise InputError(f"{name} must be an integer of 62 bits, found {asked[name][:100]!r}")
    return found


def _float(asked: Values, name: str, default: float) -> float:
    try:
        return float(asked.get(name) or default)
    except ValueError:
        raise InputError(f"{name} must be a number, found {asked[name]!r}") from None
