"""Workflows that call their engine over HTTP: who is let in, what is taken, and what each of them hears."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from mcp_workflows.receiver.webhooks import MAX_BODY
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.reload import Reloader
from tests.access.authn.test_issuers import BAD
from tests.receiver.called import install
from tests.support.commands import COMMAND
from tests.support.served import serving
from tests.support.tokens import AUDIENCE, KeyServer, signer

pytestmark = pytest.mark.anyio

GOOD, STRANGER = signer("good"), signer("stranger")
STRANGERS_ANSWER = (401, {"error": "a valid token is needed"}, "Bearer")


def text_of(keys_url: str, *, audience: str = AUDIENCE, routes: str = "[input, claim]", more: str = "") -> str:
    there = f"here: {{adapter: called, routes: {routes}, audience: '{audience}', keys_url: '{keys_url}'}}"
    return f"store: sqlite:///tasks.db\nengines:\n  {there}\n{more}tools:\n  echo: {{engine: here, workflow: echo}}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A sidecar with an engine that is called, over HTTP."""

    path: Path
    sidecar: Sidecar
    reloading: Reloader
    http: httpx2.AsyncClient
    url: str
    keys: KeyServer
    keys_path: str

    async def post(
        self, path: str = "/engines/here/input", token: str | None = "", body: Any = None, **more: Any
    ) -> httpx2.Response:
        """With a good token, if none is given; None: without."""
        headers = {} if token is None else {"authorization": f"Bearer {token or GOOD.token()}"}
        sent: Mapping[str, Any] = {"json": {"n": 1} if body is None else body}
        if "content" in more:
            sent = {"content": more["content"]}
        headers |= {"content-type": "application/json", **more.get("headers", {})}
        return await self.http.post(self.url + path, headers=headers, **sent)

    async def save(self, text: str) -> None:
        self.path.write_text(text)
        await self.reloading.reload(self.sidecar)


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_server: KeyServer) -> AsyncGenerator[Stage]:
    install(tmp_path, monkeypatch)
    keys_path = f"inbound-{tmp_path.name}"
    text = text_of(key_server.publish(keys_path, GOOD))
    async with staged(tmp_path / "workflows.yaml", text, key_server, keys_path) as found:
        yield found


def written(path: Path, text: str) -> Config:
    path.write_text(text)
    return load_config(path, {})


@asynccontextmanager
async def staged(path: Path, text: str, keys: KeyServer, keys_path: str) -> AsyncGenerator[Stage]:
    config = written(path, text)
    sidecar, reloading = build(config), Reloader(path, config, {})
    async with serving(http_app(sidecar, config, "127.0.0.1", 0)) as url, httpx2.AsyncClient() as http:
        yield Stage(
            path=path,
            sidecar=sidecar,
            reloading=reloading,
            http=http,
            url=url.removesuffix("/mcp"),
            keys=keys,
            keys_path=keys_path,
        )


def said(answer: httpx2.Response) -> tuple[int, Any, str | None]:
    """All that a stranger could tell two answers apart by."""
    varying = {"date", "content-length"}
    assert set(answer.headers) - varying <= {"server", "content-type", "www-authenticate"}, answer.headers
    return answer.status_code, answer.json(), answer.headers.get("www-authenticate")


# --- who is let in


async def test_a_token_protects_it_whatever_the_host_header_says(stage: Stage) -> None:
    public = {"host": "workflows.example.com", "origin": "https://elsewhere.example"}
    assert (await stage.post(headers=public)).status_code == 200
    for headers, status in (({"host": public["host"]}, 421), ({"origin": public["origin"]}, 403)):
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        sent = {"accept": "application/json, text/event-stream", **headers}
        assert (await stage.http.post(f"{stage.url}/mcp", json=body, headers=sent)).status_code == status


