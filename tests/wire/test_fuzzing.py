"""Whatever anybody sends is answered, or refused by name: what parses requests, cursors, headers and tokens, fuzzed."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Final

from hypothesis import strategies as st
from mcp.shared.inbound import decode_header_value

from mcp_workflows.access.authn.identity import ClaimsReader, Identity
from mcp_workflows.access.authn.issuers import read_header, read_issuer
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.errors import INVALID_PARAMS, TokenRefused
from mcp_workflows.receiver.task_tools.definitions import task_tools
from mcp_workflows.tasks.executions import read_cursor, write_cursor
from mcp_workflows.tasks.results import part_at
from mcp_workflows.wire import events
from mcp_workflows.wire import v2025_11_25 as in_core
from mcp_workflows.wire import v2026_07_28 as modern
from mcp_workflows.wire.commands import Call
from mcp_workflows.wire.params import task_id_of
from tests.support.fuzzing import NUMBERS, TEXT, VALUES, Fuzz, lengths, odd, refused
from tests.support.fuzzing import fuzz as fuzz
from tests.support.tokens import by_hand

KEY: Final = b"k" * 32
POSITION: Final = (datetime(2026, 11, 22, tzinfo=UTC), "a" * 40)
NOTHING: Final[dict[str, Any]] = {}
META: Final = odd(
    **{
        "mcp-workflows/idempotencyKey": TEXT,
        "claudecode/toolUseId": TEXT,
        "modelcontextprotocol.io/task": odd(taskId=TEXT),
        "taskId": TEXT,
        "traceparent": TEXT,
        "tracestate": TEXT,
        "progressToken": TEXT | st.integers(),
        "io.modelcontextprotocol/protocolVersion": st.just("2026-07-28"),
        "io.modelcontextprotocol/clientCapabilities": odd(
            extensions=odd(**{modern.EXTENSION: st.just(NOTHING)}), elicitation=odd(form=st.just(NOTHING))
        ),
    }
)
PARAMS: Final = odd(
    name=TEXT,
    arguments=odd(),
    task=odd(ttl=st.integers()),
    taskId=TEXT,
    cursor=TEXT,
    inputResponses=odd(question=odd(action=st.just("accept"), content=odd())),
    requestState=TEXT,
    notifications=odd(taskIds=st.lists(TEXT)),
    _meta=META,
)


@lengths(20)
def test_params_of_2026_07_28_are_understood_or_refused(fuzz: Fuzz) -> None:
    def check(params: Any) -> None:
        client = modern.client_of(params)
        for parse in (modern.parse_call, modern.parse_listen):
            refused(lambda: keeps(parse(params, client)))  # noqa: B023  # called at once
        for method in modern.TASK_METHODS:
            refused(lambda: keeps(modern.parse_task_request(method, params, client)))  # noqa: B023

    fuzz(check, PARAMS)


EVENT_PARAMS: Final = odd(
    name=TEXT,
    arguments=odd(taskId=TEXT, tool=TEXT, status=TEXT),
    cursor=TEXT,
    maxAgeMs=NUMBERS,
    maxEvents=NUMBERS,
    ttlMs=NUMBERS,
    delivery=odd(
        mode=st.sampled_from(["webhook", "push"]) | TEXT,
        url=TEXT | st.sampled_from(["https://h/", "https://[::1]:99999/", "https://u@h", "https://h/#f", "https:///"]),
        secret=TEXT | st.sampled_from(["whsec_", f"whsec_{'A' * 32}", f"whsec_{'A' * 100}", f"whsec_{'=' * 40}"]),
    ),
)


@lengths(20)
def test_params_of_events_are_understood_or_refused(fuzz: Fuzz) -> None:
    def check(params: Any) -> None:
        refused(lambda: keeps(events.parse_wanted(params).key))
        refused(lambda: keeps(events.parse_most(params, 100)))
        for has_secret in (True, False):
            refused(lambda: keeps(events.parse_webhook(params, has_secret=has_secret)))  # noqa: B023

    fuzz(check, EVENT_PARAMS)


@lengths(20)
def test_params_of_2025_11_25_are_understood_or_refused(fuzz: Fuzz) -> None:
    def check(params: Any) -> None:
        refused(lambda: keeps(in_core.parse_call(params, in_core=True, takes_questions=True)))
        for parse in (task_id_of, in_core.parse_list):
            refused(lambda: keeps(parse(params)))  # noqa: B023

    fuzz(check, PARAMS)


def keeps(command: object) -> None:
    """What was understood can be kept: every text of it as UTF-8, every value as JSON."""
    if isinstance(command, Call):
        json.dumps([command.arguments, command.responses], allow_nan=False).encode()
    texts = [getattr(command, name, None) for name in ("tool", "task_id", "cursor", "idempotency_key")]
    texts += getattr(command, "task_ids", ())
    for text in texts:
        assert text is None or text.encode()


@lengths(40)
def test_a_cursor_that_is_not_ours_is_refused(fuzz: Fuzz) -> None:
    def check(cursor: str) -> None:
        error = refused(lambda: read_cursor(KEY, "alice", cursor))
        assert error is not None
        assert error.code == INVALID_PARAMS

    fuzz(check, TEXT | st.binary(max_size=200).map(lambda raw: urlsafe_b64encode(raw).decode()))


@lengths(40)
def test_a_cursor_of_ours_counts_for_its_owner_and_as_it_is(fuzz: Fuzz) -> None:
    def check(found: tuple[str, str, int, int]) -> None:
        owner, other, place, flip = found
        cursor = write_cursor(KEY, owner, POSITION)
        assert read_cursor(KEY, owner, cursor) == POSITION
        if other != owner:
            assert refused(lambda: read_cursor(KEY, other, cursor)) is not None
        raw = bytearray(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        raw[place % len(raw)] ^= flip
        forged = urlsafe_b64encode(raw).decode().rstrip("=")
        assert refused(lambda: read_cursor(KEY, owner, forged)) is not None

    whole = st.text(max_size=20)
    fuzz(check, st.tuples(whole, whole, st.integers(0, 1000), st.integers(1, 255)))


@lengths(40)
def test_a_header_names_the_task_or_is_refused(fuzz: Fuzz) -> None:
    def check(found: tuple[str, str]) -> None:
        raw, task_id = found
        name = decode_header_value(raw) or ""
        error = refused(lambda: modern.check_name_header(name, task_id))
        assert (error is None) == (name == task_id)

    encoded = st.binary(max_size=30).map(lambda raw: f"=?base64?{urlsafe_b64encode(raw).decode()}?=")
    fuzz(check, st.tuples(TEXT | encoded | st.just("a" * 40), TEXT | st.just("a" * 40)))


@lengths(20)
def test_arguments_of_task_tools_are_understood_or_complained_about(fuzz: Fuzz) -> None:
    def check(arguments: Any) -> None:
        for task_tool in task_tools():
            assert all(isinstance(line, str) for line in task_tool.checker.violations(arguments))

    fuzz(check, odd(taskId=TEXT, seconds=st.integers(), key=TEXT, action=TEXT, content=VALUES, cursor=TEXT))


@lengths(40)
def test_a_uri_names_a_task_or_none(fuzz: Fuzz) -> None:
    def check(uri: str) -> None:
        found = part_at(uri)
        assert found is None or found[0] in uri

    fuzz(check, TEXT | TEXT.map(lambda text: f"mcp-workflows://tasks/{text}/result"))


CLAIMS: Final = odd(
    iss=st.just("https://issuer.example"),
    aud=st.just("workflows") | st.lists(st.just("workflows") | TEXT, max_size=3),
    sub=TEXT,
    client_id=TEXT,
    azp=TEXT,
    scope=TEXT | st.lists(TEXT),
    exp=NUMBERS,
)


@lengths(40)
def test_claims_name_somebody_or_are_refused(fuzz: Fuzz) -> None:
    reading = ClaimsReader(issuer="https://issuer.example", audience=["workflows"], scope_claims=["scope", "scp"])

    def check(claims: Any) -> None:
        found: list[Identity] = []
        error = refused(lambda: found.append(reading.identity(claims)), TokenRefused)
        assert (error is None) == bool(found)
        assert error is None or len(str(error)) < 1000, "it shows little of what it was given"
        for identity in found:
            assert "workflows" in claims["aud"]
            alike = identity.owner(Owner.CLIENT) == identity.owner(Owner.SUBJECT)
            assert alike == (identity.client is None or identity.subject is None)

    fuzz(check, CLAIMS)


@lengths(40)
def test_what_is_no_token_says_of_no_issuer(fuzz: Fuzz) -> None:
    def check(token: str) -> None:
        said = read_issuer(token)
        assert said is None or isinstance(said, str)
        assert refused(lambda: read_header(token, ["RS256"]), TokenRefused)

    parts = st.tuples(odd(alg=TEXT, kid=NUMBERS), odd(iss=VALUES)).map(
        lambda both: by_hand(plain(both[0]), plain(both[1]))
    )
    fuzz(check, TEXT | parts | parts.map(lambda token: token[: len(token) // 2]))


def plain(part: Any) -> Any:  # Any: JSON values
    """Without what JSON cannot write."""
    return json.loads(json.dumps(part, default=str).encode("utf-8", "replace"))
