"""The order sample, end to end on each engine: a real worker, the sidecar, and the same as a library."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import grpc
import httpx2
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud.workflows.executions_v1 import Execution, ExecutionsClient, ExecutionView, ListExecutionsRequest
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcTransport
from google.cloud.workflows_v1 import WorkflowsClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcTransport

from mcp_workflows.access.authn.verifier import sha256_of
from mcp_workflows.errors import INVALID_PARAMS
from mcp_workflows.task import START_KEY
from tests.support.child_processes import free_port
from tests.support.environments import ROOT
from tests.support.local_engines import SAMPLES, folder
from tests.support.served import Peer, peer, serving, told
from tests.support.sidecars import sidecar
from tests.support.stack import Plan, Stack

pytestmark = pytest.mark.anyio

PACE = {"temporal": "0.5", "stepfunctions": "0.3", "google": "0.3", "dbos": "0.3"}  # seconds that a step takes

REASON = {"reason": {"action": "accept", "content": {"reason": "it is urgent"}}}


@pytest.fixture(
    scope="module",
    params=["temporal", *(pytest.param(each, marks=pytest.mark.slow) for each in ("dbos", "stepfunctions", "google"))],
)
def engine(request: pytest.FixtureRequest) -> str:
    """Where the orders are worked on."""
    return request.param


@pytest.fixture(scope="module")
def state(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine, the store and the shop keep what they have."""
    return tmp_path_factory.mktemp(engine)


@pytest.fixture(scope="module")
def orders(engine: str, state: Path) -> Generator[Stack]:
    """The sample, served."""
    os.environ["SHOP_PACE"] = PACE[engine]
    try:
        with Stack(Plan(engine=engine, sample="orders", port=free_port(), state=state)) as stack:
            yield stack
    finally:
        del os.environ["SHOP_PACE"]


@pytest.fixture(scope="module")
def library() -> Generator[Any]:  # Any: a module of the sample, imported as its own folder sees it
    """The sample's library.py, and through it the shop."""
    folder = str(SAMPLES / "orders")
    sys.path.insert(0, folder)
    try:
        yield import_module("library")
    finally:
        sys.path.remove(folder)


@pytest.fixture
def shop(library: Any, state: Path) -> Any:
    """What the worker's shop writes down."""
    return library.Shop(state / "shop.json", 0.0)


@pytest.fixture
async def client(orders: Stack) -> AsyncGenerator[Peer]:
    """A client of the sidecar that knows tasks and can ask a person."""
    async with peer(orders.url) as found:
        yield found


async def _start(client: Peer, order_id: str) -> str:
    """Call the tool, answer what it asks before it starts, and return the id of the task."""
    asked = (await client.call("fulfil_order", {"order_id": order_id})).result
    assert asked["resultType"] == "input_required"
    again = {"inputResponses": REASON, "requestState": asked["requestState"]}
    created = (await client.call("fulfil_order", {"order_id": order_id}, params=again)).result
    assert created["resultType"] == "task"
    return created["taskId"]


async def test_a_dear_order_is_approved_and_shipped(client: Peer) -> None:
    task_id = await _start(client, "A-1002")
    waiting = await client.until(task_id, "input_required")
    ((key, question),) = waiting["inputRequests"].items()
    assert "espresso machine" in question["params"]["message"]
    assert "it is urgent" in question["params"]["message"]
    await client.answer(task_id, **{key: {"action": "accept", "content": {"approve": True, "note": "fine"}}})
    receipt = (await client.until(task_id))["result"]["structuredContent"]
    assert (receipt["status"], receipt["total"], receipt["note"]) == ("shipped", 1240.0, "fine")
    assert receipt["tracking"].startswith("TRK-")


async def test_a_dear_order_that_is_declined_is_rejected_and_nothing_is_charged(client: Peer, shop: Any) -> None:
    till = shop.books()["till"]
    task_id = await _start(client, "A-1002")
    waiting = await client.until(task_id, "input_required")
    await client.answer(task_id, **{key: {"action": "decline"} for key in waiting["inputRequests"]})
    receipt = (await client.until(task_id))["result"]["structuredContent"]
    assert receipt["status"] == "rejected"
    assert shop.books()["till"] == till


