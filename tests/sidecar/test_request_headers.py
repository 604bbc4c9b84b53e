"""Headers of requests: which hosts and origins are let in, what may come once, and pages that call from a browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from mcp_workflows.sidecar import request_headers
from mcp_workflows.sidecar.address import exact_origin, origin
from mcp_workflows.sidecar.request_headers import BoundedHeaders, is_allowed
from tests.support.here import OLD, elder, hello, over_http, scene
from tests.support.identified import House, house, jwks
from tests.support.served import VERSION, peer, site
from tests.support.tokens import KeyServer

pytestmark = pytest.mark.anyio

ECHO = "  echo: {engine: here, workflow: echo}\n"
ACCEPT = "application/json, text/event-stream"
PAGE = "http://localhost:6274"


async def raw(url: str, head: Sequence[str], body: str = "") -> tuple[int, str]:
    """The status and all of the answer to a request that is written out."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    lines = [*head, f"content-length: {len(body)}", "connection: close", "", body]
    answer = bytearray()
    with anyio.fail_after(60):
        async with await anyio.connect_tcp(address.hostname, address.port) as stream:
            await stream.send("\r\n".join(lines).encode())
            async for chunk in stream:
                answer += chunk
    text = answer.decode()
    return int(text.split(" ", 2)[1]), text


# --- Host and Origin


@pytest.mark.parametrize(
    ("value", "allowed", "fits"),
    [
        ("localhost:80", "localhost:*", True),
        ("localhost", "localhost:*", True),
        ("LocalHost:80", "localhost:*", True),
        ("localhost:80.evil.example", "localhost:*", False),
        ("localhost:", "localhost:*", False),
        ("localhost:*", "localhost:*", False),
        ("localhost:٣", "localhost:*", False),
        ("localhost:²", "localhost:*", False),
        ("localhost:80:80", "localhost:*", False),
        ("localhost.evil.example:80", "localhost:*", False),
        ("xlocalhost:80", "localhost:*", False),
        ("example.com", "example.com", True),
        ("example.com:80", "example.com", False),
        ("example.com:8443", "example.com:8443", True),
        ("example.com:84430", "example.com:8443", False),
        ("[::1]:80", "[::1]:*", True),
        ("[::1]", "[::1]:*", True),
        ("[::1]:80.evil.example", "[::1]:*", False),
        ("[::1].evil.example:80", "[::1]:*", False),
        ("http://localhost:6274", "http://localhost:*", True),
        ("HTTP://LOCALHOST:6274", "http://localhost:*", True),
        ("https://localhost:6274", "http://localhost:*", False),
        ("http://localhost:80.evil.example", "http://localhost:*", False),
        ("http://localhost:1@evil.example", "http://localhost:*", False),
        ("http://localhost:1/", "http://localhost:*", False),
        ("null", "http://localhost:*", False),
        ("", "localhost:*", False),
    ],
)
def test_a_host_or_origin_is_compared_to_its_end(value: str, allowed: str, fits: bool) -> None:
    assert is_allowed(value, {allowed}) is fits


