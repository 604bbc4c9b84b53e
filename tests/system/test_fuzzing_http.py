"""Whole HTTP requests of any kind: nothing breaks, hangs, or tells one user about another's tasks."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import pytest
from hypothesis import strategies as st

from tests.support.fuzzed_server import MARK, TOKENS, Fuzzed, Request, check, fuzzed
from tests.support.fuzzing import NUMBERS, TEXT, VALUES, Fuzz, lengths, merged, odd
from tests.support.fuzzing import fuzz as fuzz
from tests.support.tokens import KeyServer, by_hand, signer
from tests.support.tokens import key_server as key_server

MODERN: Final = "2026-07-28"
OLD: Final = "2025-11-25"
METHODS: Final = (
    *("tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list", "tools/call", "tools/list"),
    *("resources/read", "resources/list", "subscriptions/listen", "initialize", "server/discover", "ping"),
    *("notifications/cancelled", "notifications/initialized", "logging/setLevel", "prompts/get", "tasks/", "TASKS/GET"),
    *("events/list", "events/poll", "events/stream", "events/subscribe", "events/unsubscribe"),
)
EVENTS: Final = ("task.ended", "task.input_required", "task.progress", "execution.ended", ".subscription")
URLS: Final = ("https://127.0.0.1:1/x", "http://127.0.0.1:1/", "https://[::1]/", "https://10.0.0.1", "https://u:p@h/")
SECRETS: Final = (f"whsec_{'A' * 44}", f"whsec_{'A' * 8}", "A" * 44, "whsec_")
TOOLS: Final = ("echo", "fail", "ask", "task_status", "task_answer", "task_cancel", "my_tasks", "open_questions", "no")
ACTIONS: Final = ("accept", "decline", "cancel")
META: Final = ("mcp-workflows/idempotencyKey", "claudecode/toolUseId", "taskId", "progressToken", "traceparent", "x")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, key_server: KeyServer) -> Iterator[Fuzzed]:
    """One sidecar for all of it; at the end bob's tasks are as they were, and nothing was logged as broken."""
    with fuzzed(tmp_path_factory.mktemp("fuzzed"), key_server) as found:
        before = found.of_bob()
        yield found
        assert found.of_bob() == before, "of what is another's nothing has changed"
        assert not found.broken.found, found.broken.found[:3]


def headers_of(text: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """A value that a header can carry: no line ends, as those would begin another."""
    return text.map(_sendable)


def _sendable(value: str) -> bytes:
    return value.encode("utf-8", "replace").translate(None, b"\r\n\x00")[:8000]


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any] = VALUES) -> st.SearchStrategy[Any]:
    """Good but for one in eight."""
    return st.integers(0, 7).flatmap(lambda number: good if number else bad)


