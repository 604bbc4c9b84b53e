"""The local engine's Workflows service, asked by the official client."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.workflows_v1 import Workflow
from google.protobuf.field_mask_pb2 import FieldMask

from tests.support.google_engine import ACCOUNT, GoogleEngine
from tests.support.google_local_flows import HELLO

OTHER = "main: {steps: [{answer: {return: other}}]}"


@pytest.fixture
async def client(google_engine: GoogleEngine) -> AsyncIterator[Any]:
    async with google_engine.async_workflows() as client:
        yield client


async def create(client: Any, engine: GoogleEngine, workflow_id: str, **fields: Any) -> Any:
    given: Any = {"source_contents": HELLO, **fields}
    workflow = Workflow(given)
    operation = await client.create_workflow(
        parent=engine.place, workflow=workflow, workflow_id=workflow_id, timeout=60
    )
    assert await operation.done()
    return await operation.result(timeout=60)


async def test_a_workflow_is_created_updated_and_deleted(google_engine: GoogleEngine, client: Any) -> None:
    made = await create(client, google_engine, "crud", description="says hello", labels={"mcp-tool": "true"})
    assert made.name == "projects/demo/locations/us-central1/workflows/crud"
    assert (made.state, made.service_account, made.source_contents) == (Workflow.State.ACTIVE, ACCOUNT, HELLO)
    assert re.fullmatch(r"000001-[0-9a-f]{3}", made.revision_id)
    assert await client.get_workflow(name=made.name, timeout=60) == made

    changed = Workflow(name=made.name, description="greets", source_contents="not sent")
    operation = await client.update_workflow(workflow=changed, update_mask=FieldMask(paths=["description"]), timeout=60)
    greets = await operation.result(timeout=60)
    assert (greets.description, greets.source_contents, greets.revision_id) == ("greets", HELLO, made.revision_id)

    operation = await client.update_workflow(workflow=Workflow(name=made.name, source_contents=OTHER), timeout=60)
    other = await operation.result(timeout=60)
    assert (other.description, dict(other.labels), other.source_contents) == ("", {}, OTHER)
    assert other.revision_id.startswith("000002-")
    assert other.create_time == made.create_time
    revisions = [row async for row in await client.list_workflow_revisions(request={"name": made.name}, timeout=60)]
    assert revisions == [other, greets]
    old = await client.get_workflow(request={"name": made.name, "revision_id": made.revision_id}, timeout=60)
    assert old == greets

    operation = await client.delete_workflow(name=made.name, timeout=60)
    await operation.result(timeout=60)
    assert operation.metadata.target == made.name
    with pytest.raises(exceptions.NotFound):
        await client.get_workflow(name=made.name, timeout=60)


async def test_workflows_are_listed_by_label(google_engine: GoogleEngine, client: Any) -> None:
    one = google_engine.deploy("one", HELLO, labels={"listed": "yes", "n": "1"}, description="first")
    two = google_engine.deploy("two", HELLO, labels={"listed": "yes", "n": "2"})
    google_engine.deploy("three", HELLO, labels={"listed": "no"})

    async def named(text: str) -> list[str]:
        request = {"parent": google_engine.place, "filter": text, "page_size": 1}
        return [row.name async for row in await client.list_workflows(request=request, timeout=60)]

    assert await named("labels.listed=yes") == [one, two]
    assert await named('labels.listed="yes" AND labels.n="2"') == [two]
    with pytest.raises(exceptions.InvalidArgument, match="unknown field 'colour'"):
        await named("colour=red")


@pytest.mark.parametrize(
    ("workflow_id", "fields", "text"),
    [
        ("bad", {"source_contents": "main:\n  steps:\n    - a:\n        colour: red\n"}, "line 4, column"),
        ("bad", {"source_contents": ""}, "line 1"),
        ("bad", {"source_contents": HELLO + "#" * 128 * 1024}, "larger than 131072 bytes"),
        ("bad", {"labels": {"Bad": "x"}}, "label key 'Bad' is invalid"),
        ("bad", {"user_env_vars": {"GOOGLE_X": "x"}}, "invalid name of an environment variable: 'GOOGLE_X'"),
        ("bad", {"user_env_vars": {f"E{n}": "x" for n in range(21)}}, "21 environment variables are more than 20"),
        ("bad", {"description": "d" * 1001}, "longer than 1000"),
        ("1bad", {}, "invalid workflow_id '1bad'"),
        ("", {}, "invalid workflow_id"),
    ],
)
async def test_what_google_would_not_deploy_is_refused(
    google_engine: GoogleEngine, client: Any, workflow_id: str, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=re.escape(text)):
        await create(client, google_engine, workflow_id, **fields)


async def test_updates_that_make_no_sense_are_refused(google_engine: GoogleEngine, client: Any) -> None:
    workflow = google_engine.deploy("steady", HELLO)
    with pytest.raises(exceptions.AlreadyExists, match="already exists"):
        await create(client, google_engine, workflow.rpartition("/")[2])
    with pytest.raises(exceptions.InvalidArgument, match="cannot be updated: name"):
        await client.update_workflow(
            workflow=Workflow(name=workflow), update_mask=FieldMask(paths=["name"]), timeout=60
        )
    with pytest.raises(exceptions.NotFound):
        await client.update_workflow(workflow=Workflow(name=f"{google_engine.place}/workflows/none"), timeout=60)
    with pytest.raises(exceptions.NotFound):
        await client.delete_workflow(name=f"{google_engine.place}/workflows/none", timeout=60)
