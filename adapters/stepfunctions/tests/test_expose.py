"""State machines that are tagged are tools: found, described, and nothing else."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_workflows_stepfunctions.boto3_clients import Boto3Clients, open_boto3_clients
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling import discover as discovery
from mcp_workflows_stepfunctions.tooling.discover import (
    MAX_NAME,
    TaggedMachines,
    ToolComment,
    discover,
    read_comment,
    tool_name,
)

from adapters.stepfunctions.tests.cloud import settings
from adapters.stepfunctions.tests.injecting import refusing
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from tests.support.stepfunctions_engine import StepFunctions

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}}


def definition(comment: str | None = None) -> dict[str, Any]:
    whole = {"StartAt": "A", "States": {"A": {"Type": "Succeed"}}}
    return whole if comment is None else {"Comment": comment, **whole}


def without_definition(parsed: dict[str, Any], **_: Any) -> None:
    """As AWS answers to METADATA_ONLY, and the local engine does not."""
    parsed["definition"] = "{}"


class Owner:
    """Somebody who tags state machines."""

    def __init__(self, engine: StepFunctions) -> None:
        self.engine = engine
        self.key = f"expose-{uuid.uuid4().hex[:8]}"

    def tagged(self, comment: str | None = None, *, value: str = "true", **more: Any) -> str:
        tags = [{"key": self.key, "value": value}]
        return self.engine.machine(definition(comment), tags=tags, **more)

    @property
    def settings(self) -> StepFunctionsSettings:
        return settings(self.engine, discover={"tag": f"{self.key}=true"})


@pytest.fixture
def owner(stepfunctions: StepFunctions) -> Owner:
    return Owner(stepfunctions)


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Boto3Clients]]:
    """The clients of this module, once there are some: they do not depend on the tag."""
    made: dict[str, Boto3Clients] = {}
    yield made
    for clients in made.values():
        clients.close()


@pytest.fixture
def clients(owner: Owner, made: dict[str, Boto3Clients]) -> Boto3Clients:
    url = owner.engine.url
    return made[url] if url in made else made.setdefault(url, open_boto3_clients(owner.settings))


@pytest.fixture
def shown(owner: Owner, clients: Boto3Clients) -> TaggedMachines:
    return TaggedMachines(Client(clients, owner.settings), owner.settings.discover)


async def test_only_what_has_the_tag_with_its_value_is_shown(
    owner: Owner, clients: Boto3Clients, shown: TaggedMachines
) -> None:
    arn = owner.tagged("Fulfils an order.", name=f"fulfil.order-{uuid.uuid4().hex[:6]}")
    owner.tagged(value="false")
    owner.engine.machine(definition())
    [found] = await shown.exposed()
    assert (found.workflow, found.source, found.name) == (arn, arn, arn.rpartition(":")[2])
    assert (found.description, found.input, found.options) == ("Fulfils an order.", {"type": "object"}, {})
    assert await TaggedMachines(Client(clients, owner.settings), None).exposed() == []  # without the setting


async def test_what_is_tagged_shows_at_the_next_look_on_all_pages(
    owner: Owner, shown: TaggedMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PAGE", 2)
    arn, gone = owner.tagged("old"), owner.tagged("gone")
    others = {owner.tagged(): None for _ in range(3)}
    found = {each.source: each.description for each in await shown.exposed()}
    assert found == {arn: "old", gone: "gone", **others}
    client = owner.engine.client()
    client.update_state_machine(stateMachineArn=arn, definition=json.dumps(definition("new")))
    client.untag_resource(resourceArn=gone, tagKeys=[owner.key])
    mcp = {"name": "fulfil", "title": "Order", "inputSchema": SCHEMA}
    new = owner.tagged(json.dumps({"mcp": mcp}), type="EXPRESS")
    seen = {each.source: each for each in await shown.exposed()}
    assert seen.keys() == {arn, new, *others}
    assert (seen[arn].description, seen[new].name, seen[new].title) == ("new", "fulfil", "Order")
    assert (seen[new].input, seen[new].options) == (SCHEMA, {"express": True})


async def test_known_descriptions_are_read_again_only_as_the_quota_allows(owner: Owner, clients: Boto3Clients) -> None:
    given = settings(
        owner.engine,
        discover={"tag": f"{owner.key}=true", "every": "10s"},
        quota={"share": 1, "describe_state_machine": {"bucket": 100, "refill": 1}},
    )
    for _ in range(6):
        owner.tagged()
    asked: list[str] = []

    def note(params: dict[str, Any], **_: Any) -> None:
        asked.append(params["body"])

    clients.states.meta.events.register("before-call.*.DescribeStateMachine", note)
    shown = TaggedMachines(Client(clients, given), given.discover)
    for expected in (6, 2, 2, 2):  # a fifth of what ten seconds allow
        assert len(await shown.exposed()) == 6
        assert len(asked) == expected
        asked.clear()


async def test_a_wrong_comment_is_told_once_and_hides_only_its_machine(
    owner: Owner, shown: TaggedMachines, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = owner.tagged('{"inputSchema": "string"}'), owner.tagged()
    for _ in range(2):
        assert [found.source for found in await shown.exposed()] == [good]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"state machine {bad} is not offered: its Comment is wrong, inputSchema is no JSON Schema of an object"
    ]


async def test_an_encrypted_definition_leaves_the_tool_without_a_schema(
    owner: Owner, clients: Boto3Clients, shown: TaggedMachines, caplog: pytest.LogCaptureFixture
) -> None:
    arn = owner.tagged(json.dumps({"inputSchema": SCHEMA}))
    clients.states.meta.events.register("after-call.*.DescribeStateMachine", without_definition)
    with refusing(clients.states, "DescribeStateMachine", "KmsAccessDeniedException", unless="METADATA_ONLY"):
        [found] = await shown.exposed()
    clients.states.meta.events.unregister("after-call.*.DescribeStateMachine", without_definition)
    assert (found.source, found.description, found.input) == (arn, None, {"type": "object"})
    assert f"{arn} is encrypted, and kms:Decrypt is not allowed" in caplog.text


@pytest.mark.parametrize(
    ("code", "told"), [("AccessDeniedException", "allow states:DescribeStateMachine"), ("StateMachineDoesNotExist", "")]
)
async def test_a_machine_that_cannot_be_described_is_left_out(
    owner: Owner, clients: Boto3Clients, shown: TaggedMachines, caplog: pytest.LogCaptureFixture, code: str, told: str
) -> None:
    arn = owner.tagged()
    with refusing(clients.states, "DescribeStateMachine", code):
        assert await shown.exposed() == []
    assert (told in caplog.text and arn in caplog.text) if told else not caplog.text


async def test_who_may_not_look_for_tags_hears_which_permission_is_missing(
    owner: Owner, clients: Boto3Clients, shown: TaggedMachines
) -> None:
    denied = pytest.raises(EngineRefused, match="tag:GetResources")
    with refusing(clients.tagging, "GetResources", "AccessDeniedException"), denied:
        await shown.exposed()


async def test_while_there_is_no_answer_what_is_known_stays(
    owner: Owner, clients: Boto3Clients, shown: TaggedMachines
) -> None:
    owner.tagged("known")
    [before] = await shown.exposed()
    with refusing(clients.states, "DescribeStateMachine", "InternalServerError"):
        assert await shown.exposed() == [before]
        owner.tagged("new")
        with pytest.raises(EngineUnavailable):
            await shown.exposed()


def test_the_tool_is_called_as_the_machine_and_names_that_are_too_long_never_become_one() -> None:
    for machine, name in (("fulfil.order-2_x", "fulfil.order-2_x"), ("a@b+c=d(e)", "a_b_c_d_e_"), ("a" * 64, "a" * 64)):
        assert tool_name(machine) == name
    names = {tool_name("a" * 79 + end) for end in "bc"} | {tool_name("a" * 65)}
    assert [len(name) for name in names] == [MAX_NAME] * 3


# --- the Comment of a definition


ORDER = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
NO_SCHEMA = ToolComment(problems=("inputSchema is no JSON Schema of an object",))
TOO_LONG = ToolComment(problems=("description is longer than 10000 characters",))
FULL = {"description": "Fulfils", "title": "Order", "name": "fulfil", "inputSchema": ORDER, "owner": "team"}


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        (" Fulfils an order. ", ToolComment(description="Fulfils an order.")),
        (FULL, ToolComment(description="Fulfils", title="Order", name="fulfil", input=ORDER)),
        (
            {"description": "for people", "mcp": {"description": "for models", "inputSchema": ORDER}},
            ToolComment(description="for models", input=ORDER),
        ),
        ("{not JSON}", ToolComment(description="{not JSON}")),
        ("[1]", ToolComment(description="[1]")),
        ({"inputSchema": "string"}, NO_SCHEMA),
        ({"mcp": {"inputSchema": [ORDER]}}, NO_SCHEMA),
        ({"description": ["a"]}, ToolComment(problems=("description is no text",))),
        ({"name": 7}, ToolComment(problems=("name is no text",))),
        ("x" * 10_001, TOO_LONG),
        ({"description": "x" * 10_001}, TOO_LONG),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_comment_is_the_description_or_json_that_says_more(comment: Any, said: ToolComment) -> None:
    text = comment if isinstance(comment, str) else json.dumps(comment)
    assert read_comment(json.dumps({"Comment": text, "StartAt": "A", "States": {}})) == said


@pytest.mark.parametrize("definition", ["", "no JSON", "[]", "{}", '{"Comment": 7}', '{"Comment": " "}', None])
def test_without_a_comment_any_object_is_taken(definition: Any) -> None:
    assert read_comment(definition) == ToolComment(input={"type": "object"})


async def test_all_state_machines_are_listed_the_most_frequent_first_and_only_the_newest_are_counted(
    stepfunctions: StepFunctions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PAGE", 2)
    arns = [stepfunctions.machine(definition(), type=kind) for kind in ("EXPRESS", "STANDARD", "STANDARD")]
    express, once, often = (arn.rpartition(":")[2] for arn in arns)
    for machine in (arns[1], arns[2], arns[2]):
        given = json.dumps({"order_id": "hunter2"})
        last = stepfunctions.client().start_execution(stateMachineArn=machine, input=given)["executionArn"]
    async with open_client(settings(stepfunctions)) as calls:
        seen = [each for each in await discover(calls) if each.workflow in (express, once, often)]
        monkeypatch.setattr(discovery, "COUNTED", 1)
        counted = [each.executions for each in await discover(calls) if each.workflow in (express, once, often)]
        named = {each.workflow: each.executions for each in await discover(calls, [once])}
    assert [each.workflow for each in seen] == [often, once, express]
    assert [each.executions for each in seen] == [2, 1, 0]
    assert [dict(each.options) for each in seen] == [{}, {}, {"express": True, "tasks": "forbidden"}]
    assert seen[0].last_seen == stepfunctions.client().describe_execution(executionArn=last)["startDate"]
    assert seen[0].input == {"type": "object", "properties": {"order_id": {"type": "string"}}}
    assert [each.is_sampled for each in seen] == [True, True, False]
    assert (seen[2].last_seen, seen[2].input) == (None, None)
    assert "hunter2" not in repr(seen)
    assert counted == [2, 0, 0]
    assert (named[once], named[often]) == (1, 0)
