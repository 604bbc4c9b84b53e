"""What is inside a claim: how it is named, who may do what by it, and what is said where the name cannot be right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows.access.authn.identity import ClaimsReader
from mcp_workflows.access.authn.settings import Owner, ProxySettings
from mcp_workflows.access.authn.verifier import TrustedProxy
from mcp_workflows.access.principal import claim_value
from mcp_workflows.errors import TokenRefused
from mcp_workflows.receiver.attach import swap
from mcp_workflows.sidecar.checks import check
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.redaction import redact_config
from tests.support.configured import YES, written
from tests.support.identified import MEMORY, house, jwks
from tests.support.tokens import ISSUER, KeyServer
from tests.tasks.test_authorization import tool

pytestmark = pytest.mark.anyio

KEYCLOAK: Mapping[str, Any] = {
    "realm_access": {"roles": ["approver", "staff"]},
    "resource_access": {"shop": {"roles": ["operator"]}, "shop.eu": {"roles": ["auditor"]}},
    "https://acme.example/roles": ["a"],
    "a.b": None,
    "a": {"b": "never read", "c": {"d": False}},
    "many": [{"roles": ["approver"]}],
    "text": "roles",
    "empty": {"": 1, "none": None},
}

NAMED: list[tuple[str, Any]] = [
    ("text", "roles"),
    ("nothing", None),
    ("realm_access", {"roles": ["approver", "staff"]}),
    ("realm_access.roles", ["approver", "staff"]),
    ("resource_access.shop.roles", ["operator"]),
    (r"resource_access.shop\.eu.roles", ["auditor"]),
    ("resource_access.shop.eu.roles", None),  # one reading: no other way to the letters is tried
    ("https://acme.example/roles", ["a"]),
    (r"https://acme\.example/roles", ["a"]),
    ("a.b", None),  # the claim is there, and null
    ("a.c", {"d": False}),
    ("a.c.d", False),
    (r"a\.c", None),
    ("realm_access.role", None),
    ("realm_access.roles.approver", None),
    ("realm_access.roles.0", None),
    ("many.roles", None),
    ("many.0.roles", None),
    ("text.roles", None),
    ("text.upper", None),
    ("empty.none", None),
    ("empty.none.more", None),
    ("empty.keys", None),
    ("a." * 10_000 + "b", None),
]


@pytest.mark.parametrize(("name", "found"), NAMED, ids=[name[:40] for name, _ in NAMED])
def test_a_name_is_a_claim_to_the_letter_or_else_a_path_through_objects(name: str, found: Any) -> None:
    assert claim_value(KEYCLOAK, name) == found


def test_a_claim_of_that_name_is_the_only_thing_that_is_read_whatever_stands_inside_another() -> None:
    """A partner's object must not add to what the claim says, and what it says must not come back by the path."""
    claims: list[Any] = [None, [], "", {}, ["staff"]]
    for claim in claims:
        assert claim_value({"a.roles": claim, "a": {"roles": ["approver"]}}, "a.roles") == claim


READING: Mapping[str, Any] = {"issuer": ISSUER, "audience": ["here"]}
TOKEN: Mapping[str, Any] = {"aud": "here", "sub": "alice", **KEYCLOAK}


def test_scopes_clients_and_subjects_can_be_inside_a_claim_and_may_grant_still_counts() -> None:
    token = {**TOKEN, "act": {"sub": "bob", "client": "web"}, "scope": "x"}
    paths: Mapping[str, Any] = {
        "scope_claims": ["scope", "realm_access.roles", "many.roles"],
        "client_claims": ["act.app", "act.client"],
        "subject_claim": "act.sub",
    }
    found = ClaimsReader(**READING, **paths).identity(token)
    assert (found.subject, found.client) == ("bob", "web")
    assert found.scopes == {"x", "approver", "staff"}
    less = ClaimsReader(**READING, **paths, may_grant=frozenset({"staff"})).identity(token)
    assert less.scopes == {"staff"}
    assert found.principal(Owner.CLIENT).claims["realm_access"] == KEYCLOAK["realm_access"], "all of it is kept"


@pytest.mark.parametrize("inside", [{"sub": 7}, {"sub": ["bob"]}, {"sub": "a\nb"}, {"sub": {"sub": "bob"}}])
def test_a_subject_inside_a_claim_must_be_a_name_as_any_other(inside: Mapping[str, Any]) -> None:
    with pytest.raises(TokenRefused, match=r"its act\.sub"):
        ClaimsReader(**READING, subject_claim="act.sub").identity({**TOKEN, "act": inside})


def test_groups_of_a_proxy_are_words_and_nothing_is_inside_them() -> None:
    proxied = TrustedProxy(ProxySettings.model_validate({"peers": ["10.0.0.7"], "groups_header": "X-Groups"}))
    found = proxied.identity({"x-forwarded-user": ["alice"], "x-groups": ["realm_access.roles, approver"]})
    assert claim_value(found.claims, "groups") == ["realm_access.roles", "approver"]
    assert claim_value(found.claims, "realm_access.roles") is None


# --- over HTTP

