"""Forms and logins of any kind: no page breaks, tells how it is made, or decides what nobody has decided."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote_from_bytes, urlencode, urlsplit

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st

from mcp_workflows.adapter import InputRequest
from mcp_workflows.sidecar.web.pages import form_of, response_of
from tests.support.approval_pages import LOGIN, MANAGERS, SESSION, Office, office, told_provider
from tests.support.fuzzed_server import Answer, Broken, Request, exchange
from tests.support.fuzzing import TEXT, VALUES, Fuzz, lengths, odd
from tests.support.fuzzing import fuzz as fuzz

FORM: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 20},
        "number": {"type": "number"},
        "count": {"type": "integer", "minimum": 1},
        "sure": {"type": "boolean"},
        "size": {"type": "string", "enum": ["s", "m"]},
        "many": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    },
    "required": ["count", "many"],
}
APPROVAL: Final = {"approvers": {"claims": {"groups": MANAGERS}}, "reason": "required"}
TOOLS: Final[Mapping[str, Any]] = {
    "ship": {
        "workflow": "gated",
        "questions": {
            "release": {
                "message": "Release?",
                "schema": FORM,
                "when": {"after_seconds": 0},
                "approval": APPROVAL,
                "send": "{{answer}}",
                "decline": "no",
            }
        },
    }
}
ORIGIN: Final = "https://x.example"
FIELDS: Final = ("action", "answer.reason", *(f"answer.{name}" for name in FORM["properties"]), "answer.", "x")
SITES: Final = ("same-origin", "same-site", "cross-site", "none", "Same-Origin", "")


@dataclass(slots=True, kw_only=True)
class Target:
    """The pages, a question, and the cookies of those who may come."""

    place: Office
    portal: BlockingPortal
    port: int
    cookies: Mapping[str, Mapping[str, str]]
    task: str
    state: str  # of a login that bob has begun
    broken: Broken

    @property
    def link(self) -> str:
        """The path of the question."""
        return self.place.link(self.task, "release.1")

    @property
    def answers(self) -> int:
        """The number of answers that were ever taken."""
        return len([record for record in self.place.audit if record.event == "answer"])

    def ask(self) -> None:
        """Another question."""
        self.task = self.portal.call(self.place.requested, "ship")

    def send(self, verb: str, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Answer:
        """One request to the public address."""
        whole = ((b"host", b"x.example"), (b"content-type", b"application/x-www-form-urlencoded"), *headers)
        answer = exchange(self.port, Request(verb=verb, path=path, headers=whole, body=body))
        assert answer.status < 500, (path, body, headers, answer)
        assert b"Traceback" not in answer.body
        assert b"mcp_workflows" not in answer.body
        assert not self.broken.found, (path, body, headers, self.broken.found[:1])
        return answer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Generator[Target]:
    """One server for all of it."""
    broken = Broken()
    loggers = [logging.getLogger(name) for name in ("", "mcp_workflows", "uvicorn.error")]
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(told_provider()) as provider:
        served = office(tmp_path_factory.mktemp("pages"), provider, tools=TOOLS, home=ORIGIN)
        with portal.wrap_async_context_manager(served) as place:
            for logger in loggers:
                logger.addHandler(broken)
            try:
                yield portal.call(_begun, place, portal, broken)
            finally:
                for logger in loggers:
                    logger.removeHandler(broken)


async def _begun(place: Office, portal: BlockingPortal, broken: Broken) -> Target:
    bob, eve = await place.manager(), place.browser()
    await eve.log_in("eve")
    begun = await bob.send("GET", "/login")
    state = parse_qs(urlsplit(begun.location).query)["state"][0]
    cookies = {"bob": bob.cookies, "eve": eve.cookies, "nobody": {}}
    port = urlsplit(place.at).port
    assert port is not None
    task = await place.requested("ship")
    return Target(place=place, portal=portal, port=port, cookies=cookies, task=task, state=state, broken=broken)


def urlencoded(pairs: Sequence[tuple[str, str]]) -> bytes:
    """A form as browsers send it, and half characters, which they do not."""
    return urlencode(
        [(name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass")) for name, value in pairs]
    ).encode()


VALUE: Final = st.one_of(
    st.sampled_from(["accept", "decline", "", "1", "true", "a", "s", "tested", "1e999", "NaN"]), TEXT
)
PAIRS: Final = st.lists(st.tuples(st.one_of(st.sampled_from(FIELDS), TEXT), VALUE), max_size=8)
LIKELY: Final = st.tuples(st.sampled_from(["accept", "decline"]), PAIRS).map(
    lambda found: [("action", found[0]), ("answer.count", "3"), ("answer.reason", "tested"), *found[1]]
)
BODIES: Final = st.one_of(PAIRS.map(urlencoded), LIKELY.map(urlencoded), st.binary(max_size=200))


@lengths(150)
def test_no_form_breaks_a_page_or_decides_for_somebody_who_may_not(target: Target, fuzz: Fuzz) -> None:
    def check(given: tuple[str, str | None, bytes]) -> None:
        (who, site, body), before = given, target.answers
        cookie = "; ".join(f"{name}={value}" for name, value in target.cookies[who].items())
        headers = [(b"cookie", cookie.encode())] + ([] if site is None else [(b"sec-fetch-site", site.encode())])
        answer = target.send("POST", target.link, body, headers)
        assert answer.status in {303, 400, 401, 403, 404}
        may_decide = (who, site) == ("bob", "same-origin")
        assert answer.status == 403 or site == "same-origin"
        if target.answers != before:
            assert may_decide, given
            assert answer.status == 303
            [action] = parse_qs(body.decode(), keep_blank_values=True)["action"]
            assert action in {"accept", "decline"}
            target.ask()

    who = st.sampled_from(["bob", "bob", "bob", "eve", "nobody"])
    fuzz(check, st.tuples(who, st.one_of(st.just("same-origin"), st.sampled_from(SITES), st.none()), BODIES))


@lengths(150)
def test_no_login_breaks_a_page_lets_somebody_in_or_leads_elsewhere(target: Target, fuzz: Fuzz) -> None:
    def check(given: tuple[str, list[tuple[str, str]], bytes, bytes]) -> None:
        path, query, extra, cookie = given
        target.place.provider.tokens.clear()
        url = f"{path}?{urlencoded(query).decode()}&{quote_from_bytes(extra)}"
        answer = target.send("GET", url, b"", [(b"cookie", cookie)])
        assert answer.status in {200, 303, 400, 404, 429}, given
        assert f"{SESSION}=" not in answer.headers.get("set-cookie", "")
        if answer.status == 303:
            ours = ("/login?to=/approvals", f"{target.place.provider.issuer}/authorization?")
            assert answer.headers["location"].startswith(ours), given

    names = st.sampled_from(["to", "again", "state", "code", "error", "iss", "x"])
    known = st.sampled_from([target.state, target.state[:-3], "//evil.example", "/approvals/x", "1", "access_denied"])
    path = st.sampled_from(["/login", "/login/callback", "/approvals/x", "/approvals"]) | TEXT.map(
        lambda text: f"/approvals/{quote_from_bytes(text.encode('utf-8', 'surrogatepass')[:500])}"
    )
    cookies = st.sampled_from([f"{LOGIN}={target.cookies['bob'][LOGIN]}".encode(), b"", f"{LOGIN}=x".encode()])
    broken = st.binary(max_size=60).map(
        lambda text: SESSION.encode() + b"=" + text.translate(None, bytes(range(32)) + b"\x7f")
    )
    query = st.lists(st.tuples(names, known | TEXT), max_size=5)
    fuzz(check, st.tuples(path, query, st.binary(max_size=20), cookies | broken))


@lengths(300)
def test_any_form_of_a_workflow_can_be_shown_and_read(fuzz: Fuzz) -> None:
    def check(given: tuple[Any, list[tuple[str, str]], str]) -> None:
        schema, pairs, mode = given
        request = InputRequest(method="elicitation/create", params={"mode": mode, "requestedSchema": schema})
        data: dict[str, list[str]] = {}
        for name, value in pairs:
            data.setdefault(name, []).append(value)
        form = form_of(request, data)
        for each in form.fields:
            data.setdefault(each.name, [str(each.value)])
        try:
            response = response_of(form, request, data)
        except ValueError:
            return
        json.dumps(response, allow_nan=False)
        assert response["action"] in {"accept", "decline"}

    rules = odd(
        type=st.sampled_from(["string", "number", "integer", "boolean", "array", "object"]),
        enum=st.lists(VALUES, max_size=3),
        oneOf=st.lists(odd(const=VALUES, title=TEXT), max_size=3),
        items=odd(enum=st.lists(TEXT, max_size=3), anyOf=st.lists(odd(const=TEXT), max_size=2)),
        default=VALUES,
        maxLength=VALUES,
    )
    properties = st.dictionaries(st.sampled_from(["text", "number", "reason", ""]) | TEXT, rules | VALUES, max_size=4)
    schema = odd(properties=properties, required=st.lists(st.sampled_from(["text", "reason"]), max_size=2)) | VALUES
    fuzz(check, st.tuples(schema, PAIRS | LIKELY, st.sampled_from(["form", "url", "x"])))
