"""Where task tokens are, by the definition of a state, as tables; and that the engine puts them there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.definition import TokenPlace, token_places

from adapters.stepfunctions.tests.looks import until, until_ended
from adapters.stepfunctions.tests.machines import one_state
from adapters.stepfunctions.tests.queues import new_queue
from mcp_workflows.adapter import Gate, InputRequest, Ref, Start
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

TOKEN: Final = "AQCEAAAAKgAAAAMAAAAA+bC/dEf" * 20 + "=="  # as AWS makes them
OTHER: Final = {"order": "A-1", "url": "https://x/y/z?a=b", "list": ["x"]}

FOUND: Final[
    list[tuple[str, Any, Any]]
] = [  # the place as JMESPath, parameters as written, and as they are in a history
    # JSONPath
    ("cb.id", {"cb": {"id.$": "$$.Task.Token"}}, {"cb": {"id": TOKEN}}),
    ("cb.id", {"cb": {"id.$": "$$['Task'][\"Token\"]"}}, {"cb": {"id": TOKEN}}),
    ("a[1].b", {"a": [{}, {"b.$": "$$.Task.Token"}]}, {"a": [{}, {"b": TOKEN}]}),
    ('"a.b"."c d"', {"a.b": {"c d.$": "$$.Task.Token"}}, {"a.b": {"c d": TOKEN}}),
    ("task.Token", {"task.$": "$$.Task"}, {"task": {"Token": TOKEN}}),
    ("all.Task.Token", {"all.$": "$$"}, {"all": {"Task": {"Token": TOKEN}, "Execution": {}}}),
    ("h[0]", {"h.$": "States.Array($$.Task.Token, $.order)"}, {"h": [TOKEN, "A-1"]}),
    ("m.Token", {"m.$": "States.JsonToString($$.Task)"}, {"m": json.dumps({"Token": TOKEN})}),
    ("m", {"m.$": "States.JsonToString($$.Task.Token)"}, {"m": json.dumps(TOKEN)}),
    ("m", {"m.$": "States.Format('{}', $$.Task.Token)"}, {"m": TOKEN}),
    ("m", {"m.$": "States.Format('token={}; {}', $$.Task.Token, $.a)"}, {"m": f"token={TOKEN}; x=y"}),
    ("m", {"m.$": "States.Format('{} it\\'s {}', $.url, $$.Task.Token)"}, {"m": f"{OTHER['url']} it's {TOKEN}"}),
    ("m", {"m.$": "States.Format('https://x/y?t={}&o={}', $$.Task.Token, $.a)"}, {"m": f"https://x/y?t={TOKEN}&o=1"}),
    (
        "m.cb",
        {"m.$": 'States.Format(\'\\{"o":"{}","n":{},"cb":"{}"\\}\', $.o, $.n, $$.Task.Token)'},
        {"m": json.dumps({"o": "{}", "n": 3, "cb": TOKEN})},
    ),
    (
        "m.cb",
        {"m.$": 'States.StringToJson(States.Format(\'\\{"cb":"{}"\\}\', $$.Task.Token))'},
        {"m": {"cb": TOKEN}},
    ),
    # JSONata
    ("cb.id", {"cb": {"id": "{% $states.context.Task.Token %}"}}, {"cb": {"id": TOKEN}}),
    ("cb.id", "{% {'cb': {'id': $states.context.Task.Token}, 'o': $states.input.o[0]} %}", {"cb": {"id": TOKEN}}),
    ("a[1].id", {"a": "{% [1, {'id': ($states.context.Task.Token)}] %}"}, {"a": [1, {"id": TOKEN}]}),
    ("m", {"m": "{% 'token ' & $states.context.Task.Token %}"}, {"m": f"token {TOKEN}"}),
    (
        "m",
        {"m": "{% $states.input.url & '?order=1&token=' & $states.context.Task.Token & '&b=' & $o %}"},
        {"m": f"{OTHER['url']}?order=1&token={TOKEN}&b=2"},
    ),
    ("m.cb", {"m": "{% $string({'cb': $states.context.Task.Token}) %}"}, {"m": json.dumps({"cb": TOKEN})}),
    ("cb.id", "{% $merge([$states.input, {'cb': {'id': $states.context.Task.Token}}]) %}", {"cb": {"id": TOKEN}}),
    ("m.Token", {"m": "{% /* all of it */ $states.context.Task %}"}, {"m": {"Token": TOKEN}}),
    ("id", "{% $x > 1 ? {'id': $states.context.Task.Token} : {'id': $states.context.Task.Token} %}", {"id": TOKEN}),
    ("id", "{% ( $a := 1; {'id': $states.context.Task.Token} ) %}", {"id": TOKEN}),
]


@pytest.mark.parametrize(("place", "written", "sent"), FOUND, ids=[json.dumps(written) for _, written, _ in FOUND])
def test_a_token_is_read_where_the_definition_puts_it(place: str, written: Any, sent: Any) -> None:
    first = token_places(written)[0]
    assert (first.readable, first.expression, first.read(sent)) == (True, place, TOKEN)
    assert all(each.read({**OTHER, "cb": 1, "m": 3}) is None for each in token_places(written))


@pytest.mark.parametrize(
    "written",
    [
        {"m.$": "States.Base64Encode($$.Task.Token)"},
        {"m.$": "States.Hash($$.Task.Token, 'SHA-256')"},
        {"m.$": "States.Format('{}{}', $.a, $$.Task.Token)"},
        {"m.$": "States.Format('{}/{}', $.a, $$.Task.Token)"},
        {"m.$": "States.Format($.template, $$.Task.Token)"},
        {"m": "{% $substring($states.context.Task.Token, 1) %}"},
        {"m": "{% $states.input.a & $states.context.Task.Token %}"},
        {"m": "{% ( $t := $states.context.Task.Token; {'id': $t} ) %}"},
        {"m": "{% {$states.input.key: $states.context.Task.Token} %}"},
        {"m": "{% {'a': $states.context.Task.Token}.a %}"},
        {"m": "{% $states.context.Task.Token ~> $uppercase %}"},
        {"m": "{% ) & ($states.context.Task.Token %}"},
        {"m": "{% {'a' $states.context.Task.Token ] %}"},
    ],
    ids=json.dumps,
)
def test_what_else_is_made_of_a_token_is_not_taken_for_it(written: Any) -> None:
    places = token_places(written)
    assert places
    assert [(place.readable, place.read({"m": TOKEN, "id": TOKEN})) for place in places] == [(False, None)] * len(
        places
    )


@pytest.mark.parametrize(
    "written",
    [
        None,
        "text",
        {"a.$": "$.Task.Token", "b": "$$.Task.Token", "c.$": 1, "d.$": "'$$.Task.Token'"},
        {"a": "{% 'the $states.context.Task.Token' %}", "b": "$states.context.Task.Token", "c": "{% ((( %}"},
    ],
    ids=json.dumps,
)
def test_what_names_no_token_has_none(written: Any) -> None:
    assert token_places(written) == []


def test_an_input_path_into_the_context_counts() -> None:
    [place] = token_places({"cb.$": "$.Token"}, "$$.Task")
    assert place == TokenPlace(path=("cb",))


BODIES: Final[Mapping[str, Any]] = {
    "Nested": {"cb": {"id.$": "$$.Task.Token"}},
    "Url": {"link.$": "States.Format('https://x/y?t={}&o={}', $$.Task.Token, $.order)"},
    "Task": {"all.$": "$$.Task"},
    "Text": {"text.$": "States.JsonToString($$.Task)"},
}
ARGUMENTS: Final[Mapping[str, str]] = {
    "NestedA": "{% {'cb': {'id': $states.context.Task.Token}} %}",
    "UrlA": "{% {'link': 'https://x/y?t=' & $states.context.Task.Token & '&o=' & $states.input.order} %}",
    "TextA": "{% $string({'cb': {'id': $states.context.Task.Token}}) %}",
}
DECOY: Final = {"token": "of a form, against forgery", "cb": {"id.$": "$$.Task.Token"}}


def waits(name: str, body: Any, queue: str) -> Mapping[str, Any]:
    """A machine that sends this to a queue, and waits."""
    sent = {"QueueUrl": queue, "MessageBody": body}
    given = {"QueryLanguage": "JSONata", "Arguments": sent} if name.endswith("A") else {"Parameters": sent}
    state = {"Type": "Task", "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken", "TimeoutSeconds": 60}
    return one_state(name, {**state, **given, "End": True})


async def test_every_engine_expression_that_is_understood_is_answered(
    stepfunctions: StepFunctions, adapter: StepFunctionsAdapter
) -> None:
    queue, states = new_queue(stepfunctions), {**BODIES, **ARGUMENTS, "Decoy": DECOY}
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


def test_a_text_beside_the_token_cannot_pass_for_it() -> None:
    (place,) = token_places({"text.$": "States.Format('{}: token={} thanks', $.comment, $$.Task.Token)"})
    token, forged = "A" * 40, "B" * 40
    assert place.read({"text": f"fine: token={token} thanks"}) == token
    assert place.read({"text": f"x: token={forged} thanks: token={token} thanks"}) is None


def test_an_expression_that_is_nested_too_deeply_is_not_legible() -> None:
    (place,) = token_places({"text": "{% " + "(" * 5000 + "$states.context.Task.Token" + ")" * 5000 + " %}"})
    assert not place.readable