async def test_a_cancelled_order_is_refunded_and_its_stock_released(client: Peer, shop: Any) -> None:
    before = shop.books()
    task_id = await _start(client, "A-1001")
    while "packing" not in (await client.until(task_id, "working")).get("statusMessage", "").lower():
        pass
    assert shop.books()["till"] == before["till"] + 25.0
    assert (await client.send("tasks/cancel", {"taskId": task_id})).status == 200
    assert (await client.until(task_id))["status"] == "cancelled"
    with anyio.fail_after(60):  # the others end it at once, and have it undone afterwards
        while (after := shop.books())["stock"] != before["stock"]:
            await anyio.sleep(0.05)
    assert after["till"] == before["till"]


async def test_a_declined_card_is_a_tool_error_and_the_stock_is_released(client: Peer, shop: Any) -> None:
    before = shop.books()["stock"]
    ended = await client.until(await _start(client, "A-1003"))
    assert ended["status"] == "completed"
    assert ended["result"]["isError"]
    assert "the card was declined" in ended["result"]["content"][0]["text"]
    assert shop.books()["stock"] == before


async def test_a_quote_is_a_plain_result_for_a_client_without_tasks(client: Peer) -> None:
    reply = await client.call("quote_order", {"order_id": "A-1002", "express": True}, capabilities={})
    assert reply.result["structuredContent"] == {
        "order_id": "A-1002",
        "article": "espresso machine",
        "quantity": 1,
        "total": 1249.9,
        "needs_approval": True,
    }


async def test_a_quote_that_somebody_else_must_approve_starts_after_the_yes(
    engine: str, orders: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = yaml.safe_load((folder(engine, "orders") / "workflows.yaml").read_text())
    tokens = [{"name": name, "subject": name, "sha256": sha256_of(f"{name}-token")} for name in ("anna", "bob")]
    config["server"]["auth"] = {"tokens": tokens}
    config["store"] = f"sqlite:///{tmp_path}/tasks.db"
    approvers = {"principals": [{"subject": "bob"}]}
    config["tools"]["quote_order"]["approval"] = {"before_start": True, "message": "Quote?", "approvers": approvers}
    for name, value in orders.environment().items():
        monkeypatch.setenv(name, value)
    written = tmp_path / "workflows.yaml"
    written.write_text(yaml.safe_dump(config))
    with sidecar(written) as served:
        async with peer(served.url, token="anna-token") as anna, peer(served.url, token="bob-token") as bob:
            held, refused = [
                (await anna.call("quote_order", {"order_id": "A-1002"})).result["taskId"] for _ in range(2)
            ]
            assert "waits for bob" in (await anna.get(held))["statusMessage"]
            assert (await anna.answer(held, **{START_KEY: {"action": "accept"}})).code == INVALID_PARAMS
            await bob.answer(held, **{START_KEY: {"action": "accept", "content": {}}})
            assert (await anna.until(held))["result"]["structuredContent"]["article"] == "espresso machine"
            await bob.answer(refused, **{START_KEY: {"action": "decline", "content": {"reason": "not today"}}})
            ended = (await anna.until(refused))["result"]
            assert ended["isError"]
            assert "declined by bob" in ended["content"][0]["text"]
            assert "not today" in ended["content"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["google"], indirect=True)
async def test_the_shop_on_google_serves_nobody_but_its_workflows(orders: Stack, shop: Any) -> None:
    till = shop.books()["till"]
    with grpc.insecure_channel(orders.engine.address) as channel:
        workflows: Any = WorkflowsClient(transport=WorkflowsGrpcTransport(channel=channel))  # Any: typed in part only
        name = workflows.workflow_path("demo", "us-central1", "fulfil_order")
        url = workflows.get_workflow(name=name, timeout=60).user_env_vars["SHOP_URL"]
    mine = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    who = {"email": "local@demo.iam.gserviceaccount.com", "email_verified": True}
    issuer = f"http://{orders.engine.address}"
    claims = {"aud": url, "iss": issuer, "iat": time.time(), "exp": time.time() + 60, **who}
    async with httpx2.AsyncClient() as http:
        kid = (await http.get(f"{issuer}/oauth2/v3/certs")).json()["keys"][0]["kid"]
        forged = [jwt.encode(claims, mine, "RS256", {"kid": each}) for each in ("mine", kid)]
        for headers in ({}, *({"Authorization": f"Bearer {token}"} for token in (*forged, "nonsense"))):
            order = {"order_id": "A-1", "article": "coffee mug", "quantity": 1, "total": 1.0}
            reply = await http.post(f"{url}/charge", json={"key": "k", "order": order}, headers=headers)
            assert reply.status_code == 401
    assert shop.books()["till"] == till


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["google"], indirect=True)
async def test_an_order_that_google_started_twice_is_charged_once(orders: Stack, client: Peer, shop: Any) -> None:
    task_id = await _start(client, "A-1001")
    assert (await client.until(task_id))["result"]["structuredContent"]["status"] == "shipped"
    till = shop.books()["till"]
    with grpc.insecure_channel(orders.engine.address) as channel:
        executions: Any = ExecutionsClient(transport=ExecutionsGrpcTransport(channel=channel))
        parent = executions.workflow_path("demo", "us-central1", "fulfil_order")
        request = ListExecutionsRequest(parent=parent, view=ExecutionView.FULL)
        first = next(iter(executions.list_executions(request=request, timeout=60)))  # the newest
        again = Execution(argument=first.argument, labels=dict(first.labels))
        second = executions.create_execution(parent=parent, execution=again, timeout=60)
        with anyio.fail_after(60):
            while second.state == Execution.State.ACTIVE:
                await anyio.sleep(0.05)
                second = executions.get_execution(name=second.name, timeout=60)
    assert second.result == '"another execution does it"'
    assert shop.books()["till"] == till


