"""The pages on which people approve, served here; browsers without a screen; and a provider that answers as it is told.

A browser keeps cookies as real ones do, follows redirects when asked, and sends forms from the fields of the HTML.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlencode, urljoin, urlsplit

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_workflows.access import AccessRequest, Verb
from mcp_workflows.access.audit import Audit, Record
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.telemetry.exporters import Exporters
from mcp_workflows.task import START_KEY
from mcp_workflows.tasks.executions import Executions
from tests.support.child_processes import free_port
from tests.support.oidc import AUDIENCE, PAGES, SECRET
from tests.support.served import TASKS, Peer, serving
from tests.support.tokens import Signer, signer

SESSION: Final = "__Host-mcp-workflows"
LOGIN: Final = "__Host-mcp-workflows-login"
MANAGERS: Final = "release-managers"
TOOLS: Final[Mapping[str, Any]] = {
    "deploy": {
        "title": "Deploy to production",
        "workflow": "echo",
        "input": {"type": "object", "properties": {"version": {"type": "string"}, "note": {}}},
        "approval": {
            "before_start": True,
            "message": "Deploy {{version}} to production?",
            "approvers": {"claims": {"groups": MANAGERS}},
        },
    }
}


# --- a provider


@dataclass(slots=True, kw_only=True)
class ToldProvider:
    """An identity provider whose every answer a test can replace."""

    issuer: str = ""
    signer: Signer = field(default_factory=lambda: signer("pages"))
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])  # in place of what it says of itself
    tokens: dict[str, Callable[[], Response]] = field(default_factory=dict[str, Callable[[], Response]])  # by code
    userinfo: Any = None  # Any: JSON; None: there is no such endpoint
    is_down: bool = False
    answering: anyio.Event | None = None  # it answers only then
    asked: Counter[str] = field(default_factory=Counter[str])
    forms: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])  # that came for tokens

    @property
    def app(self) -> Starlette:
        """Its endpoints."""
        routes = {
            "/.well-known/openid-configuration": self._metadata,
            "/jwks": self._jwks,
            "/token": self._token,
            "/userinfo": self._userinfo,
        }
        return Starlette(
            routes=[Route(path, self._held(answer), methods=["GET", "POST"]) for path, answer in routes.items()]
        )

    def access(self, sub: str, /, **claims: Any) -> str:
        """An access token for `/mcp`."""
        return self._signed(sub, aud=AUDIENCE, **{"client_id": "app", **claims})

    def id_token(self, sub: str, nonce: str, /, **claims: Any) -> str:
        """An ID token that is good, but for what is given."""
        without = [name for name, value in claims.items() if value is None]
        return self._signed(sub, without=without, **{"aud": PAGES, "nonce": nonce, **claims})

    def grant(self, id_token: object, **more: Any) -> str:
        """A code for this ID token."""
        code = secrets.token_urlsafe(8)
        body = {"access_token": "opaque-access-token-5f1e", "token_type": "Bearer", "id_token": id_token, **more}
        self.tokens[code] = lambda: JSONResponse(body)
        return code

    def _signed(self, sub: str, /, *, without: Sequence[str] = (), **claims: Any) -> str:
        by: Signer = claims.pop("by", self.signer)
        claims = {"iss": self.issuer, "sub": sub, **claims}
        return by.token(without=["email", "email_verified", *without], **claims)

    def _held(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def held(request: Request) -> Response:
            self.asked[request.url.path] += 1
            if self.answering is not None:
                await self.answering.wait()
            return Response(status_code=503) if self.is_down else await answer(request)

        return held

    async def _metadata(self, _: Request) -> Response:
        endpoints = {name: f"{self.issuer}/{name.split('_')[0]}" for name in ("authorization_endpoint", "jwks_uri")}
        endpoints |= {"token_endpoint": f"{self.issuer}/token"}
        if self.userinfo is not None:
            endpoints |= {"userinfo_endpoint": f"{self.issuer}/userinfo"}
        return JSONResponse({"issuer": self.issuer, **endpoints, **self.metadata})

    async def _jwks(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.signer.published]})

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        self.forms.append({**form, "authorization": request.headers.get("authorization", "")})
        answer = self.tokens.pop(form.get("code", ""), None)  # a code counts once
        return JSONResponse({"error": "invalid_grant"}, 400) if answer is None else answer()

    async def _userinfo(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer opaque-access-token-5f1e"
        return JSONResponse(self.userinfo)


@asynccontextmanager
async def told_provider() -> AsyncGenerator[ToldProvider]:
    """One that is up."""
    found = ToldProvider()
    async with serving(found.app) as url:
        found.issuer = url.removesuffix("/mcp")
        yield found


# --- a browser


class _Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.words: list[str] = []
        self.fields: dict[str, list[str]] = {}
        self.forms: list[str] = []  # where they go
        self._typing: str | None = None  # the textarea that is open
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        name, value = found.get("name") or "", found.get("value") or ""
        if tag == "form":
            self.forms.append(found.get("action") or "")
        elif tag == "textarea":
            self._typing = name
            self.fields[name] = [""]
        elif tag == "input" and (found["type"] not in {"radio", "checkbox"} or "checked" in found):
            self.fields.setdefault(name, []).append(value)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._typing = None

    def handle_data(self, data: str) -> None:
        if self._typing is None:
            self.words.append(data)
        else:
            self.fields[self._typing][0] += data


@dataclass(frozen=True, slots=True)
class Shown:
    """One response as a browser shows it."""

    response: httpx2.Response
    url: str

    @property
    def status(self) -> int:
        """Its status."""
        return self.response.status_code

    @property
    def html(self) -> _Reader:
        """Its markup, read."""
        return _Reader(self.response.text)

    @property
    def text(self) -> str:
        """What a person reads, on one line."""
        return " ".join(" ".join(self.html.words).split())

    @property
    def fields(self) -> Mapping[str, Sequence[str]]:
        """What the form would send without a change."""
        return self.html.fields

    @property
    def buttons(self) -> Sequence[str]:
        """The values of the buttons of the answer."""
        return [str(each["value"]) for tag, each in self.html.tags if tag == "button" and "value" in each]

    @property
    def links(self) -> Sequence[str]:
        """Where its links lead."""
        return [str(each["href"]) for tag, each in self.html.tags if tag == "a"]

    @property
    def location(self) -> str:
        """Where it redirects to, as a browser reads it."""
        return urljoin(self.url, self.response.headers["location"])


@dataclass(slots=True, kw_only=True)
class Browser:
    """A browser of one person."""

    http: httpx2.AsyncClient
    home: str  # the public address of the server
    at: str  # where it listens; a proxy in front strips the path of `home`
    provider: ToldProvider
    cookies: dict[str, str] = field(default_factory=dict[str, str])

    async def send(
        self,
        verb: str,
        url: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str | None] | None = None,
    ) -> Shown:
        """One request; a header that is None is left out."""
        parts = urlsplit(self.home)
        is_full = url.startswith(f"{parts.path}/") or "://" in url  # otherwise it is one of this server's paths
        where = urljoin(self.home, url) if is_full else f"{self.home}{url}"
        assert where.startswith(f"{self.home}/"), where
        sent: dict[str, str | None] = {"host": parts.netloc, "sec-fetch-site": "same-origin", **(headers or {})}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items()) + (
                f"; {extra}" if (extra := sent.get("cookie")) else ""
            )
        if body or verb == "POST":
            sent.setdefault("content-type", "application/x-www-form-urlencoded")
        kept = {name: value for name, value in sent.items() if value is not None}
        reply = await self.http.request(verb, f"{self.at}{where.removeprefix(self.home)}", content=body, headers=kept)
        self._keep(reply)
        return Shown(reply, where)

    def _keep(self, reply: httpx2.Response) -> None:
        for line in reply.headers.get_list("set-cookie"):
            for name, cookie in SimpleCookie(line).items():
                assert name.startswith("__Host-"), line
                found = {name: cookie[name] for name in ("secure", "httponly", "path", "domain", "samesite")}
                assert found == {"secure": True, "httponly": True, "path": "/", "domain": "", "samesite": "lax"}, line
                if cookie["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = cookie.value

    async def get(self, url: str = "/approvals") -> Shown:
        """A page, after all redirects within this server."""
        shown = await self.send("GET", url)
        for _ in range(5):
            if shown.status != 303 or not shown.location.startswith(self.home):
                break
            shown = await self.send("GET", shown.location)
        return shown

    async def post(self, url: str, data: Mapping[str, Any], **options: Any) -> Shown:
        """A form."""
        return await self.send("POST", url, body=urlencode(dict(data), doseq=True).encode(), **options)

    async def press(self, shown: Shown, action: str, **typed: str | Sequence[str]) -> Shown:
        """Fill in fields of the page (by their names in the schema), press a button, and see what follows."""
        data = {**shown.fields, **{f"answer.{name}": value for name, value in typed.items()}, "action": action}
        found = await self.post(shown.html.forms[-1], data)
        return await self.get(found.location) if found.status == 303 else found

    async def log_in(self, sub: str, to: str = "/approvals", **claims: Any) -> Shown:
        """Log in, by way of the page that is wanted; what is shown then. `groups` is a claim like others."""
        shown = await self.get(to)
        return await self.get(await self.callback(shown, lambda nonce: self.provider.id_token(sub, nonce, **claims)))

    async def callback(self, shown: Shown, made: Callable[[str], object]) -> str:
        """The address that the provider sends the browser back to, with a code for this ID token."""
        assert shown.location.startswith(self.provider.issuer), shown.location
        asked = {name: value[0] for name, value in parse_qs(urlsplit(shown.location).query).items()}
        code = self.provider.grant(made(asked["nonce"]))
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"


# --- the server


@dataclass(slots=True, kw_only=True)
class Office:
    """A server with the pages, and all who come."""

    home: str
    at: str
    sidecar: Sidecar
    provider: ToldProvider
    http: httpx2.AsyncClient
    audit: Sequence[Record]

    def browser(self) -> Browser:
        """A new one, without cookies."""
        return Browser(http=self.http, home=self.home, at=self.at, provider=self.provider)

    async def manager(self, sub: str = "bob") -> Browser:
        """The browser of a release manager, who has logged in."""
        found = self.browser()
        assert (await found.log_in(sub, groups=[MANAGERS])).status == 200
        return found

    def peer(self, sub: str = "alice", **claims: Any) -> Peer:
        """Somebody with an MCP client."""
        takes: Mapping[str, Any] = {**TASKS, "elicitation": {"form": {}, "url": {}}}
        return Peer(self.http, f"{self.at}/mcp", takes, token=self.provider.access(sub, **claims))

    async def requested(self, tool: str = "deploy", sub: str = "alice", **arguments: Any) -> str:
        """The id of a new task."""
        reply = await self.peer(sub).call(tool, arguments or {"version": "1.4"})
        return str(reply.result["taskId"])

    @property
    def executions(self) -> Executions:
        """What is behind the service."""
        return self.sidecar.workflows.service._executions  # pyright: ignore[reportPrivateUsage]

    def link(self, task_id: str, key: str = START_KEY) -> str:
        """The path of a question."""
        url = self.executions.page_url(task_id, key)
        assert url is not None
        return url.removeprefix(self.home)


class _Recording(Exporters):
    """It keeps the records of the audit, and exports nothing."""

    def __init__(self) -> None:
        super().__init__(name="tests", version="1")
        self.records: list[Record] = []

    @property
    def audit(self) -> Audit:
        """The list."""
        return self.records.append


@asynccontextmanager
async def office(
    folder: Path,
    provider: ToldProvider,
    *,
    tools: Mapping[str, Mapping[str, Any]] = TOOLS,
    auth: Mapping[str, Any] | None = None,
    web: Mapping[str, Any] | None = None,
    authorizer: str | None = None,
    store: str = "sqlite:///tasks.db",
    home: str | None = None,
    engine: str | None = None,
    host: str = "127.0.0.1",
) -> AsyncGenerator[Office]:
    """The pages of a server with an engine in memory of its own, or of this name; `home`: its public address."""
    port = free_port()
    at = f"http://127.0.0.1:{port}"
    settings: Mapping[str, Any] = {
        "server": {
            "name": "tests",
            **({} if home is None else {"public_url": home}),
            **({} if authorizer is None else {"authorizer": authorizer}),
            "auth": {"issuers": [{"issuer": provider.issuer, "audience": AUDIENCE}], **(auth or {})},
            "web": {"issuer": provider.issuer, "client_id": PAGES, "client_secret": SECRET, **(web or {})},
        },
        "store": store,
        "engines": {"here": {"adapter": "memory", "name": engine or str(folder)}},
        "tools": {name: {"engine": "here", **tool} for name, tool in tools.items()},
        "limits": dict.fromkeys(("polls_per_minute", "creates_per_minute", "failed_lookups_per_minute")),
    }
    path = folder / "workflows.yaml"
    path.write_text(json.dumps(settings))
    config = load_config(path, {})
    exporters = _Recording()
    sidecar = build(config, exporters=exporters)
    async with (
        serving(http_app(sidecar, config, host, port), port=port),
        httpx2.AsyncClient(timeout=60, follow_redirects=False) as http,
    ):
        yield Office(home=home or at, at=at, sidecar=sidecar, provider=provider, http=http, audit=exporters.records)


async def refuses_carol(wish: AccessRequest) -> bool:
    """An authorizer that lets everybody but carol answer."""
    return wish.verb is not Verb.ANSWER or wish.principal.subject != "carol"
