"""Checks for `connect chatgpt`: what ChatGPT requires of a server, and what to enter there.

Sources, of November 2026: developers.openai.com/api/docs/guides/custom-mcp-server, and mcp-events and auth under
developers.openai.com/plugins/build; "Refresh tools" is reported by users at community.openai.com. None of this was
tested against ChatGPT itself.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import httpx2
import typer

from mcp_workflows.access.authn.verifier import metadata_urls
from mcp_workflows.errors import OperatorError
from mcp_workflows.events.endpoints import EventSettings, is_public
from mcp_workflows.sidecar.cli.app import say
from mcp_workflows.wire.events import EXTENSION
from mcp_workflows.wire.params import Params, object_of

_PLACE: Final = "in ChatGPT on the web: https://chatgpt.com/plugins, the plus button, Add custom MCP server"
_LIMITS: Final = """
What ChatGPT does, by its documentation; none of this was tested against ChatGPT itself:
- It receives events by webhook only, in Work chats and with dots. It has no tasks: it continues a task by its id.
- It reads tools and events once. After a change, choose "Refresh tools" on the plugin's page.
- It does not report a lost subscription. Ask it for my_tasks, which does."""
_WITHIN: Final = 10.0  # seconds
_DISCOVER: Final = """{"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}}"""
_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-method": "server/discover",
    "mcp-protocol-version": "2026-07-28",
}


def connect_chatgpt(name: str, url: str, events: EventSettings, variable: str) -> None:
    """Print the result of each check, and then what to enter; the environment variable `variable` may contain a token.

    Raises:
        OperatorError: a check failed.
    """
    failed = 0
    try:
        for what, holds, remedy in _checks(url, events, variable):
            say(f"ok     {what}" if holds else f"{'?      ' if holds is None else 'FAILS  '}{what}: {remedy}", err=True)
            failed += holds is False
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        say(f"FAILS  reachable: {error or type(error).__name__}: check that the server and its proxy run", err=True)
        failed += 1
    typer.echo(f"\n{_PLACE}:", err=True)
    typer.echo(f"Name: {name}\nServer URL: {url}\nAuthentication: OAuth")
    typer.echo(_LIMITS, err=True)
    if failed:
        raise OperatorError(f"\nChatGPT cannot use it yet: fix what FAILS ({failed})")


def _checks(url: str, events: EventSettings, variable: str) -> Iterator[tuple[str, bool | None, str]]:
    """Yield each requirement, whether it is met (None: unknown), and the remedy."""
    found = _addresses(url)
    is_reached = url.startswith("https://") and bool(found) and all(map(is_public, found))
    remedy = "serve it over https at a public address, through a proxy or a tunnel, and set server.public_url"
    yield f"public address: {url} is at {', '.join(found) or 'none'}", is_reached, remedy
    answer, token = _discovered(url), os.environ.get(variable)
    wants_login = answer.status_code == HTTPStatus.UNAUTHORIZED
    is_there = wants_login or answer.is_success
    yield f"reachable: HTTP {answer.status_code}", is_there, "the URL must be that of the server, with /mcp"
    if not is_there:
        return
    yield "login: callers need a token", wants_login, "set server.auth.issuers: webhooks are for identified callers"
    if wants_login:
        yield from _login(url, answer)
        answer = _discovered(url, token) if token else answer
    is_declared = None if wants_login and not token else EXTENSION in answer.text
    yield "events: declared", is_declared, f"to check this, put a valid token in the variable {variable}"
    yield "events: webhooks", events.allow != [], "server.events.allow allows no host: name hosts, or omit it"


def _login(url: str, answer: httpx2.Response) -> Iterator[tuple[str, bool, str]]:
    named = re.search(r'resource_metadata="([^"]+)"', answer.headers.get("www-authenticate", ""))
    resource = _json(named[1] if named else "")
    issuer = str((resource.get("authorization_servers") or [""])[0])
    remedy = "set server.auth.issuers, and set server.public_url to this URL without /mcp"
    yield "login: protected resource metadata (RFC 9728)", resource.get("resource") == url, remedy
    server: Params = next((found for each in metadata_urls(issuer) if (found := _json(each))), object_of(None))
    remedy = "the identity service must publish it"
    yield f"login: authorization server metadata (RFC 8414) of {issuer}", "token_endpoint" in server, remedy
    has_pkce = "S256" in (server.get("code_challenge_methods_supported") or ())
    yield "login: PKCE (S256)", has_pkce, "enable it at the identity service, which must publish it"
    registers = "registration_endpoint" in server or server.get("client_id_metadata_document_supported") is True
    remedy = "enable DCR or CIMD at the identity service, or enter your own client in ChatGPT"
    yield "login: registration of clients", registers, remedy


def _addresses(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(parts.hostname, parts.port or 443)})
    except (OSError, ValueError):
        return []


def _discovered(url: str, token: str | None = None) -> httpx2.Response:
    headers = {**_HEADERS, "authorization": f"Bearer {token}"} if token else _HEADERS
    return httpx2.post(url, content=_DISCOVER, headers=headers, timeout=_WITHIN)


def _json(url: str) -> Params:
    try:
        return object_of(httpx2.get(url, timeout=_WITHIN).json())
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        return {}
