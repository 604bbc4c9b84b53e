"""A scripted model for hosts: it makes the calls that its prompt names, and records the requests.

It speaks the APIs of three providers. It also relays and records the messages of the host to our server over HTTP.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

JSON: TypeAlias = Any  # of APIs that have no types here
Name: TypeAlias = tuple[str | None, str]
"""A tool as the host offers it: its namespace, if the API has them, and its name."""
Turn: TypeAlias = tuple[str, str]
"""A turn of a conversation: its role, `user` or `tool`, and its text."""

FOLLOW: Final = "follow"  # make the calls that the results name, until a result says to ask the user, or names no call
ANSWER: Final = "answer"  # make the call that the last result names, as if the user had answered
TASK_ID: Final = "$taskId"  # as an argument: the last task id in the results
YAML_BLOCK: Final = "$yaml"  # as an argument: the last block of YAML in the results
_MARKER: Final = "play: "
_NEXT: Final = re.compile(r"call (task_\w+|my_tasks) with [^{}\n]*?(?=\{)")
_YAML: Final = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TASK_ID_PATTERN: Final = re.compile(r"\b[A-Za-z0-9_-]{40}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to the model: the tools on offer, the last prompt, and the results of tools before and since."""

    at: float  # monotonic seconds
    tools: Sequence[Name]
    prompt: str
    before: Sequence[str]
    results: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a tool."""

    tool: Name
    arguments: Mapping[str, JSON]
    id: str


def prompt_of(play: Sequence[object]) -> str:
    """Return the prompt for these steps: calls (`call` and `arguments`), `FOLLOW` and `ANSWER`."""
    return _MARKER + json.dumps(play)


def reply_to(request: Request) -> Call | str:
    """Return the next call that the prompt names, or a closing text after the last."""
    _, found, written = request.prompt.partition(_MARKER)
    if not (found and request.tools):
        return "A title"  # hosts also want a name for the conversation
    play: Sequence[JSON] = json.JSONDecoder().raw_decode(_unescaped(written))[0]  # a host may quote the prompt again
    seen = [*request.before, *request.results]
    at = len(request.results)
    step: JSON = play[at] if at < len(play) else play[-1] if play[-1] == FOLLOW else None
    if step in (FOLLOW, ANSWER) and seen:
        return _named_call(request, _unescaped(seen[-1]), answered=step == ANSWER)
    if step in (FOLLOW, ANSWER, None):
        return _closing_text(seen)
    found_of = {TASK_ID: _TASK_ID_PATTERN.findall("\n".join(seen)), YAML_BLOCK: _YAML.findall("\n".join(seen))}
    arguments = {key: [value, *found_of.get(value, ())][-1] for key, value in step["arguments"].items()}
    return _call(request, step["call"], arguments)


def _named_call(request: Request, text: str, *, answered: bool) -> Call | str:
    found = _NEXT.search(text)
    if found is None or ("ask the user" in text and not answered):
        return _closing_text([text])
    try:
        arguments, _ = json.JSONDecoder().raw_decode(text[found.end() :])
    except json.JSONDecodeError:
        return f"The next call cannot be read: {text[found.start() : found.start() + 200]}"
    return _call(request, found[1], arguments)


def _call(request: Request, tool: str, arguments: Mapping[str, JSON]) -> Call | str:
    offered = [name for name in request.tools if name[1] == tool or name[1].endswith(f"_{tool}")]
    if not offered:
        return f"There is no tool {tool}."
    return Call(tool=offered[0], arguments=arguments, id=f"call_{time.monotonic_ns()}")


def _closing_text(seen: Sequence[str]) -> str:
    return f"The tool said: {_unescaped(seen[-1])[:300]}" if seen else "The tools said nothing."


def _unescaped(text: str) -> str:
    """Return a part of a JSON text without its escapes."""
    return text.replace('\\"', '"').replace("\\n", "\n")


# --- the APIs


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The requests and replies of one provider's API."""

    tools: Callable[[JSON], Iterator[Name]]
    turns: Callable[[JSON], Iterator[Turn]]
    events: Callable[[Call | str], Iterator[tuple[str, JSON]]]  # name and data


def _text_of(content: JSON) -> str:
    """Return a content that is text, or a list of parts with text."""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or ())


def _response_tools(body: JSON) -> Iterator[Name]:
    for tool in body.get("tools", ()):
        if tool["type"] == "namespace":
            yield from ((tool["name"], each["name"]) for each in tool["tools"])
        elif tool["type"] == "function":
            yield None, tool["name"]


def _response_turns(body: JSON) -> Iterator[Turn]:
    for item in body["input"]:
        if item["type"] == "message" and item["role"] == "user":
            yield "user", _text_of(item["content"])
        elif item["type"] == "function_call_output":
            yield "tool", _text_of(item["output"])