@pytest.mark.parametrize(
    ("written", "compared"),
    [
        ("https://App.Example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("http://[0:0::1]:80", "http://[::1]"),
        ("http://localhost:*", "http://localhost:*"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
def test_an_origin_of_the_configuration_is_spelled_as_browsers_do(written: str, compared: str) -> None:
    assert origin(written) == compared


@pytest.mark.parametrize(
    "written", ["*", "null", "app.example", "https://app.example/", "https://a@b", "http://*.x", ""]
)
def test_what_is_no_origin_is_refused(written: str) -> None:
    for kind in (origin, exact_origin):
        with pytest.raises(ValueError, match=r"must be an origin|pages of any site"):
            kind(written)


SETTINGS = (
    'allowed_hosts: ["Workflows.Example", "any.example:*", "[2001:DB8:0::1]:8443"], '
    'public_url: "https://Public.Example/flows", allowed_origins: ["https://App.Example:443"], cors: ["https://page.example"]'
)


HOSTS_AND_ORIGINS: Sequence[tuple[Mapping[str, str], int]] = [
    ({"host": "127.0.0.1:80.evil.example"}, 421),
    ({"host": "localhost:80.evil.example"}, 421),
    ({"host": "[::1]:80.evil.example"}, 421),
    ({"host": "public.example.evil.example"}, 421),
    ({"host": "workflows.example:80"}, 421),
    ({"host": "any.example:443.evil.example"}, 421),
    ({"origin": "http://localhost:80.evil.example"}, 403),
    ({"host": "evil.example", "origin": "http://evil.example"}, 403),
    ({"origin": "https://page.example.evil.example"}, 403),
    ({"origin": "https://page.example:80"}, 403),
    ({"origin": "http://public.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": ""}, 403),
    ({"host": "LOCALHOST:80"}, 200),
    ({"host": "[::1]"}, 200),
    ({"host": "WORKFLOWS.example"}, 200),
    ({"host": "any.example:9"}, 200),
    ({"host": "[2001:db8::1]:8443"}, 200),
    ({"host": "public.example"}, 200),
    ({"host": "public.example:443"}, 200),
    ({"origin": "https://public.example"}, 200),
    ({"origin": "https://app.example"}, 200),
    ({"origin": "https://page.example"}, 200),
    ({"origin": "http://LOCALHOST:6274"}, 200),
]


async def test_hosts_and_origins_are_let_in_to_the_letter(tmp_path: Path) -> None:
    async with over_http(scene(tmp_path, ECHO, SETTINGS)) as url, peer(url) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello({})}
        for headers, status in HOSTS_AND_ORIGINS:
            async with client.response("tools/list", headers=headers) as response:
                found = [response.status_code]
            found.append((await client.http.post(url, json=body, headers={"accept": ACCEPT, **headers})).status_code)
            found.append((await client.http.get(url.replace("/mcp", "/enginez"), headers=headers)).status_code)
            assert (headers, found) == (headers, [status] * 3)


@pytest.mark.parametrize("path", ["/mcp/", "//mcp", "/MCP", "/healthz/", "/engines"])
async def test_no_path_redirects_to_where_host_says(tmp_path: Path, path: str) -> None:
    async with over_http(scene(tmp_path, ECHO)) as url:
        for method in ("GET", "POST"):
            status, text = await raw(url, [f"{method} {path} HTTP/1.1", "host: evil.example"])
            assert (status, "evil.example" in text) == (404, False)


# --- refusals that a client can read, and requests that never end


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "text/html"])
@pytest.mark.parametrize("version", [VERSION, OLD])
async def test_a_refusal_of_what_is_accepted_says_what_to_accept(tmp_path: Path, accept: str, version: str) -> None:
    async with over_http(scene(tmp_path, ECHO)) as url, httpx2.AsyncClient() as http:
        headers = {"accept": accept, "mcp-protocol-version": version, "mcp-method": "tools/list"}
        answer = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=headers)
    assert answer.status_code == 406
    assert "text/event-stream" in answer.json()["error"]["message"] or version == OLD
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("version", [VERSION, OLD])
async def test_a_client_that_sends_too_much_reads_why(tmp_path: Path, version: str, *, chunked: bool) -> None:
    async with over_http(scene(tmp_path, ECHO), http=BoundedHeaders) as url:
        address, body = urlsplit(url), b"x" * 20_000_000
        head = [f"POST /mcp HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\nmcp-protocol-version: {version}"]
        head.append("transfer-encoding: chunked" if chunked else f"content-length: {len(body)}")
        framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
        with anyio.fail_after(60):
            async with await anyio.connect_tcp(str(address.hostname), address.port or 0) as stream:
                await stream.send("\r\n".join([*head, "", ""]).encode() + framed)  # all of it, before anything is read
                assert (await stream.receive()).startswith(b"HTTP/1.1 413 ")


HALF_OPEN = {
    "nothing": b"",
    "headers": b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n",
    "body": b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
    "the next request": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\nGET /healthz",
}


