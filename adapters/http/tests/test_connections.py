"""Connections through proxies and to servers with a private CA; what is wrong with one is told with its setting."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cryptography.hazmat.primitives import serialization
from mcp_workflows_http import HttpAdapter

from adapters.http.tests.real import adapter_of
from mcp_workflows.adapter import Finding, Ref, Start, Status
from mcp_workflows.errors import EngineUnavailable
from tests.support.authority import Authority

pytestmark = pytest.mark.anyio

DEFINITION: dict[str, Any] = {
    "start": {"request": "POST /jobs", "handle": "{{reply.body.id}}"},
    "describe": {"request": "/jobs/{{handle}}", "status": "{{reply.body.id}}", "map": {"running": "7"}},
}
REPLY = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"id": "7"}'


Handler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
) -> AsyncGenerator[int]:
    """The port of a server; at the end all its connections are closed."""
    serving: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


@asynccontextmanager
async def api(context: ssl.SSLContext | None = None, *, waits: bool = True) -> AsyncGenerator[int]:
    """The port of an API that says the same to everything, over TLS if there is a context; `waits` for a request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not waits or await reader.readuntil(b"\r\n\r\n"):
            writer.write(REPLY)
            if not waits:
                return

    async with listening(serve, context) as port:
        yield port


@dataclass
class Proxy:
    """A forwarding proxy, and what it was asked for."""

    url: str = ""
    wants: str | None = None  # a user and a password
    asked: list[str] = field(default_factory=list[str])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a tunnel (CONNECT), or pass on the whole of a request to an absolute URL."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.decode().split(" ", 2)
        self.asked.append(f"{method} {target}")
        if self.wants and f"Proxy-Authorization: Basic {_basic(self.wants)}" not in head.decode().splitlines():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        place = target if method == "CONNECT" else target.split("/")[2]
        host, _, port = place.partition(":")
        upstream, downstream = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            downstream.write(head)
        await asyncio.gather(_pump(reader, downstream), _pump(upstream, writer))


def _basic(pair: str) -> str:
    return base64.b64encode(pair.encode()).decode()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


@asynccontextmanager
async def proxy() -> AsyncGenerator[Proxy]:
    found = Proxy()
    async with listening(found.serve) as port:
        found.url = f"http://127.0.0.1:{port}"
        yield found


