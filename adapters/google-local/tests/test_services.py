"""The local engine's Executions and Workflows services, its callbacks, and the requests that workflows make."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import jwt
import pytest
from google.api_core import exceptions
from google.cloud.workflows.executions_v1 import Execution, ExecutionView
from google.cloud.workflows_v1 import Workflow
from google.protobuf.field_mask_pb2 import FieldMask

from tests.support.google_engine import ACCOUNT, GoogleEngine
from tests.support.google_local_engine import local_engine
from tests.support.google_local_flows import ASK, FAIL, FETCH, HELLO, LATER, SLEEP
from tests.support.google_local_listener import Listener, listening

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


async def test_an_execution_is_named_with_the_number_of_the_project_and_shown_in_two_views(
    google_engine: GoogleEngine, client: Any
) -> None:
    workflow = google_engine.deploy("hello", HELLO, labels={"team": "shop"})
    created = await client.create_execution(
        parent=workflow, execution=Execution(argument='{"a": [1, null]}'), timeout=60
    )
    assert NAME.fullmatch(created.name)
    assert (created.state, created.argument) == (State.ACTIVE, '{"a": [1, null]}')
    full = await ended(client, created.name.replace("123456789012", "demo"))
    assert (full.name, full.state, json.loads(full.result)) == (created.name, State.SUCCEEDED, {"a": [1, None]})
    assert full.end_time - full.start_time == full.duration
    assert dict(full.labels) == {"team": "shop"}
    basic = await client.get_execution(request={"name": full.name, "view": ExecutionView.BASIC}, timeout=60)
    message: Any = Execution  # typed in part only
    fields = {field.name for field, _ in message.pb(basic).ListFields()}
    assert fields == {"name", "start_time", "end_time", "duration", "state", "workflow_revision_id"}
    assert await listed(client, workflow) == [basic]
    assert await listed(client, workflow, view=ExecutionView.FULL) == [full]


@pytest.mark.parametrize(
    ("what", "context"),
    [
        ("out of paint", 'RuntimeError: "out of paint"\nin step "breaking", routine "main", line: 6'),
        (
            {"message": "declined", "code": 402, "tags": ["Card"]},
            'declined\nin step "breaking", routine "main", line: 6',
        ),
    ],
)
async def test_a_failure_carries_payload_and_place(
    google_engine: GoogleEngine, client: Any, what: Any, context: str
) -> None:
    name = google_engine.execute(google_engine.deploy("fail", FAIL), {"what": what})
    found = await ended(client, name)
    assert (found.state, json.loads(found.error.payload)) == (State.FAILED, what)
    assert re.sub(r"line: \d+", "line: 6", found.error.context) == context
    assert [(at.step, at.routine) for at in found.error.stack_trace.elements] == [("breaking", "main")]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"argument": "{"}, "not valid JSON"),
        ({"argument": '"' + "x" * 32 * 1024 + '"'}, "32770 bytes are more than 32768"),
        ({"labels": {"Key": "v"}}, "label"),
        ({"labels": {"k": "V"}}, "label"),
        ({"labels": {f"k{n}": "v" for n in range(65)}}, "label"),
    ],
)
async def test_what_google_does_not_take_starts_nothing(
    google_engine: GoogleEngine, client: Any, given: Any, why: str
) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    with pytest.raises(exceptions.InvalidArgument, match=why):
        await client.create_execution(parent=workflow, execution=Execution(given), timeout=60)
    assert await listed(client, workflow) == []


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
        "state=SUCCEEDED AND labels.key=k1": [names[1]],
        'label.key:"k0"': [going, names[0]],
        "labels:key": [going, *reversed(names)],
        f'startTime>="{after}" AND state!="ACTIVE"': [names[2], names[1], names[0]],
        f'executionId="{names[2].rpartition("/")[2]}"': [names[2]],
        'endTime<"2023-08-01"': [],
        'stepName="nap"': [going],
    }
    for text, found in expected.items():
        assert [row.name for row in await listed(client, workflow, filter=text)] == found, text
    assert [row.name for row in await listed(client, workflow, order_by="startTime")] == [*names, going]
    for wrong in ('colour="red"', 'state="ACTIVE" OR state="FAILED"', 'startTime>"soon"'):
        with pytest.raises(exceptions.InvalidArgument, match="invalid filter"):
            await listed(client, workflow, filter=wrong)
    await client.cancel_execution(name=going, timeout=60)


async def test_pages_follow_each_other_and_belong_to_one_question(google_engine: GoogleEngine, client: Any) -> None:
    workflow = google_engine.deploy("hello", HELLO)
    names = [google_engine.execute(workflow) for _ in range(5)]
    request = {"parent": workflow, "page_size": 2}
    pages = [page async for page in (await client.list_executions(request=request, timeout=60)).pages]
    assert [[row.name for row in page.executions] for page in pages] == [names[:2:-1], names[2:0:-1], names[:1]]
    with pytest.raises(exceptions.InvalidArgument, match="invalid page token"):
        await listed(client, workflow, page_token=pages[0].next_page_token, filter='state="ACTIVE"')


async def test_names_that_are_not_there(google_engine: GoogleEngine, client: Any) -> None:
    place = google_engine.place
    with pytest.raises(exceptions.NotFound, match=f"Resource '{place}/workflows/none' was not found"):
        await client.create_execution(parent=f"{place}/workflows/none", execution=Execution(), timeout=60)
    with pytest.raises(exceptions.NotFound, match="executions/none' was not found"):
        await client.get_execution(name=f"{place}/workflows/none/executions/none", timeout=60)
    denied = pytest.raises(exceptions.PermissionDenied, match=r"Permission 'workflows\.executions\.list' denied")
    with denied:
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


# --- workflows


@pytest.fixture
def workflows(google_engine: GoogleEngine) -> Any:
    return google_engine.workflows()


def test_a_workflow_is_created_updated_listed_and_deleted(google_engine: GoogleEngine, workflows: Any) -> None:
    name = google_engine.deploy("crud", HELLO, description="says hello", labels={"listed": "yes"})
    made = workflows.get_workflow(name=name, timeout=60)
    assert (made.state, made.service_account, made.source_contents) == (Workflow.State.ACTIVE, ACCOUNT, HELLO)
    request = {"parent": google_engine.place, "filter": 'labels.listed="yes"', "page_size": 1}
    assert [row.name for row in workflows.list_workflows(request=request, timeout=60)] == [name]
    with pytest.raises(exceptions.InvalidArgument, match="unknown field 'colour'"):
        workflows.list_workflows(request={**request, "filter": "colour=red"}, timeout=60)
    changed, mask = Workflow(name=name, description="greets", source_contents="not sent"), ["description"]
    greets = workflows.update_workflow(workflow=changed, update_mask=FieldMask(paths=mask), timeout=60).result(60)
    assert (greets.description, greets.source_contents, greets.revision_id) == ("greets", HELLO, made.revision_id)
    source = "main: {steps: [{answer: {return: other}}]}"
    other = workflows.update_workflow(workflow=Workflow(name=name, source_contents=source), timeout=60).result(60)
    assert (other.description, dict(other.labels), other.revision_id[:7]) == ("", {}, "000002-")
    assert list(workflows.list_workflow_revisions(request={"name": name}, timeout=60)) == [other, greets]
    workflows.delete_workflow(name=name, timeout=60).result(60)
    with pytest.raises(exceptions.NotFound):
        workflows.get_workflow(name=name, timeout=60)


@pytest.mark.parametrize(
    ("workflow_id", "fields", "text"),
    [
        ("bad", {"source_contents": "main:\n  steps:\n    - a:\n        colour: red\n"}, "line 4, column"),
        ("bad", {"source_contents": HELLO + "#" * 128 * 1024}, "larger than 131072 bytes"),
        ("bad", {"labels": {"Bad": "x"}}, "label key 'Bad' is invalid"),
        ("bad", {"user_env_vars": {"GOOGLE_X": "x"}}, "invalid name of an environment variable: 'GOOGLE_X'"),
        ("bad", {"user_env_vars": {f"E{n}": "x" for n in range(21)}}, "21 environment variables are more than 20"),
        ("bad", {"description": "d" * 1001}, "longer than 1000"),
        ("1bad", {}, "invalid workflow_id '1bad'"),
    ],
)
def test_what_google_would_not_deploy_is_refused(
    google_engine: GoogleEngine, workflows: Any, workflow_id: str, fields: dict[str, Any], text: str
) -> None:
    given: Any = {"source_contents": HELLO, **fields}
    with pytest.raises(exceptions.InvalidArgument, match=re.escape(text)):
        workflows.create_workflow(
            parent=google_engine.place, workflow=Workflow(given), workflow_id=workflow_id, timeout=60
        )


# --- callbacks


@pytest.fixture
def http(google_engine: GoogleEngine) -> Iterator[httpx2.Client]:
    token = {"Authorization": "Bearer anything"}
    with httpx2.Client(base_url=google_engine.url, headers=token, trust_env=False) as client:
        yield client


def waiting(engine: GoogleEngine, http: httpx2.Client) -> tuple[str, Any, str]:
    """An execution that waits, its callback as the list has it, and the path of that."""
    name = engine.execute(engine.deploy("ask", ASK), {"method": "POST", "timeout": 60})
    deadline = time.monotonic() + 60
    while True:
        found = http.get(f"/v1/{name}/callbacks").json()["callbacks"]
        if found and found[0]["waiters"] == "1":
            return name, found[0], path(name, found[0])
        assert time.monotonic() < deadline
        time.sleep(0.01)


def path(name: str, callback: Any) -> str:
    return f"/v1/{name}/callbacks/{callback['name'].rpartition('/')[2]}"


@pytest.mark.parametrize(
    ("content", "kind", "body"),
    [
        (b'{"approved": true}', "application/json", {"approved": True}),
        (b"", "application/json", None),
        (b"{oops", "application/json", "{oops"),
    ],
)
def test_a_request_to_the_endpoint_is_what_the_workflow_waits_for(
    google_engine: GoogleEngine, http: httpx2.Client, content: bytes, kind: str, body: Any
) -> None:
    name, callback, url = waiting(google_engine, http)
    assert callback == {"name": callback["name"], "method": "POST", "waiters": "1", "availablePayloads": []}
    assert callback["name"].startswith(f"{name}/callback/")
    reply = http.post(f"{url}?by=mail", content=content, headers={"X-By": "Ada", "Content-Type": kind})
    assert reply.status_code == 200
    request = json.loads(google_engine.ended(name).result)
    seen = request["http_request"]
    assert (request["type"], seen["method"], seen["url"], seen["query"]) == (
        *("HTTP", "POST", f"{url}?by=mail"),
        {"by": "mail"},
    )
    assert (seen["body"], seen["headers"]["X-By"], seen["headers"]["Content-Type"]) == (body, "Ada", kind)
    assert "anything" not in json.dumps(request)
    assert http.post(url, json={}).status_code == 404
    assert http.get(f"/v1/{name}/callbacks").json() == {"callbacks": []}


def test_what_does_not_fit_a_callback_is_refused(google_engine: GoogleEngine, http: httpx2.Client) -> None:
    name, _, url = waiting(google_engine, http)
    refused = [
        (httpx2.post(f"{google_engine.url}{url}", json={}, trust_env=False), 401, "UNAUTHENTICATED"),
        (http.put(url, json={}), 405, "METHOD_NOT_ALLOWED"),
        (http.post(f"{url}x", json={}), 404, "NOT_FOUND"),
        (http.post(url.replace("123456789012", "other-project"), json={}), 403, "PERMISSION_DENIED"),
        (http.get(f"/v1/{name}/callbacks?pageSize=many"), 400, "INVALID_ARGUMENT"),
    ]
    for reply, status, word in refused:
        assert (reply.status_code, reply.json()["error"]["status"]) == (status, word)
    google_engine.executions().cancel_execution(name=name, timeout=60)
    assert http.post(url, json={}).status_code == 404


def test_a_request_that_nobody_waits_for_yet_is_kept_and_a_second_one_refused(
    google_engine: GoogleEngine, http: httpx2.Client
) -> None:
    name = google_engine.execute(google_engine.deploy("later", LATER))
    google_engine.at(name, "wait")
    listed = http.get(f"/v1/{name}/callbacks", params={"pageSize": 1}).json()
    rest = http.get(f"/v1/{name}/callbacks", params={"pageSize": 1, "pageToken": listed["nextPageToken"]}).json()
    one, two = sorted([*listed["callbacks"], *rest["callbacks"]], key=lambda callback: str(callback["waiters"]))
    assert http.post(path(name, one), json=["early"]).status_code == 200
    assert http.post(path(name, one), json=["twice"]).status_code == 429
    assert http.post(path(name, two), json={}).status_code == 200
    assert google_engine.ended(name).result == '["early"]'


# --- requests that workflows make


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def fetched(engine: GoogleEngine, url: str, **more: Any) -> Execution:
    given = {"url": url, "auth": None, "timeout": 10, **more}
    return engine.ended(engine.execute(engine.deploy("fetch", FETCH), given))


def test_a_request_is_made_with_a_token_that_our_keys_verify(google_engine: GoogleEngine, listener: Listener) -> None:
    auth = {"type": "OIDC", "audience": "https://shop.example"}
    reply = json.loads(fetched(google_engine, f"{listener.url}/order?n=1", auth=auth).result)
    (came,) = listener.requests
    assert (came["method"], came["path"], json.loads(came["body"])) == ("POST", "/order?n=1", {"order": 7})
    assert came["headers"]["X-Shop"] == "here"
    assert (reply["code"], reply["body"]) == (200, json.loads(json.dumps(came)))
    scheme, _, token = came["headers"]["Authorization"].partition(" ")
    key = jwt.PyJWKClient(f"{google_engine.url}/oauth2/v3/certs").get_signing_key_from_jwt(token)
    checks: Any = {"audience": "https://shop.example", "issuer": google_engine.url}
    claims = jwt.decode(token, key.key, algorithms=["RS256"], **checks)
    assert (scheme, claims["email"], claims["exp"] - claims["iat"]) == ("Bearer", ACCOUNT, 3600)


@pytest.mark.parametrize(
    ("where", "tag", "message"),
    [("/status/503", "HttpError", "503"), ("/slow", "TimeoutError", "timed out"), ("/cut", "ConnectionError", "broke")],
)
def test_what_goes_wrong_is_an_error_of_the_workflow(
    google_engine: GoogleEngine, listener: Listener, where: str, tag: str, message: str
) -> None:
    found = fetched(google_engine, f"{listener.url}{where}", timeout=0.3)
    payload = json.loads(found.error.payload)
    assert (found.state, tag in payload["tags"], message in payload["message"]) == (State.FAILED, True, True), payload