@pytest.mark.parametrize("path", ["/engines/here/input", "/engines/here/nothing", "/engines/gone/input"])
async def test_strangers_hear_the_same_whatever_is_there(
    stage: Stage, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.post()
    for kind in BAD:
        token = BAD[kind][0]()
        if not token.isascii() or not token:
            continue
        answer = await stage.post(path, token=token, body={"fail": "broken"})
        assert said(answer) == STRANGERS_ANSWER, kind
        assert token not in caplog.text
    assert said(await stage.post(path, token=None)) == STRANGERS_ANSWER
    huge = {"authorization": "Basic YTpi", "content-type": "text/plain"}
    assert said(await stage.post(path, content=b"x" * 300_000, headers=huge)) == STRANGERS_ANSWER
    assert said(await stage.post(path, token=GOOD.token(email_verified=False))) == STRANGERS_ANSWER
    assert said(await stage.post(path, token=GOOD.token(without=["email"]))) == STRANGERS_ANSWER
    not_allowed = await stage.post(path, token=GOOD.token(email="mallory@demo.iam.gserviceaccount.com"))
    assert said(not_allowed) == (403, {"error": "not allowed"}, None)
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = await stage.http.request(method, stage.url + path)
        assert (answer.status_code, answer.headers["allow"], answer.text) == (405, "POST", "Method Not Allowed")
    for other in (f"{path}/more", f"{path}/", "/engines/here//input", "/engines/input"):
        assert (await stage.post(other)).status_code == 404


async def test_a_new_key_is_taken_while_it_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await stage.post()).status_code == 200
    new = signer("rotated")
    stage.keys.publish(stage.keys_path, GOOD, new)
    early = await stage.post(token=new.token())
    assert (early.status_code, early.headers["retry-after"]) == (503, "5")
    monkeypatch.setattr("mcp_workflows.access.authn.issuers.PAUSE", 0.0)
    assert (await stage.post(token=new.token())).status_code == 200
    assert (await stage.post()).status_code == 200


