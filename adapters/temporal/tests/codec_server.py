"""A real codec server for tests: AES-GCM behind the protocol of Temporal's codec servers."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import uvicorn
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.json_format import MessageToJson, Parse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from tests.support.child_processes import free_port

ENCRYPTED = b"binary/encrypted"


class Encryption(PayloadCodec):
    """Whole payloads, encrypted: nobody without the key can read anything."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt(payload) for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        nonce = os.urandom(12)
        return Payload(
            metadata={"encoding": ENCRYPTED},
            data=nonce + self._cipher.encrypt(nonce, payload.SerializeToString(), None),
        )

    def _decrypt(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCRYPTED:
            return payload
        return Payload.FromString(self._cipher.decrypt(payload.data[:12], payload.data[12:], None))


@dataclass(slots=True)
class CodecServer:
    """What runs, and what it was asked."""

    port: int
    codec: PayloadCodec
    token: str = "Bearer hush-hush"
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # path, X-Namespace
    broken: int | None = None  # the status of every answer, for a while
    silent: bool = False  # no answer at all, for a while
    stopping: anyio.Event = field(default_factory=anyio.Event)
    garbled: bytes | None = None  # what it answers instead, for a while

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: Request) -> Response:
        self.asked.append((request.url.path, request.headers.get("x-namespace", "")))
        if self.silent:
            await self.stopping.wait()
        if self.broken or request.headers.get("authorization") != self.token:
            return Response(f"not with {request.headers.get('authorization')}", self.broken or 401)
        if self.garbled is not None:
            return Response(self.garbled)
        payloads = Parse(await request.body(), Payloads()).payloads
        verbs: dict[str, Callable[..., object]] = {
            "encode": self.codec.encode_wrapper,
            "decode": self.codec.decode_wrapper,
        }
        coded = Payloads(payloads=payloads)
        await verbs[request.url.path.rpartition("/")[2]](coded)  # type: ignore[misc]  # both are coroutine functions
        return Response(MessageToJson(coded), media_type="application/json")


@asynccontextmanager
async def codec_server(codec: PayloadCodec) -> AsyncGenerator[CodecServer]:
    """A codec server on a free port, as long as this is entered."""
    served = CodecServer(free_port(), codec)
    routes = [Route("/{path:path}", served.answer, methods=["POST"])]
    config = uvicorn.Config(Starlette(routes=routes), port=served.port, log_level=logging.CRITICAL, lifespan="off")
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve)
        with anyio.fail_after(60):
            while not server.started:  # it has no event for that
                await anyio.sleep(0.01)
        yield served
        served.stopping.set()
        server.should_exit = True
