"""The client's side of `make bench`: raw sockets, so that what is measured is the server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

VERSION = "2026-07-28"
IN_CORE = "2025-11-25"  # the revision with tasks in core
_HEADERS = (
    "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    "accept: application/json, text/event-stream\r\nmcp-protocol-version: " + VERSION + "\r\n"
    "mcp-method: {method}\r\nmcp-name: {name}\r\ncontent-length: {length}\r\n\r\n"
)
_META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}


class BadReplyError(Exception):
    """The server said no, or nothing that can be read."""


class Wire:
    """One kept-alive connection to a server that speaks MCP; every request has an id of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._ids = count(1)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, method: str, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """One request, `name` being its Mcp-Name, and its result."""
        self._write(method, name, params)
        answer: Mapping[str, Any] = [frame for frame in self._frames() if "id" in frame][-1]  # to the end of the stream
        if "result" not in answer:
            raise BadReplyError(f"{method} {name}: {answer.get('error')}")
        result: Mapping[str, Any] = answer["result"]
        return result

    def listen(self, task_ids: list[str]) -> Iterator[Mapping[str, Any]]:
        """The frames of a `subscriptions/listen` stream, as they come."""
        self._write("subscriptions/listen", "", {"notifications": {"taskIds": task_ids}})
        return self._frames()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """`tools/call`."""
        return self.send("tools/call", tool, {"name": tool, "arguments": arguments})

    def get(self, task_id: str) -> Mapping[str, Any]:
        """`tasks/get`."""
        return self.send("tasks/get", task_id, {"taskId": task_id})

    def _write(self, method: str, name: str, params: Mapping[str, Any]) -> None:
        message: Mapping[str, Any] = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        body = json.dumps({**message, "params": {**params, "_meta": _META}}).encode()
        head = _HEADERS.format(port=self._port, method=method, name=name, length=len(body))
        self._socket.sendall((head if name else head.replace("mcp-name: \r\n", "")).encode() + body)

    def _frames(self) -> Iterator[Mapping[str, Any]]:
        """The JSON of the response: one, or one per event of a stream."""
        yield from self._messages(self._head())

    def _messages(self, head: bytes) -> Iterator[Mapping[str, Any]]:
        if b"text/event-stream" not in head:
            yield json.loads(b"".join(self._body(head)))
            return
        text = b""
        for chunk in self._body(head):
            *lines, text = (text + chunk).split(b"\n")
            yield from (json.loads(line[5:]) for line in lines if line.startswith(b"data:") and line[5:].strip())

    def _body(self, head: bytes) -> Iterator[bytes]:
        if b"transfer-encoding: chunked" in head:
            yield from self._chunks()
        else:
            yield self._take(int(_header(head, b"content-length") or 0))

    def _head(self) -> bytes:
        """The status and the headers of a response, in lower case."""
        return self._until(b"\r\n\r\n").lower()

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._until(b"\r\n"), 16):
            yield self._take(size)
            self._take(2)
        self._take(2)

    def _until(self, end: bytes) -> bytes:
        while end not in self._rest:
            self._read()
        found, _, self._rest = self._rest.partition(end)
        return found

    def _take(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._read()
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _read(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise BadReplyError("the server hung up")
        self._rest += data


class Session(Wire):
    """A connection of a session of 2025-11-25; without its id, a session is begun."""

    def __init__(self, port: int, session: str = "") -> None:
        super().__init__(port)
        self._session = session
        if not session:
            client: Mapping[str, Any] = {"clientInfo": _META["io.modelcontextprotocol/clientInfo"], "capabilities": {}}
            self.send("initialize", "", {"protocolVersion": IN_CORE, **client})
            self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
            b"".join(self._body(self._head()))

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """`tools/call` that makes a task."""
        created = self.send("tools/call", tool, {"name": tool, "arguments": arguments, "task": {}})
        task: Mapping[str, Any] = created["task"]
        return task

    def result(self, task_id: str) -> Mapping[str, Any]:
        """`tasks/result`, which answers when the task has ended."""
        return self.send("tasks/result", task_id, {"taskId": task_id})

    def again(self) -> Session:
        """Another connection of the session: a server may close one on which nothing happens."""
        return Session(self._port, self._session)

    def stream(self) -> Iterator[Mapping[str, Any]]:
        """Turn this connection into the stream of a GET, which is open when this returns."""
        self._socket.sendall(self._request("GET", b"", "text/event-stream"))
        return self._messages(self._head())

    def _write(self, method: str, name: str, params: Mapping[str, Any]) -> None:
        self._post({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    def _post(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._socket.sendall(self._request("POST", body, "application/json, text/event-stream"))

    def _request(self, verb: str, body: bytes, accept: str) -> bytes:
        known = f"mcp-session-id: {self._session}\r\nmcp-protocol-version: {IN_CORE}\r\n" if self._session else ""
        head = f"{verb} /mcp HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\naccept: {accept}\r\n{known}"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    def _head(self) -> bytes:
        head = super()._head()
        self._session = self._session or _header(head, b"mcp-session-id").decode()
        return head


def _header(head: bytes, name: bytes) -> bytes:
    """The value of a header; nothing if it is not there."""
    lines = (line for line in head.split(b"\r\n") if line.startswith(name + b":"))
    return next(lines, b"").partition(b":")[2].strip()
