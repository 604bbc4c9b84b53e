"""A counting stub of AWS's API: `python -m scripts.bench_stepfunctions_stub PORT`, on core 1.

It speaks AWS JSON 1.0 as Step Functions and SQS do. Beside that, `POST /control` says what its executions do next, and
`GET /report` what was asked. It is fast, so that what is measured is who asks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import uvloop

from scripts.bench_rounds import pin
from scripts.bench_stepfunctions_account import Account, RefusedError, Reply

SAMPLE_EVERY = 1.0  # seconds
LOOK_EVERY = 0.02  # seconds between two looks into the queue, while somebody waits for messages


class Stub:
    """The account behind HTTP, as far away as it is told to be."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.account = Account(loop.call_later)
        self.latency = 0.0  # seconds
        self._loop = loop
        self._control: Mapping[str, Callable[[Any], object]] = {
            "seed": lambda given: self.account.seed(given["machine"], given["names"]),
            "end": self.account.end,
            "ask": self.account.ask,
            "latency": lambda seconds: setattr(self, "latency", seconds),
            "lose": lambda many: setattr(self.account, "lose", many),
            "forget": lambda _: self.account.forget(),
        }
        self._sample()

    def _sample(self) -> None:
        self.account.sample()
        self._loop.call_later(SAMPLE_EVERY, self._sample)

    def answer(self, head: bytes, body: bytes, write: Callable[[bytes | None], None]) -> None:
        """Answer one request, now or later; `write(None)` hangs up."""
        if head.startswith(b"GET /report"):
            write(_http(200, json.dumps(self.account.report())))
        elif head.startswith(b"POST /control"):
            done = {name: self._control[name](given) for name, given in json.loads(body).items()}
            write(_http(200, json.dumps(done)))
        else:
            self._call(_target(head), cast("Mapping[str, Any]", json.loads(body or b"{}")), write)

    def _call(self, api: str, given: Mapping[str, Any], write: Callable[[bytes | None], None]) -> None:
        if api == "ReceiveMessage" and not self.account.queue and given.get("WaitTimeSeconds"):
            self._wait(self._loop.time() + given["WaitTimeSeconds"], given, write)
            return
        answer = self._reply(api, given)
        reply = None if api == "StartExecution" and self.account.loses() else answer
        self._loop.call_later(self.latency, write, reply) if self.latency else write(reply)

    def _wait(self, until: float, given: Mapping[str, Any], write: Callable[[bytes | None], None]) -> None:
        """A long poll."""
        if self.account.queue or self._loop.time() >= until:
            write(self._reply("ReceiveMessage", given))
        else:
            self._loop.call_later(LOOK_EVERY, self._wait, until, given, write)

    def _reply(self, api: str, given: Mapping[str, Any]) -> bytes:
        try:
            return _http(200, _text(self.account.reply(api, given)))
        except RefusedError as error:
            return _http(400, json.dumps({"__type": error.code, "message": str(error)}))


class Connection(asyncio.Protocol):
    """One kept-alive connection of HTTP/1.1; who sends two requests at once is answered out of order."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Whatever part of a request."""
        self._rest += data
        while b"\r\n\r\n" in self._rest:
            head, _, rest = self._rest.partition(b"\r\n\r\n")
            length = int(_header(head, b"content-length") or 0)
            if len(rest) < length:
                return
            self._rest = rest[length:]
            self._stub.answer(head, rest[:length], self._write)

    def _write(self, reply: bytes | None) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if reply is None:
            self._transport.abort()
        else:
            self._transport.write(reply)


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


def _target(head: bytes) -> str:
    """`AWSStepFunctions.DescribeExecution`: the API."""
    return _header(head, b"x-amz-target").decode().rpartition(".")[2]


def _text(reply: Reply) -> str:
    return reply if isinstance(reply, str) else json.dumps(reply)


def _http(code: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {code} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(port: int) -> None:
    """For ever."""
    loop = asyncio.get_running_loop()
    stub = Stub(loop)
    server = await loop.create_server(lambda: Connection(stub), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Serve on core 1."""
    pin(1)
    uvloop.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