@pytest.mark.parametrize("sent", HALF_OPEN.values(), ids=HALF_OPEN)
async def test_a_request_that_stays_incomplete_is_closed(
    tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_headers, "REQUEST_SECONDS", 0.3)
    async with over_http(scene(tmp_path, ECHO), http=BoundedHeaders) as url:
        address, answer = urlsplit(url), b""
        with anyio.fail_after(60):
            async with await anyio.connect_tcp(str(address.hostname), address.port or 0) as stream:
                await stream.send(sent)
                async for chunk in stream:
                    answer += chunk
    assert b"HTTP/1.1 408 " in answer


# --- headers that come once


@pytest.mark.parametrize("other", ["authorization", "Authorization", "AUTHORIZATION"])
async def test_of_two_tokens_neither_counts(tmp_path: Path, key_server: KeyServer, other: str) -> None:
    async with house(tmp_path, {"issuers": [jwks(key_server, "two")]}) as here:
        head = ["POST /mcp HTTP/1.1", "host: localhost", f"accept: {ACCEPT}", "content-type: application/json"]
        good = f"authorization: Bearer {here.token()}"
        body = '{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        for second in (f"{other}: Bearer x", f"{other}: Basic eDp5", f"{other}:", f"{other}: {good.partition(' ')[2]}"):
            for pair in ([good, second], [second, good]):
                status, text = await raw(here.url, [*head, *pair], body)
                assert (status, "the header authorization was sent more than once" in text) == (400, True)
        assert here.denied == []


ONE = {
    "host": "localhost",
    "origin": PAGE,
    "authorization": "Bearer x",
    "mcp-session-id": "x",
    "mcp-protocol-version": OLD,
    "content-length": "0",  # the one that `raw` sends, and this
}


async def test_a_header_that_counts_once_comes_once(tmp_path: Path) -> None:
    async with over_http(scene(tmp_path, ECHO)) as url:
        for path in ("/mcp", "/enginez", "/healthz"):
            head = [f"GET {path} HTTP/1.1", "host: localhost", f"accept: {ACCEPT}"]
            statuses: dict[str, int] = {}
            for name, value in ONE.items():
                first = [] if name in {"host", "content-length"} else [f"{name}: {value}"]
                statuses[name], _ = await raw(url, [*head, *first, f"{name.title()}: {value}"])
            assert statuses == dict.fromkeys(ONE, 400), path
            assert (await raw(url, head))[0] == (400 if path == "/mcp" else 200), "400: no session"


# --- Last-Event-ID


async def test_a_client_that_resumes_gets_a_new_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        over_http(scene(tmp_path, ECHO)) as sidecar,
        site(store=f"sqlite:///{tmp_path}/own.db") as own,
        site(store=f"sqlite:///{tmp_path}/stateless.db", transport={"stateless_http": True}) as stateless,
    ):
        for url in (sidecar, own.url):
            async with elder(url) as old:
                headers = {**old.headers, "accept": "text/event-stream", "last-event-id": "17"}
                async with old.http.stream("GET", url, headers=headers) as response:
                    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
                    again = await old.http.get(url, headers=headers)
                    assert again.status_code == 409, "one for each session"
        async with peer(stateless.url) as client:
            headers = {"accept": "text/event-stream", "last-event-id": "17"}
            async with client.http.stream("GET", stateless.url, headers=headers) as response:
                assert response.status_code == 200
        for url in (sidecar, own.url):
            async with httpx2.AsyncClient() as http:
                headers = {"accept": "text/event-stream", "last-event-id": "17"}
                assert (await http.get(url, headers=headers)).status_code == 400, "no session"
                modern = {**headers, "mcp-protocol-version": VERSION}
                assert (await http.get(url, headers=modern)).status_code == 405, "2026-07-28 has no GET"
    assert [record for record in caplog.records if record.exc_info] == []


# --- pages


@asynccontextmanager
async def paged(folder: Path, key_server: KeyServer, **server: Any) -> AsyncGenerator[House]:
    """A sidecar with logins that a page may call."""
    async with house(folder, {"issuers": [jwks(key_server, "paged")]}, cors=[PAGE], **server) as here:
        yield here