def members(**likely: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with all of these members, most of them as they should be."""
    return st.fixed_dictionaries({name: mostly(good) for name, good in likely.items()})


def messages(target: Fuzzed, era: str) -> st.SearchStrategy[dict[str, Any]]:
    """A JSON-RPC message of an era that is nearly right."""
    task = st.sampled_from([*target.own, *target.foreign])
    answers = members(question=members(action=st.sampled_from(ACTIONS), content=members(answer=TEXT)))
    capabilities = members(
        extensions=st.just({"io.modelcontextprotocol/tasks": {}}), elicitation=st.sampled_from([{}, {"form": {}}])
    )
    envelope = members(
        **{
            "io.modelcontextprotocol/protocolVersion": st.just(era),
            "io.modelcontextprotocol/clientInfo": st.just({"name": "fuzz", "version": "0"}),
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }
    )
    more = st.dictionaries(st.sampled_from(META), TEXT | NUMBERS | VALUES, max_size=2)
    meta = st.builds(merged, more, envelope) if era == MODERN else more
    params = members(
        taskId=task,
        uri=task.map(lambda found: f"mcp-workflows://tasks/{found}/result"),
        name=st.sampled_from((*TOOLS, *EVENTS)),
        arguments=members(taskId=task, seconds=st.just(0), key=st.just("question"), content=members(answer=TEXT))
        | st.dictionaries(st.sampled_from(["taskId", "tool", "status"]), task | st.sampled_from([*TOOLS, "failed"])),
        delivery=members(mode=st.just("webhook"), url=st.sampled_from(URLS), secret=st.sampled_from(SECRETS)),
        inputResponses=answers,
        notifications=members(taskIds=st.lists(mostly(task), max_size=3)),
        _meta=meta,
    )
    rare = ["requestState", "cursor", "task", "maxAgeMs", "maxEvents", "ttlMs", "x"]
    some = st.dictionaries(st.sampled_from(rare), TEXT | VALUES | NUMBERS, max_size=1)
    whole = st.builds(merged, params, some)
    method = st.sampled_from(METHODS)
    return st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0"), "id": mostly(st.integers(1, 9)), "method": method, "params": mostly(whole)}
    )


def authorizations(target: Fuzzed) -> st.SearchStrategy[bytes | None]:
    """What somebody sends who is alice, or nobody, or would like to be bob."""
    token = signer("fuzzed").token(aud="workflows", sub="alice")
    changed = st.tuples(st.integers(0, len(token) - 1), st.sampled_from("aZ0_-.=")).map(
        lambda at: f"Bearer {token[: at[0]]}{at[1]}{token[at[0] + 1 :]}"
    )
    forged = st.tuples(
        odd(alg=st.sampled_from(["none", "RS256", "HS256"]), kid=st.just("fuzzed"), typ=TEXT), odd(sub=TEXT)
    )
    bad = [
        TEXT,
        TEXT.map(lambda text: f"Bearer {text}"),
        changed,
        forged.map(lambda parts: f"Bearer {by_hand(*(_plain(part) for part in parts))}"),
        st.sampled_from(["Bearer", "Bearer  ", "Basic YWxpY2U6eA==", f"bearer {TOKENS['bob'][:-1]}", "Bearer null"]),
    ]
    good = st.sampled_from(target.good).map(str.encode)
    return st.one_of(good, good, good, st.none(), headers_of(st.one_of(bad)))


def _plain(part: Any) -> Any:  # Any: JSON values
    """Without what JSON cannot write."""
    return json.loads(json.dumps(part, default=str).encode("utf-8", "replace"))


def requests(target: Fuzzed) -> st.SearchStrategy[Request]:
    """Half of them alice's, with something odd in the message; the others odd in all ways."""
    return st.one_of(*(near(target, era) for era in (MODERN, OLD)), far(target))


def near(target: Fuzzed, era: str) -> st.SearchStrategy[Request]:
    """By alice, and nearly right."""
    return st.builds(
        _request,
        authorization=st.sampled_from(target.good if era == MODERN else target.good[:1]).map(str.encode),
        version=st.just(era),
        session=st.just(target.session),
        body=messages(target, era),
        name=mostly(st.none(), encoded(TEXT)),
    )


def far(target: Fuzzed) -> st.SearchStrategy[Request]:
    """By anybody, and of any kind."""
    extra = st.sampled_from([b"x-forwarded-for", b"x-forwarded-user", b"last-event-id", b"mcp-session-id"])
    return st.builds(
        _request,
        verb=st.sampled_from(["POST"] * 8 + ["GET", "DELETE", "PUT", "OPTIONS", "HEAD"]),
        path=st.sampled_from(["/mcp"] * 8 + ["/mcp/", "/", "/engines/here", "/.well-known/x", "/mcp?a=%00"]),
        authorization=authorizations(target),
        version=st.sampled_from([MODERN, OLD, "2025-03-26", "2099-01-01", "", "x"]) | st.none(),
        session=st.sampled_from([target.session, "0" * 32, ""]) | st.none(),
        method=st.none() | st.sampled_from(METHODS) | headers_of(TEXT),
        name=st.none() | headers_of(TEXT) | encoded(TEXT),
        body=st.one_of(messages(target, MODERN), messages(target, OLD), VALUES),
        raw=mostly(st.none(), st.binary(max_size=50)),
        more=st.lists(st.tuples(extra, headers_of(TEXT)), max_size=1),
    )


def encoded(text: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """As clients send names that no header can carry."""
    return text.map(lambda value: b"=?base64?" + b64encode(value.encode("utf-8", "replace"))[:6000] + b"?=")


def _request(
    *,
    authorization: bytes | None,
    version: str | None,
    session: str | None,
    body: Any,  # a JSON value
    name: bytes | None,
    verb: str = "POST",
    path: str = "/mcp",
    method: str | bytes | None = None,
    raw: bytes | None = None,
    more: Sequence[tuple[bytes, bytes]] = (),
) -> Request:
    """`Mcp-Method` and `Mcp-Name` are as the body has them where nothing else is said."""
    if version == MODERN and isinstance(body, dict):
        message = cast("dict[str, Any]", body)
        method = message.get("method") if method is None else method
        name = _subject(message.get("params"), str(message.get("method"))) if name is None else name
    found = {
        b"host": b"127.0.0.1",
        b"accept": b"application/json, text/event-stream",
        b"content-type": b"application/json",
        b"authorization": authorization,
        b"mcp-protocol-version": _header(version),
        b"mcp-session-id": _header(session) if version != MODERN and verb != "DELETE" else None,
        b"mcp-method": _header(method),
        b"mcp-name": name,
    }
    headers = [(key, value) for key, value in found.items() if value is not None] + list(more)
    text = json.dumps(body).encode("utf-8", "replace")
    return Request(verb=verb, path=path, headers=headers, body=text if raw is None else raw)


def _subject(params: Any, method: str) -> bytes | None:  # Any: a JSON value
    """What such a request is about."""
    key = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(method, "taskId")
    found = cast("dict[str, Any]", params).get(key) if isinstance(params, dict) else None
    if not isinstance(found, str):
        return None
    plain = found.isascii() and found.isprintable() and found == found.strip()
    return found.encode() if plain else b"=?base64?" + b64encode(found.encode("utf-8", "replace"))[:6000] + b"?="


def _header(value: object) -> bytes | None:
    if isinstance(value, str):
        return _sendable(value)
    return value if isinstance(value, bytes) else None


@lengths(60)
def test_no_request_breaks_it_or_tells_of_others(target: Fuzzed, fuzz: Fuzz) -> None:
    def one(request: Request) -> None:
        check(request, target.send(request))

    fuzz(one, requests(target))


def test_the_server_that_is_fuzzed_has_something_to_tell(target: Fuzzed) -> None:
    assert MARK in json.dumps(target.of_bob())
