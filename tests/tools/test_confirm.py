"""`confirm`: nothing starts before a person said yes to exactly this call, and one yes starts one execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from pydantic import ValidationError

from mcp_workflows import Tool
from mcp_workflows.access import LOCAL, Principal
from mcp_workflows.errors import RequestError
from mcp_workflows.wire import v2026_07_28
from mcp_workflows.wire.commands import Finished, Questions
from tests.support.in_memory import MODERN, entered, line
from tests.tasks import test_idempotency as scenery

pytestmark = pytest.mark.anyio

INPUT = {"type": "object", "properties": {"amount": {"type": "integer"}, "to": {"type": "string"}}}
ADA = Principal(id="ada", subject="ada", claims={"email": "ada@example.com"})
YES = {"confirm": {"action": "accept", "content": {"confirm": True}}}
NO: Sequence[tuple[Mapping[str, Any], str]] = [
    ({"action": "accept", "content": {"confirm": False}}, "decline"),
    ({"action": "decline"}, "decline"),
    ({"action": "cancel"}, "cancel"),
]


def tool(name: str = "charge", **more: Any) -> Tool:
    questions = {"confirm": {"message": more.pop("confirm", "Charge {{amount}} to {{to}}?")}, **more.pop("ask", {})}
    written = {"name": name, "engine": "memory", "workflow": "forever", "input": INPUT, "questions": questions, **more}
    return Tool.model_validate(written)


TOOLS = [
    tool(),
    tool("refund"),
    tool("asking", ask={"to": {"message": "To whom?", "schema": {"type": "string"}}}),
    tool("deduped", dedupe="10m"),
    tool("mine", confirm="Charge {{amount}} as {{principal.claims.email}}?"),
]


CAN_ASK: Mapping[str, Any] = {"elicitation": {"form": {}}}
ORDER = {"amount": 5, "to": "me"}


async def asked(here: scenery.Here, name: str = "charge", who: Principal = ADA, **more: Any) -> Questions:
    outcome = await here.outcome(name, who, **{"arguments": ORDER, **more})
    assert isinstance(outcome, Questions), outcome
    assert not outcome.started
    return outcome


async def confirmed(here: scenery.Here, question: Questions, name: str = "charge", **more: Any) -> str:
    settings: dict[str, Any] = {"arguments": ORDER, "state": question.state, "responses": YES, **more}
    return await here.task(name, settings.pop("who", ADA), **settings)


async def test_it_is_asked_with_its_arguments_and_nothing_starts_before(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        question = await asked(here)
        assert question.requests["confirm"].params == {
            "mode": "form",
            "message": "Charge 5 to «me»?",
            "requestedSchema": {
                "type": "object",
                "properties": {"confirm": {"type": "boolean", "title": "Yes, go ahead"}},
                "required": ["confirm"],
            },
            "_meta": {"mcp-workflows/question": "confirm"},
        }
        assert here.engine.handles == []
        await confirmed(here, question)
        assert len(here.engine.handles) == 1


@pytest.mark.parametrize(("answer", "said"), NO)
async def test_whoever_does_not_say_yes_starts_nothing(tmp_path: Path, answer: Mapping[str, Any], said: str) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        question = await asked(here)
        outcome = await here.outcome(
            "charge", ADA, arguments=ORDER, state=question.state, responses={"confirm": answer}
        )
        assert isinstance(outcome, Finished)
        assert outcome.result["isError"]
        assert outcome.result["content"][0]["text"] == f"charge was not confirmed ({said}); nothing was started"
        assert here.engine.handles == []


async def test_a_yes_nobody_was_asked_for_is_none(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        question = await asked(here, responses=YES)
        with pytest.raises(RequestError, match="confirm"):
            await confirmed(here, question, responses={"confirm": {"action": "accept", "content": {}}})
        other = await here.outcome("refund", ADA, arguments=ORDER, state=question.state, responses=YES)
        assert isinstance(other, Questions)
        assert here.engine.handles == []


async def test_a_yes_to_other_arguments_is_asked_for_again(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        question = await asked(here)
        more = {"amount": 500, "to": "me"}
        again = await here.outcome("charge", ADA, arguments=more, state=question.state, responses=YES)
        assert isinstance(again, Questions)
        assert again.requests["confirm"].params["message"] == "Charge 500 to «me»?"
        assert here.engine.handles == []
        await confirmed(here, again, arguments=more)


async def test_one_yes_starts_one_execution_whatever_key_it_is_sent_with(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        for first_key in (None, "mine"):
            question = await asked(here, idempotency_key=first_key)
            first = await confirmed(here, question)
            others: Sequence[Mapping[str, Any]] = [{"idempotency_key": "x"}, {"host_key": ("taskId", "t")}, {}]
            for more in others:
                assert await confirmed(here, question, **more) == first
        assert len(here.engine.handles) == 2


async def test_it_comes_after_all_other_questions_with_their_answers(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        question = await asked(here, "asking", arguments={"amount": 5}, responses=YES)
        assert list(question.requests) == ["to"]
        answer = {"to": {"action": "accept", "content": {"to": "Ben"}}}
        last = await asked(here, "asking", arguments={"amount": 5}, state=question.state, responses={**answer, **YES})
        assert last.requests["confirm"].params["message"] == "Charge 5 to «Ben»?"
        await confirmed(here, last, "asking", arguments={"amount": 5})
        assert len(here.engine.handles) == 1


async def test_who_says_yes_sees_all_of_what_to(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        outcome = await here.outcome("charge", ADA, arguments={"amount": 5})
        assert isinstance(outcome, Finished)
        assert "to must be given" in outcome.result["content"][0]["text"]
        question = await asked(here, "mine")
        assert question.requests["confirm"].params["message"] == "Charge 5 as «ada@example.com»?"
        unknown = await here.outcome("mine", LOCAL, arguments=ORDER)
        assert isinstance(unknown, Finished)
        assert "principal.claims.email must be given" in unknown.result["content"][0]["text"]


HOSTILE = "me»?\n\nApproved by finance: «100\u202e\x1b[2J\u200b"


async def test_an_argument_cannot_change_the_sentence_that_a_person_approves(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        question = await asked(here, arguments={"amount": 5, "to": HOSTILE})
        message = question.requests["confirm"].params["message"]
        assert message == "Charge 5 to «me>? ⏎ ⏎ Approved by finance: <100[2J»?"
        claimed = Principal(id="x", subject="x", claims={"email": HOSTILE})
        question = await asked(here, "mine", claimed)
        assert question.requests["confirm"].params["message"].count("»") == 1


async def test_a_confirmation_that_is_nothing_but_a_value_says_what_it_starts(tmp_path: Path) -> None:
    text = {"type": "object", "properties": {"note": {"type": "string"}}}
    asking = {"note": {"message": "{{args.why}}", "schema": {"type": "string"}}}
    tools = [tool("note", input=text, confirm="{{note}}"), tool("why", input={"type": "object"}, ask=asking)]
    async with scenery.replica(tmp_path, tools=tools) as here:
        for note, said in (("All fine.", "«All fine.»"), (" ", "«»"), ("\u200b", "«»")):
            question = await asked(here, "note", arguments={"note": note})
            assert question.requests["confirm"].params["message"] == f"Start note? {said}"
        for arguments in ({}, {"note": ""}):
            outcome = await here.outcome("note", ADA, arguments=arguments)
            assert isinstance(outcome, Finished)
            assert "note must be given" in outcome.result["content"][0]["text"]
        question = await asked(here, "why", arguments={"why": " "})
        assert question.requests["note"].params["message"] == "note: «»"


@pytest.mark.parametrize(("version", "answer"), [(MODERN, None), ("2025-11-25", True), ("2025-11-25", False)])
async def test_a_server_asks_in_both_eras(tmp_path: Path, version: str, answer: bool | None) -> None:
    store, capabilities = f"sqlite:///{tmp_path}/tasks.db", CAN_ASK
    done = [tool(workflow="sleep", args=[{"seconds": 0}])]
    async with entered(done, store=store) as (server, _), line(server, version, capabilities) as client:
        client.answer = {"action": "accept", "content": {"confirm": answer}}
        reply = (await client.call("charge", ORDER))["result"]
        if version == MODERN:
            assert reply["inputRequests"]["confirm"]["params"]["message"] == "Charge 5 to «me»?"
            more = {"requestState": reply["requestState"], "inputResponses": YES}
            changed = await client.call("charge", {**ORDER, "amount": 6}, **more)
            assert "error" in changed
            reply = (await client.call("charge", ORDER, **more))["result"]
        else:
            assert (client.asked[0].params or {})["message"] == "Charge 5 to «me»?"
        assert bool(reply.get("isError")) is (answer is False)


async def test_a_function_of_yours_cannot_hand_over_to_it(tmp_path: Path) -> None:
    async with entered([tool(listed=False)], store=f"sqlite:///{tmp_path}/tasks.db") as (server, workflows):

        async def call(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            return await workflows.hand_over("charge", params.arguments or {})

        server.add_request_handler("tools/call", types.CallToolRequestParams, call)
        async with line(server, MODERN, CAN_ASK) as client:
            reply = await client.call("own", ORDER)
        assert reply["error"]["code"] == v2026_07_28.MISSING_CAPABILITY
        await workflows.ready()


WRONG: Sequence[tuple[Mapping[str, Any], str]] = [
    ({"confirm": "Charge {{amount?"}, "braces"),
    ({"confirm": "{{nonsense(amount)}}"}, "nonsense"),
    ({"confirm": ""}, "must have visible text"),
    ({"title": "\u3164"}, "must have visible text"),
    ({"confirm": " \u200b\u202e"}, "must have visible text"),
    ({"ask": {"to": {"message": " ", "schema": {"type": "string"}}}}, "must have visible text"),
    ({"ask": {"sure": {"message": "?"}}}, "only one yes or no"),
    ({"labels": {"owner": "x"}}, "already"),
    ({"labels": {"E-Mail": "x"}}, "not a label name"),
    ({"dedupe": "0s"}, "longer than 0"),
    ({"ask": {"to": {"message": "?", "when_missing": True}}}, "when_missing"),
]


@pytest.mark.parametrize(("settings", "said"), WRONG)
def test_a_mistake_is_found_when_it_is_loaded(settings: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        tool(**settings)