def tls_of(authority: Authority, folder: Path, *, wants_certificate: bool = False) -> ssl.SSLContext:
    """TLS of a server on this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_into(folder / "server", "server"))
    if wants_certificate:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def started(adapter: HttpAdapter) -> None:
    async with adapter:
        handle = await adapter.start(Start(workflow="w", arguments={}, key="k", created=datetime.now(UTC)))
        assert (await adapter.describe(Ref(workflow="w", handle=handle))).status is Status.RUNNING


async def refused(url: str, text: str, **settings: Any) -> None:
    """It cannot be connected to: a start says why, and certainly was not sent; `check` says the same."""
    async with adapter_of(url=url, **DEFINITION, **settings) as adapter:
        with pytest.raises(EngineUnavailable, match=text) as raised:
            await adapter.start(Start(workflow="w", arguments={}, key="k", created=datetime.now(UTC)))
        assert not raised.value.sent
        finding = await adapter.tooling.check_engine()
        assert not finding.ok
        assert text.replace("\\", "") in finding.text
        assert "s3cret" not in f"{raised.value} {finding}"


async def test_a_private_ca_is_trusted_where_it_is_named(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api(tls_of(authority, tmp_path)) as port:
        url = f"https://localhost:{port}"
        await refused(url, r"its certificate is not trusted \(tls.ca_file\)")
        await started(adapter_of(url=url, tls={"ca_file": str(authority.file)}, **DEFINITION))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        await started(adapter_of(url=url, **DEFINITION))


async def test_a_certificate_of_ours_is_shown(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue_into(tmp_path / "ours", "mcp")
    tls = {"ca_file": str(authority.file)}
    with_ours = {**tls, "client_cert": str(certificate), "client_key": str(key)}
    async with api(tls_of(authority, tmp_path, wants_certificate=True)) as port:
        url = f"https://localhost:{port}"
        await started(adapter_of(url=url, tls=with_ours, **DEFINITION))
        async with adapter_of(url=url, tls=tls, **DEFINITION) as adapter:
            with pytest.raises(EngineUnavailable):
                await adapter.start(Start(workflow="w", arguments={}, key="k", created=datetime.now(UTC)))


async def test_a_proxy_is_gone_through_over_http_and_https(authority: Authority, tmp_path: Path) -> None:
    async with proxy() as through, api() as plain, api(tls_of(authority, tmp_path)) as secret:
        await started(adapter_of(url=f"http://127.0.0.1:{plain}", proxy=through.url, **DEFINITION))
        assert through.asked[0] == f"POST http://127.0.0.1:{plain}/jobs"
        through.asked.clear()
        tls = {"ca_file": str(authority.file)}
        await started(adapter_of(url=f"https://localhost:{secret}", proxy=through.url, tls=tls, **DEFINITION))
        assert through.asked[0] == f"CONNECT localhost:{secret}"


async def test_the_proxy_of_the_environment_counts_unless_the_host_is_excepted(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy() as through, api(tls_of(authority, tmp_path)) as port:
        settings = {"url": f"https://localhost:{port}", "tls": {"ca_file": str(authority.file)}, **DEFINITION}
        monkeypatch.setenv("HTTPS_PROXY", through.url)
        await started(adapter_of(**settings))
        assert through.asked == [f"CONNECT localhost:{port}"]
        monkeypatch.setenv("NO_PROXY", "localhost")
        await started(adapter_of(**settings))
        assert len(through.asked) == 1


async def test_what_keeps_us_from_connecting_is_told(authority: Authority, tmp_path: Path) -> None:
    async with proxy() as through, api(tls_of(authority, tmp_path)) as port:
        through.wants = "mcp:right"
        text = r"the proxy refuses, or wants credentials \(proxy\)"
        await refused(f"https://localhost:{port}", text, proxy=through.url)
        wrong = through.url.replace("//", "//mcp:s3cret@")
        await refused(f"https://localhost:{port}", text, proxy=wrong)
    await refused("http://127.0.0.1:1", r"nothing listens there \(url\)")
    await refused("http://nobody.invalid", r"its name is not known \(url\)")
    async with api(waits=False) as plain:
        await refused(f"https://localhost:{plain}", r"TLS fails; it may want a certificate of ours")


async def test_a_proxy_that_wants_credentials_gets_them(authority: Authority, tmp_path: Path) -> None:
    async with proxy() as through, api() as plain, api(tls_of(authority, tmp_path)) as port:
        through.wants = "mcp:right"
        ours = through.url.replace("//", "//mcp:right@")
        tls = {"ca_file": str(authority.file)}
        await started(adapter_of(url=f"https://localhost:{port}", proxy=ours, tls=tls, **DEFINITION))
        await started(adapter_of(url=f"http://127.0.0.1:{plain}", proxy=ours, **DEFINITION))
        async with adapter_of(url=f"http://127.0.0.1:{plain}", proxy=through.url, **DEFINITION) as adapter:
            finding = await adapter.tooling.check_engine()
    text = "it answered 407: the proxy does not accept our credentials (proxy)"
    assert finding == Finding(ok=False, text=text, hint="check proxy")


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        ({"ca_file": "{gone}"}, r"tls\.ca_file cannot be used: No such file or directory"),
        ({"ca_file": "{none}"}, r"tls\.ca_file cannot be used: it is no PEM file of certificates"),
        (
            {"client_cert": "{none}", "client_key": "{none}"},
            r"tls\.client_cert and tls\.client_key cannot be used: no PEM files, no pair, or the key has a password",
        ),
        (
            {"client_cert": "{certificate}", "client_key": "{locked}"},
            r"tls\.client_cert and tls\.client_key cannot be used: no PEM files, no pair, or the key has a password",
        ),
    ],
)
async def test_a_file_of_tls_that_cannot_be_used_is_told(
    authority: Authority, tmp_path: Path, tls: dict[str, str], text: str
) -> None:
    certificate, key = authority.issue_into(tmp_path / "ours", "mcp")
    locked, none = tmp_path / "locked.key", tmp_path / "none.pem"
    none.write_text("no certificate")
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(plain.private_bytes(pem, form, serialization.BestAvailableEncryption(b"s3cret")))
    files = {"gone": tmp_path / "gone.pem", "none": none, "certificate": certificate, "locked": locked}
    await refused("https://localhost:1", text, tls={name: place.format(**files) for name, place in tls.items()})


async def test_a_token_endpoint_that_cannot_be_connected_to_is_told_likewise(
    authority: Authority, tmp_path: Path
) -> None:
    async with api() as port, api(tls_of(authority, tmp_path)) as tokens:
        for place, text in (
            ("http://nobody.invalid", r"its name is not known \(auth.oauth.token_url\)"),
            (f"https://localhost:{tokens}", r"its certificate is not trusted \(tls.ca_file\)"),
        ):
            oauth = {"client_id": "me", "client_secret": "s3cret", "token_url": f"{place}/token"}
            told = rf"auth.oauth: no token can be had: {text}"
            await refused(f"http://127.0.0.1:{port}", told, auth={"oauth": oauth})


async def test_a_proxy_of_the_environment_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://mcp:s3cret@127.0.0.1:1")
    await refused("https://localhost:1", "HTTPS_PROXY or HTTP_PROXY is not a URL of a proxy")
