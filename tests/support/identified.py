"""A sidecar that asks who it is, over real HTTP: its settings, its tokens, its callers of both eras."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from mcp_workflows.access.audit import Record
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.child_processes import free_port
from tests.support.configured import written
from tests.support.served import Peer, serving
from tests.support.tokens import ISSUER, KeyServer, Signer, signer

GOOD = signer("good")
MEMORY = {"adapter": "memory"}
TOOLS: Mapping[str, Mapping[str, Any]] = {name: {"workflow": name} for name in ("echo", "forever", "ask")}


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What is served, and the way in."""

    url: str
    sidecar: Sidecar
    http: httpx2.AsyncClient
    denied: list[Record]

    def token(self, sub: str | None = "alice", *, by: Signer = GOOD, **claims: Any) -> str:
        """One that is good here, but for what is given."""
        without = ["email", "email_verified", *(["sub"] if sub is None else [])]
        return by.token(without=without, **_whole(claims, aud=self.url, sub=sub, client_id="app"))

    def peer(self, token: str | None = None) -> Peer:
        """A caller of 2026-07-28."""
        return Peer(self.http, self.url, token=token)

    async def ping(self, token: str | None = None, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """One request, and what HTTP says to it."""
        async with self.peer(token).response("tools/list", headers=headers) as response:
            await response.aread()
            return response


def _whole(given: Mapping[str, Any], **usual: Any) -> dict[str, Any]:
    return {**usual, **given}


def jwks(server: KeyServer, path: str, *signers: Signer) -> Mapping[str, Any]:
    """The settings of an issuer that publishes these keys at a path."""
    return {"issuer": ISSUER, "jwks_url": server.publish(path, *(signers or (GOOD,)))}


@asynccontextmanager
async def house(folder: Path, auth: Mapping[str, Any], **server: Any) -> AsyncGenerator[House]:
    """A sidecar of the engine in memory that lets in by these settings."""
    config = load_config(written(folder, "memory", MEMORY, TOOLS, {"auth": auth, **server}), {})
    sidecar, port = build(config), free_port()
    denied: list[Record] = []
    assert sidecar.authenticator is not None
    sidecar.authenticator.audit = denied.append
    async with (
        serving(http_app(sidecar, config, "127.0.0.1", port), port=port) as url,
        httpx2.AsyncClient() as http,
    ):
        yield House(url=url, sidecar=sidecar, http=http, denied=denied)


def challenge(response: httpx2.Response) -> Sequence[str]:
    """The parts of `WWW-Authenticate`."""
    return response.headers["www-authenticate"].removeprefix("Bearer ").split(", ")
