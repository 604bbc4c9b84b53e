"""The client of `make bench`: raw sockets, so that the time is the server's."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

VERSION = "2026-07-28"
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
    """An error, or a reply that cannot be read."""


class Wire:
    """A kept-alive connection to an MCP server; every request has a new id."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._ids = count(1)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, method: str, name: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request, `name` being its Mcp-Name, and return its result."""
        self._write(method, name, params)
        answer: Mapping[str, Any] = [frame for frame in self._frames() if "id" in frame][-1]  # to the end of the stream
        if "result" not in answer:
            raise BadReplyError(f"{method} {name}: {answer.get('error')}")
        result: Mapping[str, Any] = answer["result"]
        return result

    def listen(self, task_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the frames of a `subscriptions/listen` stream, as they come."""
        self._write("subscriptions/listen", "", {"notifications": {"taskIds": list(task_ids)}})
        return self._frames()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result of `tools/call`."""
        return self.send("tools/call", tool, {"name": tool, "arguments": arguments})

    def get(self, task_id: str) -> Mapping[str, Any]:
        """Return the result of `tasks/get`."""
        return self.send("tasks/get", task_id, {"taskId": task_id})

    def complete(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run a task to its result, asking again at once, and return its id."""
        task_id: str = self.call(tool, arguments)["taskId"]
        while (seen := self.get(task_id))["status"] == "working":
            pass
        if seen["status"] != "completed":
            raise BadReplyError(f"a task ended as {seen['status']}")
        return task_id

    def _write(self, method: str, name: str, params: Mapping[str, Any]) -> None:
        message: Mapping[str, Any] = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        body = json.dumps({**message, "params": {**params, "_meta": _META}}).encode()
        head = _HEADERS.format(port=self._port, method=method, name=name, length=len(body))
        self._socket.sendall((head if name else head.replace("mcp-name: \r\n", "")).encode() + body)

    def _frames(self) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON of the response: one value, or one for each event of a stream."""
        head = self._until(b"\r\n\r\n").lower()
        if b"text/event-stream" not in head:
            yield json.loads(b"".join(self._body(head)))
            return
        text = b""
        for chunk in self._body(head):
            *lines, text = (text + chunk).split(b"\n")
            yield from (json.loads(line[5:]) for line in lines if line.startswith(b"data:") and line[5:].strip())

    def _body(self, head: bytes) -> Iterator[bytes]:
        if b"transfer-encoding: chunked" not in head:
            lines = (line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            yield self._take(int(next(lines, b":0").partition(b":")[2]))
            return
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
            raise BadReplyError("the server closed the connection")
        self._rest += data
