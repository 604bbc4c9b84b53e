"""The local engine's Executions service, asked by the official client."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.workflows.executions_v1 import Execution, ExecutionView

from tests.support.google_engine import GoogleEngine
from tests.support.google_local_engine import local_engine
from tests.support.google_local_flows import ASK, FAIL, HELLO, SLEEP

State = Execution.State
NAME = re.compile(r"projects/123456789012/locations/us-central1/workflows/[a-z0-9-]+/executions/[0-9a-f-]{36}")


@pytest.fixture
async def client(google_engine: GoogleEngine) -> AsyncIterator[Any]:
    async with google_engine.async_executions() as client:
        yield client


async def ended(client: Any, name: str) -> Any:
    deadline = time.monotonic() + 60
    while True:
        found = await client.get_execution(name=name, timeout=60)
        if found.state not in (State.ACTIVE, State.QUEUED):
            return found
        assert time.monotonic() < deadline, found


async def listed(client: Any, parent: str, **request: Any) -> list[Any]:
    return [row async for row in await client.list_executions(request={"parent": parent, **request}, timeout=60)]


async def test_an_execution_is_named_with_the_number_of_the_project_and_found_by_either(
    google_engine: GoogleEngine, client: Any
) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    created = await client.create_execution(
        parent=workflow, execution=Execution(argument='{"a": [1, null]}'), timeout=60
    )
    assert NAME.fullmatch(created.name)
    assert created.state == State.ACTIVE
    assert created.argument == '{"a": [1, null]}'
    found = await ended(client, created.name.replace("123456789012", "demo"))
    assert (found.name, found.state, json.loads(found.result)) == (created.name, State.SUCCEEDED, {"a": [1, None]})
    assert found.end_time - found.start_time == found.duration
    assert found.workflow_revision_id.startswith("000001-")


async def test_the_basic_view_has_no_more_than_google_says(google_engine: GoogleEngine, client: Any) -> None:
    workflow = google_engine.deploy("hello", HELLO, labels={"team": "shop"})
    name = google_engine.execute(workflow, {"a": 1})
    full = await ended(client, name)
    basic = await client.get_execution(request={"name": name, "view": ExecutionView.BASIC}, timeout=60)
    message: Any = Execution  # typed in part only
    fields = {field.name for field, _ in message.pb(basic).ListFields()}
    assert fields == {"name", "start_time", "end_time", "duration", "state", "workflow_revision_id"}
    assert dict(full.labels) == {"team": "shop"}
    assert [(step.routine, step.step) for step in full.status.current_steps] == [("main", "answer")]
    assert await listed(client, workflow) == [basic]
    assert await listed(client, workflow, view=ExecutionView.FULL) == [full]


@pytest.mark.parametrize(
    ("what", "payload", "context"),
    [
        ("out of paint", '"out of paint"', 'RuntimeError: "out of paint"\nin step "breaking", routine "main", line: 6'),
        (
            {"message": "declined", "code": 402, "tags": ["Card"]},
            '{"message": "declined", "code": 402, "tags": ["Card"]}',
            'declined\nin step "breaking", routine "main", line: 6',
        ),
    ],
)
async def test_a_failure_carries_payload_and_place(
    google_engine: GoogleEngine, client: Any, what: Any, payload: str, context: str
) -> None:
    name = google_engine.execute(google_engine.deploy("fail", FAIL), {"what": what})
    found = await ended(client, name)
    assert found.state == State.FAILED
    assert not found.result
    assert json.loads(found.error.payload) == json.loads(payload)
    assert re.sub(r"line: \d+", "line: 6", found.error.context) == context
    assert [(at.step, at.routine) for at in found.error.stack_trace.elements] == [("breaking", "main")]


@pytest.mark.parametrize("argument", ["{", '"' + "x" * 32 * 1024 + '"'])
async def test_an_argument_that_google_does_not_take_starts_nothing(
    google_engine: GoogleEngine, client: Any, argument: str
) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    with pytest.raises(exceptions.InvalidArgument, match=r"not valid JSON|32770 bytes are more than 32768"):
        await client.create_execution(parent=workflow, execution=Execution(argument=argument), timeout=60)
    assert await listed(client, workflow) == []


@pytest.mark.parametrize(
    "labels",
    [
        {"Key": "v"},
        {"k": "V"},
        {"1k": "v"},
        {"k": "v" * 64},
        {"": "v"},
        {"k.k": "v"},
        {f"k{n}": "v" for n in range(65)},
    ],
)
async def test_labels_keep_googles_rules(google_engine: GoogleEngine, client: Any, labels: dict[str, str]) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    with pytest.raises(exceptions.InvalidArgument, match="label"):
        await client.create_execution(parent=workflow, execution=Execution(labels=labels), timeout=60)


async def test_filters_and_order(google_engine: GoogleEngine, client: Any) -> None:
    workflow = google_engine.deploy("sleep", SLEEP)
    names = [google_engine.execute(workflow, {"seconds": 0}, {"key": f"k{n}"}) for n in range(3)]
    for name in names:
        await ended(client, name)
    going = google_engine.execute(workflow, {"seconds": 600}, {"key": "k0"})
    first = await client.get_execution(name=names[0], timeout=60)
    after = first.start_time.rfc3339()
    expected = {
        "": [going, *reversed(names)],
        'state="ACTIVE"': [going],
        "state=SUCCEEDED AND labels.key=k1": [names[1]],
        'labels.key="k0"': [going, names[0]],
        'label.key:"k0"': [going, names[0]],
        "labels:key": [going, *reversed(names)],
        'labels.other="k0"': [],
        f'startTime>"{after}"': [going, names[2], names[1]],
        f'startTime>="{after}" AND state!="ACTIVE"': [names[2], names[1], names[0]],
        'startTime>"2023-08-01"': [going, *reversed(names)],
        f'executionId="{names[2].rpartition("/")[2]}"': [names[2]],
        'endTime<"2023-08-01"': [],
        'stepName="nap"': [going],
    }
    for text, found in expected.items():
        assert [row.name for row in await listed(client, workflow, filter=text)] == found, text
    assert [row.name for row in await listed(client, workflow, order_by="startTime")] == [*names, going]
    await client.cancel_execution(name=going, timeout=60)


@pytest.mark.parametrize(
    "text",
    [
        'colour="red"',
        'state="ACTIVE" OR state="FAILED"',
        "(state=ACTIVE)",
        "state",
        'startTime>"soon"',
        "NOT state=ACTIVE",
    ],
)
async def test_a_filter_that_is_not_understood_is_refused(google_engine: GoogleEngine, client: Any, text: str) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    google_engine.ended(google_engine.execute(workflow))
    with pytest.raises(exceptions.InvalidArgument, match="invalid filter"):
        await listed(client, workflow, filter=text)


async def test_pages_follow_each_other_and_belong_to_one_question(google_engine: GoogleEngine, client: Any) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    names = [google_engine.execute(workflow) for _ in range(5)]
    request = {"parent": workflow, "page_size": 2}
    pages = [page async for page in (await client.list_executions(request=request, timeout=60)).pages]
    assert [[row.name for row in page.executions] for page in pages] == [names[:2:-1], names[2:0:-1], names[:1]]
    token = pages[0].next_page_token
    with pytest.raises(exceptions.InvalidArgument, match="invalid page token"):
        await listed(client, workflow, page_token=token, filter='state="ACTIVE"')
    with pytest.raises(exceptions.InvalidArgument, match="invalid page token"):
        await listed(client, workflow, page_token="nonsense")


async def test_names_that_are_not_there(google_engine: GoogleEngine, client: Any) -> None:
    place = google_engine.place
    with pytest.raises(exceptions.NotFound, match=f"Resource '{place}/workflows/none' was not found"):
        await client.create_execution(parent=f"{place}/workflows/none", execution=Execution(), timeout=60)
    with pytest.raises(exceptions.NotFound, match="workflows/none' was not found"):
        await listed(client, f"{place}/workflows/none")
    with pytest.raises(exceptions.NotFound, match="executions/none' was not found"):
        await client.get_execution(name=f"{place}/workflows/none/executions/none", timeout=60)
    with pytest.raises(exceptions.NotFound, match="projects/demo/locations/europe-west1' was not found"):
        await listed(client, "projects/demo/locations/europe-west1/workflows/none")
    with pytest.raises(
        exceptions.PermissionDenied, match=r"Permission 'workflows\.executions\.list' denied on resource"
    ):
        await listed(client, "projects/other-project/locations/us-central1/workflows/none")
    with pytest.raises(exceptions.InvalidArgument, match="invalid name 'hello'"):
        await listed(client, "hello")


async def test_more_than_may_run_at_once_wait_for_their_turn() -> None:
    async with local_engine(most=1) as engine:
        workflow = await engine.deploy("ask", ASK)
        argument = {"method": "POST", "timeout": 60}
        first, second, third = [await engine.execute(workflow, argument) for _ in range(3)]
        assert await engine.states(first, second, third) == [State.ACTIVE, State.QUEUED, State.QUEUED]
        assert "start_time" not in await engine.seen(second)
        assert [row.name for row in await listed(engine.executions, workflow, filter='state="QUEUED"')] == [
            third,
            second,
        ]
        await engine.executions.cancel_execution(name=second, timeout=60)
        await engine.executions.cancel_execution(name=first, timeout=60)
        assert await engine.states(first, second, third) == [State.CANCELLED, State.CANCELLED, State.ACTIVE]
