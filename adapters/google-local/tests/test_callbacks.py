"""Callbacks of the local engine: the list, and requests to the endpoints, over plain HTTP on the one port."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from google.cloud.workflows.executions_v1 import Execution

from tests.support.google_engine import GoogleEngine
from tests.support.google_local_flows import ASK, LATER

State = Execution.State
TOKEN = {"Authorization": "Bearer anything"}


@pytest.fixture
def http(google_engine: GoogleEngine) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=google_engine.url, headers=TOKEN, trust_env=False) as client:
        yield client


def waiting(engine: GoogleEngine, http: httpx2.Client, **argument: Any) -> tuple[str, Any]:
    """An execution that waits, and its callback as the list has it."""
    name = engine.execute(engine.deploy("ask", ASK), {"method": "POST", "timeout": 60, **argument})
    deadline = time.monotonic() + 60
    while True:
        found = http.get(f"/v1/{name}/callbacks").json()["callbacks"]
        if found and found[0]["waiters"] == "1":
            return name, found[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def path(name: str, callback: Any) -> str:
    return f"/v1/{name}/callbacks/{callback['name'].rpartition('/')[2]}"


def test_a_request_to_the_endpoint_is_what_the_workflow_waits_for(
    google_engine: GoogleEngine, http: httpx2.Client
) -> None:
    name, callback = waiting(google_engine, http)
    assert callback == {
        "name": f"{name}/callback/{callback['name'].rpartition('/')[2]}",
        "method": "POST",
        "waiters": "1",
        "availablePayloads": [],
    }
    url = path(name, callback)
    reply = http.post(f"{url}?by=mail", json={"approved": True}, headers={"X-By": "Ada"})
    assert reply.status_code == 200
    request = json.loads(google_engine.ended(name).result)
    seen = request["http_request"]
    assert (request["type"], seen["method"], seen["url"], seen["query"]) == (
        "HTTP",
        "POST",
        f"{url}?by=mail",
        {"by": "mail"},
    )
    assert seen["body"] == {"approved": True}
    assert (seen["headers"]["X-By"], seen["headers"]["Content-Type"]) == ("Ada", "application/json")
    assert "anything" not in json.dumps(request)
    assert http.post(url, json={}).status_code == 404
    assert http.get(f"/v1/{name}/callbacks").json() == {"callbacks": []}


@pytest.mark.parametrize(
    ("content", "kind", "body"),
    [(b"", "application/json", None), (b"plain", "text/plain", "plain"), (b"{oops", "application/json", "{oops")],
)
def test_bodies_that_are_no_json_are_text(
    google_engine: GoogleEngine, http: httpx2.Client, content: bytes, kind: str, body: Any
) -> None:
    name, callback = waiting(google_engine, http, method="PUT")
    assert http.put(path(name, callback), content=content, headers={"Content-Type": kind}).status_code == 200
    assert json.loads(google_engine.ended(name).result)["http_request"]["body"] == body


def test_what_does_not_fit_is_refused(google_engine: GoogleEngine, http: httpx2.Client) -> None:
    name, callback = waiting(google_engine, http)
    url = path(name, callback)
    refused = [
        (httpx2.post(f"{google_engine.url}{url}", json={}, trust_env=False), 401, "UNAUTHENTICATED"),
        (http.put(url, json={}), 405, "METHOD_NOT_ALLOWED"),
        (http.post(f"{url}x", json={}), 404, "NOT_FOUND"),
        (http.post(url.replace("/executions/", "/executions/x"), json={}), 404, "NOT_FOUND"),
        (http.post(url.replace("123456789012", "other-project"), json={}), 403, "PERMISSION_DENIED"),
        (http.get(f"/v1/{name}/callbacks?pageSize=many"), 400, "INVALID_ARGUMENT"),
        (http.get(f"/v1/{name}x/callbacks"), 404, "NOT_FOUND"),
    ]
    for reply, status, word in refused:
        assert (reply.status_code, reply.json()["error"]["status"]) == (status, word)
    assert google_engine.seen(name).state == State.ACTIVE
    google_engine.executions().cancel_execution(name=name, timeout=60)
    assert http.post(url, json={}).status_code == 404


def test_a_request_that_nobody_waits_for_yet_is_kept_and_a_second_one_refused(
    google_engine: GoogleEngine, http: httpx2.Client
) -> None:
    name = google_engine.execute(google_engine.deploy("later", LATER))
    google_engine.at(name, "wait")
    listed = http.get(f"/v1/{name}/callbacks", params={"pageSize": 1}).json()
    rest = http.get(f"/v1/{name}/callbacks", params={"pageSize": 1, "pageToken": listed["nextPageToken"]}).json()
    callbacks = [*listed["callbacks"], *rest["callbacks"]]
    assert "nextPageToken" not in rest
    assert [callback["name"] for callback in callbacks] == sorted(callback["name"] for callback in callbacks)
    (one,) = [callback for callback in callbacks if callback["waiters"] == "0"]
    (two,) = [callback for callback in callbacks if callback["waiters"] == "1"]
    assert http.post(path(name, one), json=["early"]).status_code == 200
    assert http.post(path(name, one), json=["twice"]).status_code == 429
    found = http.get(f"/v1/{name}/callbacks").json()["callbacks"]
    assert {callback["name"]: callback["availablePayloads"] for callback in found}[one["name"]] == ['["early"]']
    assert http.post(path(name, two), json={}).status_code == 200
    assert google_engine.ended(name).result == '["early"]'
