"""Where task tokens are, by the definition of a state, as tables; and that the engine puts them there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.definition import token_places

from adapters.stepfunctions.tests.cloud import new_queue, one_state, until, until_ended
from mcp_workflows.adapter import Gate, InputRequest, Ref, Start
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

TOKEN: Final = "AQCEAAAAKgAAAAMAAAAA+bC/dEf" * 20 + "=="  # as AWS makes them

FOUND: Final[list[tuple[str, Any, Any]]] = [  # the place as JMESPath, parameters as written, and as a history has them
    ("cb.id", {"cb": {"id.$": "$$.Task.Token"}}, {"cb": {"id": TOKEN}}),
    ("a[1].b", {"a": [{}, {"b.$": "$$.Task.Token"}]}, {"a": [{}, {"b": TOKEN}]}),
    ('"a.b"."c d"', {"a.b": {"c d.$": "$$.Task.Token"}}, {"a.b": {"c d": TOKEN}}),
    ("task.Token", {"task.$": "$$.Task"}, {"task": json.dumps({"Token": TOKEN})}),
    ("all.Task.Token", {"all.$": "$$"}, {"all": {"Task": {"Token": TOKEN}, "Execution": {}}}),
    ("cb.id", {"cb": {"id": "{% $states.context.Task.Token %}"}}, {"cb": {"id": TOKEN}}),
    ("m.Token", {"m": "{% $states.context.Task %}"}, {"m": {"Token": TOKEN}}),
]


@pytest.mark.parametrize(("place", "written", "sent"), FOUND, ids=[json.dumps(written) for _, written, _ in FOUND])
def test_a_token_is_read_where_the_definition_puts_it(place: str, written: Any, sent: Any) -> None:
    [found] = token_places(written)
    assert (found.readable, found.expression, found.read(sent)) == (True, place, TOKEN)
    assert found.read({"cb": 1, "m": 3, "a": ["x"]}) is None


@pytest.mark.parametrize(
    ("written", "places"),
    [
        ({"m.$": "States.Format('https://x/y?t={}', $$.Task.Token)"}, [False]),
        ({"m": "{% 'token ' & $states.context.Task.Token %}"}, [False]),
        ({"a.$": "$.Task.Token", "b": "$$.Task.Token", "c.$": 1}, []),
        ({"b": "$states.context.Task.Token", "c": "{% ((( %}"}, []),
        (None, []),
        ("text", []),
    ],
    ids=json.dumps,
)
def test_what_else_is_made_of_a_token_is_not_taken_for_it(written: Any, places: list[bool]) -> None:
    found = token_places(written)
    assert [place.readable for place in found] == places
    assert [place.read({"m": TOKEN}) for place in found] == [None] * len(places)


BODIES: Final[Mapping[str, Any]] = {
    "Nested": {"cb": {"id.$": "$$.Task.Token"}},
    "Task": {"all.$": "$$.Task"},
    "Decoy": {"token": "of a form, against forgery", "callback_token.$": "$$.Task.Token"},
    "NestedA": {"cb": {"id": "{% $states.context.Task.Token %}"}},
}


def waits(name: str, body: Any, queue: str) -> Mapping[str, Any]:
    """A machine that sends this to a queue, and waits."""
    sent = {"QueueUrl": queue, "MessageBody": body}
    given = {"QueryLanguage": "JSONata", "Arguments": sent} if name.endswith("A") else {"Parameters": sent}
    state = {"Type": "Task", "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken", "TimeoutSeconds": 60}
    return one_state(name, {**state, **given, "End": True})


async def test_every_engine_expression_that_is_understood_is_answered(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter
) -> None:
    queue, states = new_queue(stepfunctions), BODIES
    both = {"Type": "Parallel", "Branches": [waits(name, body, queue) for name, body in states.items()], "End": True}
    workflow = stepfunctions.machine(one_state("All", both))
    request = InputRequest(method="elicitation/create", params={"message": "Sure?"})
    gates = {name.lower(): Gate(when=name, request=request, send={}) for name in states}
    found = await adapter.tooling.verify(workflow, {}, {name: {"when": gate.when} for name, gate in gates.items()})
    assert [each.text for each in found if not each.ok] == []
    start = Start(workflow=workflow, arguments=[{"order": "A1"}], key=uuid.uuid4().hex, created=datetime.now(UTC))
    ref = Ref(workflow=workflow, handle=await adapter.start(start), gates=gates)
    seen = await until(adapter, ref, lambda seen: len(seen.requests) == len(states))
    await adapter.answer(
        ref, {key: {"action": "accept", "send": {"output": asked.gate}} for key, asked in seen.requests.items()}
    )
    assert (await until_ended(adapter, ref)).output == [name.lower() for name in states]
