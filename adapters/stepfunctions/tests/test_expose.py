"""State machines that are tagged are tools: found, described, and nothing else."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from mcp_workflows_stepfunctions.boto3_clients import Boto3Clients, open_boto3_clients
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling import discover as discovery
from mcp_workflows_stepfunctions.tooling import discover as expose
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
from mcp_workflows.kit.tooling import Discovered
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


async def test_only_what_has_the_tag_with_its_value_is_shown(owner: Owner, shown: TaggedMachines) -> None:
    arn = owner.tagged("Fulfils an order.", name=f"fulfil.order-{uuid.uuid4().hex[:6]}")
    owner.tagged(value="false")
    owner.engine.machine(definition())
    [found] = await shown.exposed()
    assert (found.workflow, found.source, found.name) == (arn, arn, arn.rpartition(":")[2])
    assert (found.description, found.input, found.options) == ("Fulfils an order.", {"type": "object"}, {})


async def test_the_comment_says_what_the_tool_is(owner: Owner, shown: TaggedMachines) -> None:
    owner.tagged(json.dumps({"mcp": {"name": "fulfil", "title": "Order", "inputSchema": SCHEMA}}), type="EXPRESS")
    [found] = await shown.exposed()
    assert (found.name, found.title, found.input, found.options) == ("fulfil", "Order", SCHEMA, {"express": True})


async def test_all_pages_are_read(owner: Owner, shown: TaggedMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expose, "PAGE", 2)
    arns = {owner.tagged() for _ in range(5)}
    assert {found.source for found in await shown.exposed()} == arns


async def test_what_changes_shows_at_the_next_look(owner: Owner, shown: TaggedMachines) -> None:
    arn, gone = owner.tagged("old"), owner.tagged("gone")
    assert {found.description for found in await shown.exposed()} == {"old", "gone"}
    client = owner.engine.client()
    client.update_state_machine(stateMachineArn=arn, definition=json.dumps(definition("new")))
    client.untag_resource(resourceArn=gone, tagKeys=[owner.key])
    new = owner.tagged("added")
    assert {found.source: found.description for found in await shown.exposed()} == {arn: "new", new: "added"}


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


async def test_without_the_setting_nothing_is_shown(owner: Owner, clients: Boto3Clients) -> None:
    owner.tagged()
    assert await TaggedMachines(Client(clients, owner.settings), None).exposed() == []


@pytest.mark.parametrize(
    ("machine", "name"),
    [("fulfil.order-2_x", "fulfil.order-2_x"), ("a@b+c=d(e)", "a_b_c_d_e_"), ("a" * 64, "a" * 64)],
)
def test_the_tool_is_called_as_the_machine(machine: str, name: str) -> None:
    assert tool_name(machine) == name


def test_names_that_are_too_long_never_become_one() -> None:
    names = {tool_name("a" * 79 + end) for end in "bc"} | {tool_name("a" * 65)}
    assert len(names) == 3
    assert all(len(name) == MAX_NAME for name in names)


# --- the Comment of a definition


ORDER = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}


def said(comment: Any) -> ToolComment:
    return read_comment(json.dumps({"Comment": comment, "StartAt": "A", "States": {}}))


def test_plain_text_is_the_description() -> None:
    assert said(" Fulfils an order. ") == ToolComment(description="Fulfils an order.")


def test_json_says_more() -> None:
    comment = {
        "description": "Fulfils",
        "title": "Order",
        "name": "fulfil",
        "inputSchema": ORDER,
        "owner": "team",
    }
    assert said(json.dumps(comment)) == ToolComment(description="Fulfils", title="Order", name="fulfil", input=ORDER)


def test_json_under_mcp_wins_over_what_is_beside_it() -> None:
    comment = {"description": "for people", "mcp": {"description": "for models", "inputSchema": ORDER}}
    assert said(json.dumps(comment)) == ToolComment(description="for models", input=ORDER)


@pytest.mark.parametrize(
    "definition", ["", "no JSON", "[]", "{}", '{"Comment": 7}', '{"Comment": " "}', None, "[" * 9999]
)
def test_without_a_comment_any_object_is_taken(definition: Any) -> None:
    assert read_comment(definition) == ToolComment(input={"type": "object"})


@pytest.mark.parametrize("comment", ["{not JSON}", "{", "[1]", "see {docs}"])
def test_what_only_looks_like_json_is_text(comment: str) -> None:
    assert said(comment).description == comment


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ({"inputSchema": "string"}, "inputSchema is no JSON Schema of an object"),
        ({"mcp": {"inputSchema": [ORDER]}}, "inputSchema is no JSON Schema of an object"),
        ({"description": ["a"]}, "description is no text"),
        ({"name": 7}, "name is no text"),
    ],
)
def test_what_cannot_be_meant_so_is_a_problem(comment: Any, problem: str) -> None:
    assert said(json.dumps(comment)) == ToolComment(problems=(problem,))


@pytest.mark.parametrize("comment", ["x" * 10_001, json.dumps({"description": "x" * 10_001})])
def test_a_text_that_every_list_of_tools_would_drag_along_is_none(comment: str) -> None:
    assert said(comment).problems == ("description is longer than 10000 characters",)


# --- all state machines, for `import` and `init`


SUCCEED = {"StartAt": "A", "States": {"A": {"Type": "Succeed"}}}


@pytest.fixture
async def calls(stepfunctions: StepFunctions) -> AsyncIterator[Client]:
    async with open_client(settings(stepfunctions)) as calls:
        yield calls


async def found(calls: Client, *arns: str) -> list[Discovered]:
    names = [arn.rpartition(":")[2] for arn in arns]
    return [each for each in await discover(calls) if each.workflow in names]


async def test_all_state_machines_are_listed_the_most_frequent_first(
    stepfunctions: StepFunctions, calls: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "PAGE", 2)
    express, once, often = (stepfunctions.machine(SUCCEED, type=kind) for kind in ("EXPRESS", "STANDARD", "STANDARD"))
    for machine in (once, often, often):
        last = stepfunctions.client().start_execution(stateMachineArn=machine)["executionArn"]
    seen = await found(calls, express, once, often)
    assert [each.workflow for each in seen] == [arn.rpartition(":")[2] for arn in (often, once, express)]
    assert [each.executions for each in seen] == [2, 1, 0]
    assert [dict(each.options) for each in seen] == [{}, {}, {"express": True, "tasks": "forbidden"}]
    assert seen[0].last_seen == stepfunctions.client().describe_execution(executionArn=last)["startDate"]
    assert seen[2].last_seen is None


async def test_only_the_newest_are_counted(
    stepfunctions: StepFunctions, calls: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "COUNTED", 1)
    old, new = stepfunctions.machine(SUCCEED), stepfunctions.machine(SUCCEED)
    for machine in (old, new):
        stepfunctions.client().start_execution(stateMachineArn=machine)
    assert [each.executions for each in await found(calls, old, new)] == [1, 0]
