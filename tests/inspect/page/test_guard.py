"""Who may ask: this server's own page, and nobody else's."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from diskbuffer.inspect.page.guard import HEADERS, Guard, refuse

OURS = ("127.0.0.1", "127.0.0.1:8460", "localhost", "localhost:1", "LOCALHOST:80")
FOREIGN = (
    *("", "evil.example", "evil.example:8460", "127.0.0.1.evil.example", "localhost.evil.example:8460", "evil.example@127.0.0.1"),
    *(
        "127.0.0.1:80@evil.example",
        "127.0.0.1/evil",
        "127.0.0.1:x",
        "0.0.0.0:8460",
        "192.168.1.2",
        "[::1]:8460",
    ),
    *("127.0.0.1?", "127.0.0.1#", "127.0.0.1 evil.example", "user:@127.0.0.1", "127.0.0.2", "::1:8460"),
)


def asked(**headers: str) -> tuple[int, str] | None:
    return refuse(
        "GET", Headers({name.replace("_", "-"): value for name, value in {"host": "127.0.0.1:8460", **headers}.items()})
    )


@pytest.mark.parametrize("host", OURS)
def test_loopback_may_ask_under_all_of_its_names_and_ports(host: str) -> None:
    assert asked(host=host) is None
    assert asked(host=host, origin=f"http://{host}") is None


@pytest.mark.parametrize("host", FOREIGN)
def test_another_name_may_not(host: str) -> None:
    found = asked(host=host)
    assert found is not None
    assert found[0] == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:3000",
        "http://localhost:8460",
        "file://",
        "http://127.0.0.1:8460/",
        "x://127.0.0.1:8460",
    ],
)
def test_pages_of_other_origins_may_not(origin: str) -> None:
    found = asked(origin=origin)
    assert found is not None
    assert found[0] == 403
    assert origin in found[1]


def test_other_sites_may_link_here_and_not_embed() -> None:
    for site in ("cross-site", "same-site"):
        assert asked(sec_fetch_site=site) is not None
        assert asked(sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image") is not None
        assert asked(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") is not None
        assert asked(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") is None
    assert asked(sec_fetch_site="same-origin", sec_fetch_mode="cors", sec_fetch_dest="empty") is None
    assert asked(sec_fetch_site="none") is None


def test_nothing_can_be_sent_and_every_answer_keeps_others_out() -> None:
    app = Starlette(
        routes=[Route("/", lambda _: PlainTextResponse("here"), methods=["GET", "POST", "PUT", "DELETE"])],
        middleware=[Middleware(Guard)],
    )
    with TestClient(app, base_url="http://127.0.0.1:8460") as client:
        answers = {
            method: client.request(method, "/")
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")
        }
        answers |= {path: client.get(path) for path in ("/nowhere", "/../etc/passwd")}
        answers["foreign"] = client.get("/", headers={"Host": "evil.example"})
    found = {name: answer.status_code for name, answer in answers.items()}
    sending = dict.fromkeys(("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"), 405)
    assert found == {"GET": 200, "HEAD": 200, "/nowhere": 404, "/../etc/passwd": 404, "foreign": 403, **sending}
    assert "here" not in answers["foreign"].text
    for answer in answers.values():
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert not any(name.startswith("access-control") for name in answer.headers)