OPERATOR = {"claims": {r"resource_access.shop\.eu.roles": ["operator", "admin"]}, "any_owner": True}
RULES: Mapping[str, Any] = {
    "call": {},
    "see": [{}, OPERATOR],
    "answer": {"claims": {"realm_access.roles": "approver"}, "not_owner": True},
    "cancel": OPERATOR,
}
ROLES: Mapping[str, Mapping[str, Any]] = {
    "another role": {"realm_access": {"roles": ["staff"]}},
    "no role": {},
    "at the top": {"roles": ["approver"]},
    "of a client": {"resource_access": {"realm_access": {"roles": ["approver"]}}},
    "in a list": {"realm_access": [{"roles": ["approver"]}]},
    "as a key": {"realm_access": {"roles": {"approver": True}}},
    "said null": {"realm_access.roles": None, "realm_access": {"roles": ["approver"]}},
}


@pytest.mark.parametrize("way", ["signed", "introspected"])
async def test_who_has_a_role_inside_a_claim_may_answer_and_who_has_not_may_not(
    tmp_path: Path, key_server: KeyServer, way: str
) -> None:
    told: dict[str, Mapping[str, Any]] = {}
    key_server.asked["roles"] = lambda form, _: {"active": True, "aud": here.url, **told[form["token"]]}
    asked = {"issuer": ISSUER, "endpoint": f"{key_server.address}/roles", "client_id": "us", "client_secret": "s"}
    auth = {"issuers": [jwks(key_server, "nested")]} if way == "signed" else {"introspection": [asked]}
    async with house(tmp_path, auth) as here:

        def token(sub: str, **claims: Any) -> str:
            told[sub] = {"sub": sub, **claims}
            return here.token(sub, **claims) if way == "signed" else sub

        workflows = here.sidecar.workflows
        await swap(workflows, tools=[tool("order", "ask", allow=RULES)], engines=workflows.adapters)
        alice = here.peer(token("alice", realm_access={"roles": ["approver"]}))
        task_id = (await alice.call("order")).result["taskId"]
        answer = {"taskId": task_id, "content": YES["content"]}
        await alice.until(task_id, "working")
        for number, claims in enumerate(ROLES.values()):
            other = here.peer(token(f"other-{number}", **claims))
            assert (await other.send("tasks/get", {"taskId": task_id})).error["message"] == "Task not found"
            names = [each["name"] for each in (await other.send("tools/list")).result["tools"]]
            assert "open_questions" not in names
            assert (await other.answer(task_id, answer=YES)).error["message"] == "Task not found"
        assert "somebody else" in (await alice.answer(task_id, answer=YES)).error["message"], "not their own"
        bob = here.peer(token("bob", realm_access={"roles": ["staff", "approver"]}))
        [question] = (await bob.call("open_questions")).result["structuredContent"]["tasks"]
        assert question["taskId"] == task_id
        assert not (await bob.call("task_answer", answer)).result["isError"]
        await alice.until(task_id, "completed")
        operator = here.peer(token("olga", resource_access={"shop.eu": {"roles": ["operator"]}}))
        made = (await alice.call("order")).result["taskId"]
        assert (await bob.send("tasks/cancel", {"taskId": made})).error is not None
        assert (await operator.send("tasks/cancel", {"taskId": made})).result["resultType"] == "complete"


# --- in the file

SIGNED: Mapping[str, Any] = {"issuers": [{"issuer": ISSUER, "jwks_url": "https://issuer.example/keys"}]}
CI: Mapping[str, Any] = {"tokens": [{"name": "ci", "sha256": "ab" * 32}]}
PROXY: Mapping[str, Any] = {"proxy": {"peers": ["10.0.0.7"], "groups_header": "X-Groups"}}


def config_of(folder: Path, claims: Mapping[str, Any], auth: Mapping[str, Any] | None = None) -> Path:
    """The file with one tool whose callers must have these claims."""
    call = {"claims": claims} if claims else {}
    tools = {"echo": {"workflow": "echo", "allow": {"call": call, "see": {}}}}
    return written(folder, "memory", MEMORY, tools, None if auth is None else {"auth": auth})


@pytest.mark.parametrize(
    ("auth", "claims", "told"),
    [
        (SIGNED, {"realm_access.roles": "x"}, None),
        ({**SIGNED, **CI}, {"realm_access.roles": "x"}, None),
        (PROXY, {"groups": "x"}, None),
        (PROXY, {"realm_access.roles": "x", "groups": "y"}, "so they match nobody: realm_access.roles"),
        (CI, {"groups": "x"}, "so they match nobody: groups"),
        (None, {"realm_access.roles": "x"}, "so they match nobody: realm_access.roles"),
        (CI, {}, None),
    ],
    ids=["signed", "signed or by hand", "groups", "no groups", "by hand", "no login", "no claims"],
)
async def test_check_says_which_claims_nobody_can_have(
    tmp_path: Path, auth: Mapping[str, Any] | None, claims: Mapping[str, Any], told: str | None
) -> None:
    found = await check(load_config(config_of(tmp_path, claims, auth), {}), time_limit=1)
    [row] = [row for row in found.rows if row.kind == "tool"]
    assert row.finding is not None
    assert row.finding.ok
    assert (row.finding.hint or "").endswith(told or "")
    assert (row.finding.hint is None) == (told is None)


def test_what_a_rule_asks_for_is_shown_whatever_the_claim_is_called(tmp_path: Path) -> None:
    claims = {"token_use": "access", "resource_access.token-service.roles": ["x"], "realm_access.roles": ["y"]}
    shown = redact_config(config_of(tmp_path, claims), {}).config
    assert shown["tools"]["echo"]["allow"]["call"]["claims"] == claims
