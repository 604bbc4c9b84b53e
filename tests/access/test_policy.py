"""Rules: what they say, and whom they fit; a table, and the mistakes one can make in them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mcp_workflows import Tool
from mcp_workflows.access import (
    ANONYMOUS,
    LOCAL,
    Allow,
    Principal,
    Verb,
    owner_id,
    permits,
    permits_message,
    person_of,
    reaches_others,
)


def somebody(
    subject: str | None, *scopes: str, client: str = "web", issuer: str = "https://login", **claims: Any
) -> Principal:
    """A principal as a token makes one."""
    name = owner_id(client=client, issuer=issuer, subject=subject)
    return Principal(
        id=name, issuer=issuer, subject=subject, client=client, scopes=frozenset(scopes), claims={**claims}
    )


def inside(*roles: Any, **more: Any) -> Principal:
    """One with roles as Keycloak has them."""
    return somebody("alice", realm_access={"roles": [*roles]}, **more)


BOTH = inside("x", **{"realm_access.roles": ["y"]})  # to the letter, and by the path
NONE = inside("x", **{"realm_access.roles": None})
URLS: dict[str, Any] = {"https://a.example/team": "x", "https://a": {"example/team": "y"}}
HOUSE = somebody("alice", **URLS)
ALICE, BOB, ROBOT = somebody("alice"), somebody("bob"), somebody(None, client="robot")
ALICES = ALICE.id

# the rules, the verb, who asks, whose task (None: a call), and whether they may
TABLE: list[tuple[dict[str, Any] | None, str, Principal, str | None, bool]] = [
    (None, "call", ANONYMOUS, None, True),
    (None, "see", ALICE, ALICES, True),
    (None, "see", BOB, ALICES, False),
    (None, "cancel", somebody("alice", client="other"), ALICES, False),
    ({}, "call", ALICE, None, False),
    ({}, "see", ALICE, ALICES, False),
    ({"see": {}}, "see", ALICE, ALICES, True),
    ({"see": {}}, "see", BOB, ALICES, False),
    ({"see": {}}, "answer", ALICE, ALICES, False),
    ({"call": {"scopes": ["a"]}}, "call", somebody("alice", "a", "b"), None, True),
    ({"call": {"scopes": ["a", "c"]}}, "call", somebody("alice", "a", "b"), None, False),
    ({"call": [{"scopes": ["c"]}, {"scopes": ["b"]}]}, "call", somebody("alice", "b"), None, True),
    ({"call": {"claims": {"team": "x"}}}, "call", somebody("alice", team="x"), None, True),
    ({"call": {"claims": {"team": "x"}}}, "call", ALICE, None, False),
    ({"call": {"claims": {"groups": ["x", "y"]}}}, "call", somebody("alice", groups=["z", "y"]), None, True),
    ({"call": {"claims": {"groups": "y"}}}, "call", somebody("alice", groups="xyz"), None, False),
    ({"call": {"claims": {"admin": True}}}, "call", somebody("alice", admin=1), None, False),
    ({"call": {"claims": {"admin": True}}}, "call", somebody("alice", admin=True), None, True),
    ({"call": {"claims": {"realm_access.roles": "x"}}}, "call", inside("x", "y"), None, True),
    ({"call": {"claims": {"realm_access.roles": ["w", "y"]}}}, "call", inside("x", "y"), None, True),
    ({"call": {"claims": {"realm_access.roles": "z"}}}, "call", inside("x", "y"), None, False),
    ({"call": {"claims": {"realm_access.roles": "x"}}}, "call", ALICE, None, False),
    ({"call": {"claims": {"realm_access.roles": "x"}}}, "call", somebody("alice", realm_access="x"), None, False),
    ({"call": {"claims": {"realm_access.roles": "x"}}}, "call", somebody("alice", roles=["x"]), None, False),
    ({"call": {"claims": {"realm_access.roles": True}}}, "call", inside(1), None, False),
    ({"call": {"claims": {"realm_access": "roles"}}}, "call", inside("x"), None, False),
    ({"call": {"claims": {"realm_access.roles.x": "y"}}}, "call", inside({"x": "y"}), None, False),
    ({"call": {"claims": {"realm_access.roles": "x"}}}, "call", BOTH, None, False),
    ({"call": {"claims": {"realm_access.roles": "x"}}}, "call", NONE, None, False),
    ({"call": {"claims": {"realm_access.roles": "y"}}}, "call", BOTH, None, True),
    ({"call": {"claims": {"https://a.example/team": "x"}}}, "call", HOUSE, None, True),
    ({"call": {"claims": {"https://a.example/team": "y"}}}, "call", HOUSE, None, False),
    ({"call": {"principals": [{"client": "robot"}]}}, "call", ROBOT, None, True),
    ({"call": {"principals": [{"client": "robot"}]}}, "call", ALICE, None, False),
    ({"call": {"principals": [{"issuer": "https://other", "subject": "alice"}]}}, "call", ALICE, None, False),
    ({"call": {"issuer": "https://login"}}, "call", ALICE, None, True),
    ({"call": {"issuer": "https://login"}}, "call", somebody("alice", issuer="https://evil"), None, False),
    ({"answer": {"not_owner": True}}, "answer", BOB, ALICES, True),
    ({"answer": {"not_owner": True}}, "answer", ALICE, ALICES, False),
    ({"answer": {"not_owner": True}}, "answer", somebody("alice", client="other"), ALICES, False),
    ({"answer": {"not_owner": True}}, "answer", somebody("alice", issuer="https://other"), ALICES, True),
    ({"answer": {"not_owner": True}}, "answer", ANONYMOUS, ALICES, False),
    ({"answer": {"not_owner": True}}, "answer", ANONYMOUS, "anonymous", False),
    ({"answer": {"not_owner": True}}, "answer", LOCAL, "local", False),
    ({"answer": {"not_owner": True, "scopes": ["ok"]}}, "answer", BOB, ALICES, False),
    ({"answer": {"not_owner": True, "scopes": ["ok"]}}, "answer", somebody("bob", "ok"), ALICES, True),
    ({"see": {"any_owner": True}}, "see", BOB, ALICES, True),
    ({"see": {"any_owner": True}}, "see", ANONYMOUS, ALICES, False),
]


@pytest.mark.parametrize(("rules", "verb", "who", "owner", "may"), TABLE)
def test_the_rules_let_exactly_these_do_that(
    rules: dict[str, Any] | None, verb: str, who: Principal, owner: str | None, may: bool
) -> None:
    allow = None if rules is None else Allow.model_validate(rules)
    assert permits(allow, Verb(verb), who, owner) is may


def test_an_owner_is_told_from_others_by_person_not_by_client() -> None:
    assert person_of(ALICES) == ALICE.person == ("https://login", "alice")
    assert person_of(ROBOT.id) == ROBOT.person == ("https://login", "robot")
    assert person_of("local") == LOCAL.person
    assert person_of(owner_id(client=None, issuer="https://login", subject="alice")) == ALICE.person


def test_tasks_of_others_are_the_business_of_those_alone_whom_a_rule_lets_reach_them() -> None:
    allow = Allow.model_validate({"see": {}, "answer": {"scopes": ["ok"], "not_owner": True}})
    assert not reaches_others(allow, ALICE)
    assert reaches_others(allow, somebody("bob", "ok"))
    assert not reaches_others(None, somebody("bob", "ok"))


def test_a_rule_that_binds_another_argument_opens_no_execution() -> None:
    act = [{"arguments": {"user": "principal.subject"}}, {"arguments": {"item": "principal.client"}}]
    allow = Allow.model_validate({"call": {}, "see": {}, "act": act})
    named = frozenset({"user"})
    assert permits_message(allow, somebody("alice"), {"user": "alice"}, named)
    assert not permits_message(allow, somebody("alice"), {"user": "bob", "item": "web"}, named)


def test_the_claims_that_arguments_are_bound_to_are_claims_of_the_rules() -> None:
    act = {"arguments": {"user": "principal.claims.email", "team": "principal.client"}, "claims": {"role": "x"}}
    assert Allow.model_validate({"act": act}).claims == {"email", "role"}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"call": {"not_owner": True}}, "a call has none yet"),
    ({"see": {"not_owner": True, "any_owner": True}}, "remove one of the two"),
    ({"see": {"principals": [{}]}}, "name a subject or a client"),
    ({"see": {"scope": ["x"]}}, "Extra inputs are not permitted"),
    ({"read": {}}, "Extra inputs are not permitted"),
    ({"call": "everybody"}, "valid list"),
    ({"call": {"claims": {"realm_access": {"roles": "x"}}}}, "write realm_access.roles: and its value"),
    ({"call": {"claims": {"realm_access.": "x"}}}, "is not a claim name"),
]


@pytest.mark.parametrize(("wrong", "said"), MISTAKES)
def test_a_mistake_in_a_rule_is_said(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Allow.model_validate(wrong)


def test_a_tool_whose_tasks_nobody_could_see_is_refused() -> None:
    with pytest.raises(ValidationError, match="nobody could see its tasks"):
        Tool.model_validate({"name": "x", "engine": "e", "workflow": "w", "allow": {"call": {}}})
