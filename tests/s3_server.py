"""A real S3 server, moto's, in threads of this process, in front of which answers can be spoilt."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import diskbuffer as db

BUCKET = "runs"
_NUMBERS = itertools.count()  # of stores: the servers of a process have one memory
Answer = Iterable[bytes]


class S3Server:
    """The server, with one bucket.

    Attributes
    ----------
    fault : callable, optional
        ``fault(method, path)`` returns what is wrong with an answer: "busy", "cut", "slow", "denied", "flipped" or "".
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._make, self._handler, self._port = make_server, MotoRequestHandler, 0
        self.fault: Callable[[str, str], str] = _nothing
        self.start()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")).close()

    def start(self) -> None:
        """Answer, after `stop` again."""
        self._server = self._make("127.0.0.1", self._port, self._answer, True, request_handler=self._handler)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections; what was uploaded stays."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], begin: Callable[..., Any]) -> Answer:
        fault = self.fault(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if fault == "busy":
            begin("503 Slow Down", [("Content-Length", "0"), ("Connection", "close")])
            return [b""]
        if fault == "denied":
            begin("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        if fault == "slow":
            time.sleep(0.02)
        answer: Answer = self._app(environ, begin)
        if fault == "flipped":
            return [bytes(byte ^ 1 for byte in data) for data in answer]
        return _cut(answer) if fault == "cut" else answer

    # Stores

    def options(self, **more: Any) -> dict[str, Any]:
        """Return options for a `Bucket`, with little patience."""
        retries = {"max_retries": 20, "backoff": {"init_backoff": 0.01, "max_backoff": 0.05, "base": 2}, "retry_timeout": 10}
        keys = {"endpoint": self.endpoint, "region": "us-east-1", "access_key_id": "a", "secret_access_key": "secret"}
        return keys | {"retry_config": _seconds(retries)} | more

    def put(self, directory: Path, name: str = "") -> str:
        """Upload a directory as any tool would, without the files that a writer removes meanwhile; return its URL."""
        import obstore
        from obstore.store import S3Store

        name = name or f"some/store-{next(_NUMBERS)}"
        client = S3Store(BUCKET, prefix=name, client_options={"allow_http": True}, **self.options())
        files = [path for path in directory.rglob("*") if path.is_file()]
        fault, self.fault = self.fault, _nothing

        def upload(path: Path) -> None:
            with suppress(FileNotFoundError):
                obstore.put(client, str(path.relative_to(directory)), path.read_bytes())

        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(upload, files):
                pass
        self.fault = fault
        return f"s3://{BUCKET}/{name}"

    def bucket(self, url: str, cache: Path, **more: Any) -> db.Bucket:
        """Return a store that was uploaded."""
        return db.Bucket(url, cache=cache, options=self.options(), **more)


def some_faults(seed: int, share: float) -> Callable[[str, str], str]:
    """Return what spoils a share of all answers."""
    rng, lock = random.Random(seed), threading.Lock()

    def fault(method: str, path: str) -> str:
        with lock:
            return rng.choice(["busy", "cut", "slow"]) if rng.random() < share else ""

    return fault


def _nothing(method: str, path: str) -> str:
    return ""


def _cut(answer: Answer) -> Iterator[bytes]:
    for data in answer:
        yield data[: len(data) // 2]
        break
    raise ConnectionAbortedError


def _seconds(retries: dict[str, Any]) -> dict[str, Any]:
    """Return what obstore takes, whose times are timedeltas."""
    from datetime import timedelta

    backoff = {name: timedelta(seconds=s) if name != "base" else s for name, s in retries["backoff"].items()}
    return retries | {"backoff": backoff, "retry_timeout": timedelta(seconds=retries["retry_timeout"])}