def _response_events(reply: Call | str) -> Iterator[tuple[str, JSON]]:
    item: JSON
    if isinstance(reply, str):
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": reply}]}
    else:
        space, name = reply.tool
        item = {"type": "function_call", "call_id": reply.id, "name": name, "arguments": json.dumps(reply.arguments)}
        item |= {"namespace": space} if space else {}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    response = {"id": "response"}
    yield "response.created", {"type": "response.created", "response": response}
    yield "response.output_item.done", {"type": "response.output_item.done", "item": {"id": "item", **item}}
    yield "response.completed", {"type": "response.completed", "response": {**response, "usage": usage}}


def _chat_tools(body: JSON) -> Iterator[Name]:
    return ((None, tool["function"]["name"]) for tool in body.get("tools", ()))


def _chat_turns(body: JSON) -> Iterator[Turn]:
    return ((each["role"], _text_of(each["content"])) for each in body["messages"] if each["role"] in {"user", "tool"})


def _chat_events(reply: Call | str) -> Iterator[tuple[str, JSON]]:
    delta: JSON = {"role": "assistant"}
    if isinstance(reply, str):
        delta["content"] = reply
    else:
        function = {"name": reply.tool[1], "arguments": json.dumps(reply.arguments)}
        delta["tool_calls"] = [{"index": 0, "id": reply.id, "type": "function", "function": function}]
    end = "stop" if isinstance(reply, str) else "tool_calls"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunk = {"id": "chat", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    yield "", {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield "", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": usage}


def _gemini_tools(body: JSON) -> Iterator[Name]:
    return ((None, each["name"]) for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ()))


def _gemini_turns(body: JSON) -> Iterator[Turn]:
    for part in (part for content in body["contents"] if content["role"] == "user" for part in content["parts"]):
        if "functionResponse" in part:
            given = part["functionResponse"]["response"]
            yield "tool", given["output"] if isinstance(given.get("output"), str) else json.dumps(given)
        elif "text" in part:
            yield "user", part["text"]


def _gemini_events(reply: Call | str) -> Iterator[tuple[str, JSON]]:
    part: JSON = {"text": reply}
    if isinstance(reply, Call):
        part = {"functionCall": {"id": reply.id, "name": reply.tool[1], "args": reply.arguments}}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    yield "", {"candidates": [candidate], "usageMetadata": usage}


APIS: Final[Mapping[str, Api]] = {
    "/responses": Api(tools=_response_tools, turns=_response_turns, events=_response_events),
    "/chat/completions": Api(tools=_chat_tools, turns=_chat_turns, events=_chat_events),
    "enerateContent": Api(tools=_gemini_tools, turns=_gemini_turns, events=_gemini_events),
}
"""The APIs by the end of the path."""


def request_of(api: Api, body: JSON, at: float) -> Request:
    """Return the request of this body to the model."""
    turns = list(api.turns(body))
    prompts = [place for place, (role, text) in enumerate(turns) if role == "user" and _MARKER in text]
    place = prompts[-1] if prompts else len(turns)
    results = [(where > place, text) for where, (role, text) in enumerate(turns) if role == "tool"]
    return Request(
        at=at,
        tools=list(api.tools(body)),
        prompt=turns[place][1] if prompts else "",
        before=[text for since, text in results if not since],
        results=[text for since, text in results if since],
    )


# --- the server


class ScriptedModel:
    """A server of the APIs on a port of the loopback, and of a relay to `target` at `/relay`. Use it with `with`.

    Each body that a host sends to `/relay` becomes a line of the file `sent`.
    """

    def __init__(self, port: int, target: str, sent: Path) -> None:
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{port}"
        handler = type("_Handler", (_Handler,), {"model": self, "target": urlsplit(target), "sent": sent})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    model: ScriptedModel
    target: Any
    sent: Path

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the class names it
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_DELETE(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        path = urlsplit(self.path).path
        api = next((api for end, api in APIS.items() if path.endswith(end)), None)
        with suppress(OSError, http.client.HTTPException):  # the host has gone, or our server
            if path == "/relay":
                self._relay(body)
            elif api is None:
                self.send_error(404)
            else:
                self._reply(api, json.loads(body), streamed=not path.endswith(":generateContent"))

    def _reply(self, api: Api, body: JSON, *, streamed: bool) -> None:
        request = request_of(api, body, time.monotonic())
        self.model.requests.append(request)
        events = list(api.events(reply_to(request)))
        text = "".join(f"{f'event: {name}' if name else ''}\ndata: {json.dumps(data)}\n\n" for name, data in events)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streamed else "application/json")
        self.end_headers()
        self.wfile.write((text.lstrip() if streamed else json.dumps(events[0][1])).encode())

    def _relay(self, body: bytes) -> None:
        if body:
            with self.sent.open("ab") as file:
                file.write(body.strip() + b"\n")
        connection = http.client.HTTPConnection(self.target.hostname, self.target.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in {"host", "connection"}}
        headers["Host"] = self.target.netloc
        connection.request(self.command, self.target.path, body, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        self.end_headers()
        try:
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
        finally:
            connection.close()