def preflight(*headers: str, origin: str = PAGE, method: str = "POST") -> Mapping[str, str]:
    """What a browser asks before a request."""
    asked = {"access-control-request-headers": ",".join(headers)} if headers else {}
    return {"origin": origin, "access-control-request-method": method, **asked}


BOTH = ("accept", "authorization", "content-type", "mcp-protocol-version")
ELDER = (*BOTH, "mcp-session-id", "last-event-id")
MODERN = (*BOTH, "mcp-method", "mcp-name", "mcp-param-region")
SHOWN = {"mcp-session-id", "mcp-protocol-version", "www-authenticate", "retry-after"}


async def test_a_browser_may_send_what_both_revisions_need_and_asks_without_a_token(
    tmp_path: Path, key_server: KeyServer
) -> None:
    async with paged(tmp_path, key_server) as here:
        for method in ("GET", "POST", "DELETE"):
            for headers in ((), ELDER, MODERN):
                answer = await here.http.options(here.url, headers=preflight(*headers, method=method))
                assert answer.status_code == 200
                assert answer.headers["access-control-allow-origin"] == PAGE
                assert "access-control-allow-credentials" not in answer.headers
                assert {"GET", "POST", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))
                named = answer.headers.get("access-control-allow-headers", "").split(",")
                assert set(headers) <= {name.strip().lower() for name in named}
        assert here.denied == []


async def test_a_browser_may_send_nothing_else_from_nowhere_else_to_nothing_else(
    tmp_path: Path, key_server: KeyServer
) -> None:
    async with paged(tmp_path, key_server) as here:
        for refused in (
            preflight("x-forwarded-user"),
            preflight(*MODERN, "x-mcp-param-a"),
            preflight(*BOTH, origin="http://localhost:6275"),
            preflight(*BOTH, origin="https://evil.example"),
            preflight(*BOTH, origin="null"),
        ):
            answer = await here.http.options(here.url, headers=refused)
            assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (400, False)
        assert (await here.http.options(here.url, headers=preflight(method="PUT"))).status_code == 400
        for path in ("/healthz", "/readyz", "/engines/memory/callback", "/nothing-here"):
            url = here.url.replace("/mcp", path)
            for answer in (
                await here.http.options(url, headers=preflight(*BOTH)),
                await here.http.get(url, headers={"origin": PAGE}),
            ):
                assert "access-control-allow-origin" not in answer.headers, path


async def test_a_page_reads_results_and_errors_alike(tmp_path: Path, key_server: KeyServer) -> None:
    async with paged(tmp_path, key_server, max_sessions=1) as here:
        sent = {"accept": ACCEPT, "origin": PAGE}
        good = {**sent, "authorization": f"Bearer {here.token()}"}
        first: Mapping[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello({})}
        huge = {**first, "params": {"padding": "x" * (4 * 1024 * 1024)}}
        answers = [
            await here.http.post(here.url, json=first, headers=good),
            await here.http.post(here.url, json=first, headers=good),
            await here.http.post(here.url, json=first, headers=sent),
            await here.http.post(here.url, json=huge, headers=good),
            await here.http.post(here.url, json=first, headers={**good, "host": "evil.example"}),
            await here.ping(here.token(), {"origin": PAGE}),
        ]
        assert [answer.status_code for answer in answers] == [200, 503, 401, 413, 421, 200]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "origin" in answer.headers["vary"].lower()
            assert {name.lower() for name in answer.headers["access-control-expose-headers"].split(", ")} >= SHOWN
        assert "mcp-session-id" in answers[0].headers


async def test_without_the_setting_no_page_is_told_anything(tmp_path: Path) -> None:
    async with over_http(scene(tmp_path, ECHO)) as url, peer(url) as client:
        answer = await client.http.options(url, headers=preflight(*BOTH))
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (405, False)
        async with client.response("tools/list", headers={"origin": PAGE}) as response:
            assert (response.status_code, "access-control-allow-origin" in response.headers) == (200, False)