async def test_without_its_keys_a_token_is_to_be_sent_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.access.authn.issuers.PAUSE", 0.0)
    published = stage.keys.keys.pop(stage.keys_path)
    for path in ("/engines/here/input", "/engines/gone/input"):
        answer = await stage.post(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json() == {"error": "try again later"}
    stage.keys.keys[stage.keys_path] = published
    assert (await stage.post()).status_code == 200
    del stage.keys.keys[stage.keys_path]
    assert (await stage.post(token=STRANGER.token())).status_code == 503
    assert (await stage.post()).status_code == 200


# --- what is taken


def _parts(size: int) -> Callable[[], AsyncGenerator[bytes]]:
    async def parts() -> AsyncGenerator[bytes]:
        for _ in range(size // 1024):
            yield b" " * 1024

    return parts


JSON_TYPE = "application/json"
BODIES: Mapping[str, tuple[Callable[[], Any], str, int]] = {
    "largest": (lambda: b'"' + b"x" * (MAX_BODY - 2) + b'"', JSON_TYPE, 200),
    "larger": (lambda: b'"' + b"x" * (MAX_BODY - 1) + b'"', JSON_TYPE, 413),
    "larger, in parts": (_parts(MAX_BODY + 2048), JSON_TYPE, 413),
    "charset": (lambda: b"{}", "application/json; charset=utf-8", 200),
    "capitals": (lambda: b"{}", "Application/JSON", 200),
    "form": (lambda: b"a=b", "application/x-www-form-urlencoded", 415),
    "text": (lambda: b"{}", "text/plain", 415),
    "none": (lambda: b"{}", "", 415),
    "empty": (lambda: b"", JSON_TYPE, 400),
    "not JSON": (lambda: b"{'a': 1}", JSON_TYPE, 400),
    "two": (lambda: b"{} {}", JSON_TYPE, 400),
    "not a number": (lambda: b'{"a": NaN}', JSON_TYPE, 400),
    "not UTF-8": (lambda: b'"\xff"', JSON_TYPE, 400),
    "half a pair": (lambda: b'"\\ud800"', JSON_TYPE, 400),
    "deep": (lambda: b"[" * 50_000, JSON_TYPE, 400),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_a_body_is_json_of_a_bounded_size(stage: Stage, kind: str) -> None:
    make, content_type, status = BODIES[kind]
    body = make()
    content = body() if callable(body) else body
    answer = await stage.post(content=content, headers={"content-type": content_type})
    assert answer.status_code == status, answer.text
    assert ("error" in answer.json()) == (status != 200)


async def test_a_caller_that_leaves_is_not_heard(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", httpx2.URL(stage.url).port or 0)) as caller:
        head = f"POST /engines/here/input HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD.token()}\r\n"
        caller.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        await anyio.wait_all_tasks_blocked()
    assert (await stage.post()).status_code == 200


# --- what comes of it


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        ("refused", 400, "its message is empty"),
        ("not found", 404, "no such execution"),
        ("unavailable", 503, "the engine is down"),
        ("odd", 500, "internal error"),
        ("broken", 500, "internal error"),
    ],
)
async def test_who_is_trusted_hears_why_it_failed(stage: Stage, failure: str, status: int, text: str) -> None:
    answer = await stage.post(body={"fail": failure})
    assert (answer.status_code, answer.json()) == (status, {"error": text})
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)


async def test_an_adapter_remembers_what_it_was_told_also_after_a_restart(stage: Stage) -> None:
    first = await stage.post(body={"note": "a/1", "value": {"n": 1}})
    assert first.json() == {"first": {"n": 1}, "all": {"a/1": {"n": 1}}}
    assert (await stage.post(body={"note": "a/1", "value": {"n": 2}})).json()["first"] == {"n": 1}
    text = stage.path.read_text()
    async with staged(stage.path, text, stage.keys, stage.keys_path) as again:
        answer = await again.post(body={"note": "a/2", "value": 3})
    assert answer.json() == {"first": 3, "all": {"a/1": {"n": 1}, "a/2": 3}}


# --- reloads, and where there is nobody


async def test_a_reload_changes_who_is_let_in_and_where(stage: Stage) -> None:
    url = f"{stage.keys.address}/{stage.keys_path}"
    await stage.post(body={"note": "a/1", "value": 1})
    await stage.save(text_of(url, audience="https://other.example", routes="[other]"))
    assert (await stage.post("/engines/here/other")).status_code == 401
    token = GOOD.token(aud="https://other.example")
    noted = await stage.post("/engines/here/other", token=token, body={"note": "a/2", "value": 2})
    assert noted.json()["all"] == {"a/1": 1, "a/2": 2}
    assert (await stage.post(token=token)).status_code == 404
    other = f"  there: {{adapter: called, audience: there, keys_url: '{url}'}}\n"
    await stage.save(text_of(url, more=other))
    assert (await stage.post("/engines/there/input", token=GOOD.token(aud="there"))).status_code == 200
    assert (await stage.post("/engines/there/input")).status_code == 401
    assert (
        await stage.post("/engines/there/input", body={"note": "a", "value": 3}, token=GOOD.token(aud="there"))
    ).json()["all"] == {"a": 3}, "each engine has notes of its own"
    await stage.save(text_of(url, routes="[]"))
    answer = await stage.post()
    assert (answer.status_code, answer.json()) == (404, {"error": "there is nothing here"})


async def test_an_adapter_whose_routes_break_has_none(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.save(text_of("http://unused.example", routes="[broken]"))
    for _ in range(2):
        assert (await stage.post()).status_code == 404
    assert [record.getMessage() for record in caplog.records if record.name == "mcp_workflows.engines.registry"] == [
        "the adapter of engine 'here' broke the contract: it has no routes"
    ]


# --- the law of the contract


# --- the commands


def environment(folder: Path) -> Mapping[str, str]:
    path = os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[2])])
    return {**os.environ, "PYTHONPATH": path}


@pytest.mark.usefixtures("processes")
def test_on_stdio_the_log_says_that_nobody_can_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    config = tmp_path / "workflows.yaml"
    config.write_text(text_of("http://unused.example"))
    done = subprocess.run(
        [COMMAND, "serve", str(config)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    warning = "workflows of engine here cannot call this server over stdio, only over HTTP (--http HOST:PORT): "
    assert f"{warning}/engines/here/input, /engines/here/claim" in done.stderr


async def test_a_body_that_does_not_come_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.receiver.webhooks.READ_WITHIN", 0.1)
    lines = (
        "POST /engines/here/input HTTP/1.1",
        "Host: here",
        f"Authorization: Bearer {GOOD.token()}",
        "Content-Type: application/json",
        "Content-Length: 9",
    )
    where = httpx2.URL(stage.url)
    async with await anyio.connect_tcp(where.host, where.port or 80) as stream:
        await stream.send("\r\n".join((*lines, "", "{")).encode())
        with anyio.fail_after(60):
            assert (await stream.receive()).startswith(b"HTTP/1.1 503")