STORY = [
    *("? Why now?", "input_required", "? Order A-1002", "> approve: True", "acking", '"shipped"'),
    *("on second thought: cancel", "cancelled", "now with your own host"),
]
RELEASE = [
    "stage 3 of 6: integration tests",
    "waits for somebody else's answer: Deploy version 1.4.0 to production?",
    "production approval: succeeded",
    "stage 6 of 6: deploy to production",
    "completed",
]
UNDONE = "undone: the stock was released"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on", "story", "besides"),
    [
        ("temporal", STORY, "/namespaces/default/workflows/"),
        *((each, STORY, UNDONE) for each in ("stepfunctions", "google", "dbos")),
        *((each, RELEASE, '"version": "1.4.0"') for each in ("buildbot", "airflow")),
    ],
)
def test_the_demo_tells_its_story_without_a_terminal(on: str, story: Sequence[str], besides: str) -> None:
    argv = [sys.executable, "-m", "scripts.demo", "--engine", on]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stderr if story is RELEASE else done.stdout
    places = [told.find(words) for words in story]
    assert -1 not in places, told
    assert places == sorted(places)
    assert besides in done.stdout


@pytest.mark.slow
async def test_a_release_on_airflow_whose_tests_fail_or_that_is_declined_has_failed(tmp_path: Path) -> None:
    with Stack(Plan(engine="airflow", sample="release", port=free_port(), state=tmp_path)) as served:
        developer, manager = ((tmp_path / f"{name}.token").read_text() for name in ("developer", "manager"))
        async with peer(served.url, token=developer) as dana, peer(served.url, token=manager) as mori:
            bad = (await dana.call("release", {"version": "0.0.0"})).result["taskId"]
            failed = (await dana.until(bad, within=120))["result"]["content"][0]["text"]
            assert failed.startswith("integration tests\n38 integration tests ...\n")
            assert "RuntimeError: FAILED test_checkout: HTTP 500" in failed
            good = (await dana.call("release", {"version": "1.4.0"})).result["taskId"]
            await told(dana, good, "waits for somebody else's answer", within=120)
            [(key, question)] = (await mori.get(good))["inputRequests"].items()
            assert list(question["params"]["requestedSchema"]["properties"]) == ["option", "reason"]
            await mori.answer(good, **{key: {"action": "decline"}})
            declined = (await dana.until(good, within=120))["result"]["content"][0]["text"]
            assert "production approval" in declined
            assert 'Receive "Reject"' in declined


@pytest.mark.parametrize("engine", ["temporal"], indirect=True)
async def test_the_library_serves_workflows_beside_the_tools_of_the_server(
    orders: Stack, library: Any, shop: Any, tmp_path: Path
) -> None:
    server = library.build(orders.engine.address, f"sqlite:///{tmp_path}/library.db", shop)
    async with serving(server.streamable_http_app()) as url, peer(url) as client:
        names = [tool["name"] for tool in (await client.send("tools/list")).result["tools"]]
        assert sorted(names) == ["fulfil_order", "stock"]
        shelf = await client.call("stock", {"article": "coffee mug"})
        assert shelf.result["structuredContent"] == {"result": shop.books()["stock"]["coffee mug"]}
        receipt = (await client.until(await _start(client, "A-1001")))["result"]["structuredContent"]
        assert receipt["status"] == "shipped"
