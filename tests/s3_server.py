"""A real S3 server, moto's, in threads of this process, which can be told to refuse requests."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

BUCKET = "runs"


class S3Server:
    """The server, with one bucket.

    Attributes
    ----------
    refuses : callable
        ``refuses(method, path)`` is asked before each request is answered.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._app = create_backend_app("s3")  # that of all services takes longer to find the one than to answer
        self.refuses: Callable[[str, str], bool] = never
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.put("")

    def stop(self) -> None:
        """Refuse connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """Return the variables by which the server is found."""
        names = {"ENDPOINT_URL": self.endpoint, "REGION": "us-east-1", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "secret"}
        return {f"AWS_{name}": value for name, value in names.items()}

    def put(self, name: str, contents: bytes = b"") -> None:
        """Write an object; without a name, make the bucket."""
        url = f"{self.endpoint}/{BUCKET}{name and '/'}{quote(name)}"
        urllib.request.urlopen(
            urllib.request.Request(url, contents, {"Content-Type": "binary/octet-stream"}, method="PUT")
        ).close()

    def _answer(self, environ: dict[str, Any], begin: Callable[..., Any]) -> Iterable[bytes]:
        if self.refuses(environ["REQUEST_METHOD"], environ["PATH_INFO"]):
            begin("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        answer: Iterable[bytes] = self._app(environ, begin)
        return answer


def never(method: str, path: str) -> bool:
    """Refuse nothing."""
    return False
