"""The subworkflows that authors append, run by the local engine's own interpreter."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_google.questions import PostedClaim, PostedQuestion
from mcp_workflows_google.resources import Place
from mcp_workflows_google.tooling.subworkflows import add_subworkflows, embedded_files
from mcp_workflows_google_local.language.errors import Raised, Tag
from mcp_workflows_google_local.language.source import load

from adapters.google.tests.tell import EXECUTION, FORM, posted
from adapters.google.tests.worlds import SERVER, Reply, World, run

PLACE = Place(project="other-1", location="us-east1")
YES = {"action": "accept", "content": {"ok": True}}
KEPT = {"kept": True}

ASKS = """
main:
  params: [args]
  steps:
    - ask:
        call: mcp_elicit
        args:
          key: approve
          message: ${"Refund " + string(args.amount) + " EUR?"}
          requested_schema:
            type: object
            properties: {ok: {type: boolean}}
            required: [ok]
          timeout: 3600
        result: answer
    - done:
        return: ${answer}
"""
SHORT = """
main:
  steps:
    - ask:
        call: mcp_elicit
        args: {message: "Go on?"}
        result: answer
    - done:
        return: ${answer}
"""
CLAIMS = """
main:
  steps:
    - claim:
        call: mcp_claim
        result: claim
    - only_the_first:
        switch:
          - condition: ${not(claim.claimed)}
            return: lost
    - done:
        return: won
"""


def test_what_is_posted_is_a_question_to_the_byte() -> None:
    world = World(KEPT, answers=[YES])
    assert run(ASKS, world, {"amount": 40}) == {**YES, "timed_out": False}
    [body] = world.bodies
    assert body == posted()
    asked = PostedQuestion.read(body)
    assert (asked.execution_name(PLACE), asked.requested_schema) == (EXECUTION, FORM)
    [request], [wait] = world.requests, world.waits
    assert (request["method"], request["url"]) == ("POST", f"{SERVER}/input")
    assert request["auth"] == {"type": "OIDC", "audience": SERVER}
    assert wait["timeout"] == 3600


def test_only_a_message_must_be_given() -> None:
    audience = "https://a.example"
    world = World(KEPT, answers=[YES], env={"MCP_WORKFLOWS_URL": SERVER, "MCP_WORKFLOWS_AUDIENCE": audience})
    run(SHORT, world)
    assert world.requests[0]["auth"]["audience"] == audience
    [body] = world.bodies
    assert (body["key"], body["requested_schema"], body["timeout"]) == ("", None, 86_400)
    assert PostedQuestion.read(body).requested_schema == {"type": "object", "properties": {}}


def test_without_the_url_it_fails_and_says_which_variable_is_missing() -> None:
    with pytest.raises(Raised) as raised:
        run(SHORT, World(env={}))
    assert "MCP_WORKFLOWS_URL" in str(raised.value.payload)


def test_other_errors_of_the_wait_are_raised() -> None:
    with pytest.raises(Raised) as raised:
        run(SHORT, World(KEPT, answers=[Tag.VALUE]))
    assert raised.value.payload["tags"] == ["ValueError"]


@pytest.mark.parametrize("trouble", [429, 503, Tag.CONNECTION, Tag.TIMEOUT])
@pytest.mark.parametrize(("source", "done"), [(SHORT, {**YES, "timed_out": False}), (CLAIMS, "won")])
def test_what_may_pass_is_tried_again_with_the_same_words(source: str, done: Any, trouble: Reply) -> None:
    world = World(trouble, trouble, {"kept": True, "claimed": True}, answers=[YES])
    assert run(source, world) == done
    assert world.bodies[0] == world.bodies[1] == world.bodies[2]
    assert world.sleeps == [1, 2]


def test_a_question_that_is_refused_says_what_is_wrong_with_it() -> None:
    with pytest.raises(Raised) as raised:
        run(SHORT, World(400))
    assert raised.value.payload == {
        "code": 400,
        "message": 'the question cannot be asked, {"error":"s3cret"}',
        "tags": ["McpQuestionRefused"],
    }


@pytest.mark.parametrize("trouble", [403, 404, 501, Tag.AUTH])
@pytest.mark.parametrize("source", [SHORT, CLAIMS])
def test_what_will_not_pass_is_raised_at_once(source: str, trouble: Reply) -> None:
    world = World(trouble)
    with pytest.raises(Raised) as raised:
        run(source, world)
    assert raised.value.payload["tags"] == [trouble if isinstance(trouble, Tag) else "HttpError"]
    assert (len(world.requests), world.sleeps) == (1, [])


@pytest.mark.parametrize("source", [SHORT, CLAIMS])
def test_a_server_that_stays_away_is_waited_for_about_an_hour(source: str) -> None:
    world = World(503)
    with pytest.raises(Raised) as raised:
        run(source, world)
    assert raised.value.payload["code"] == 503
    assert len(world.requests) == 65
    assert 3_500 < sum(world.sleeps) < 3_700


@pytest.mark.parametrize(("claimed", "done"), [(True, "won"), (False, "lost")])
def test_a_claim_is_posted_and_its_loser_returns(claimed: bool, done: str) -> None:
    world = World({"claimed": claimed})
    assert run(CLAIMS, world) == done
    [request], [body] = world.requests, world.bodies
    assert (request["url"], request["auth"]["type"]) == (f"{SERVER}/claim", "OIDC")
    assert PostedClaim.read(body).execution_name(PLACE) == EXECUTION


def test_a_source_is_completed_once_and_only_if_it_calls_ours() -> None:
    plain = "main:\n  steps:\n    - a:\n        return: mcp_elicit\n    # call: mcp_claim\n"
    assert add_subworkflows(plain) == plain
    whole = add_subworkflows(CLAIMS)
    assert whole.endswith(embedded_files()["google"])
    assert add_subworkflows(whole) == whole
    assert load(whole).routines.keys() == {"main", "mcp_elicit", "mcp_claim", "mcp_retry"}
