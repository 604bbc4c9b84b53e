"""samples/questions/google: each workflow, deployed on the local engine and served with the sample's workflows.yaml."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final

import pytest
from google.cloud.workflows.executions_v1 import ExecutionView, ListExecutionsRequest
from mcp_workflows_google.tooling.embed import add_subworkflows, embedded_files

from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.google_engine import GoogleEngine
from tests.support.local_engines import ENGINES, SAMPLES, samples
from tests.support.served import Peer, peer
from tests.support.sidecars import Process

pytestmark = pytest.mark.anyio

FOLDER: Final = SAMPLES / "questions" / "google"
SUFFIX: Final = ".workflow.yaml"


@pytest.fixture(scope="module")
def served(google_engine: GoogleEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The sample's workflows as tools of a sidecar; the URL of its MCP endpoint."""
    folder, port = tmp_path_factory.mktemp("questions"), free_port()
    reach = {
        "MCP_WORKFLOWS_URL": f"http://127.0.0.1:{port}/engines/google",
        "MCP_WORKFLOWS_AUDIENCE": f"http://127.0.0.1:{port}",
    }
    for file in FOLDER.glob(f"*{SUFFIX}"):
        source = add_subworkflows(file.read_text())
        google_engine.deploy(file.name.removesuffix(SUFFIX), source, env=reach, unique=False)
    command = [COMMAND, "serve", str(FOLDER / "workflows.yaml"), "--http", f"127.0.0.1:{port}"]
    added = {**google_engine.environ, **reach, "MCP_WORKFLOWS_STORE": f"sqlite:///{folder}/tasks.db"}
    process = Process(command, port, folder / "serve.log", cwd=folder, env={**os.environ, **added})
    try:
        process.wait_until_ready()
        yield process.url
    finally:
        process.stop()


@pytest.fixture
async def client(served: str) -> AsyncGenerator[Peer]:
    """A client that knows tasks and can ask a person."""
    async with peer(served) as found:
        yield found


async def asked(
    client: Peer, tool: str, arguments: Mapping[str, Any], questions: int = 1
) -> tuple[str, dict[str, str]]:
    """Call a tool until it asks so many questions: the task, and their keys by their messages."""
    task_id = (await client.call(tool, arguments)).result["taskId"]
    while len(found := (await client.until(task_id, "input_required"))["inputRequests"]) < questions:
        pass
    return task_id, {each["params"]["message"]: key for key, each in found.items()}


def accepted(**content: Any) -> Mapping[str, Any]:
    return {"action": "accept", "content": content}


@pytest.mark.parametrize(
    ("answer", "result"),
    [(accepted(ok=True), "shipped"), (accepted(ok=False), "kept"), ({"action": "decline"}, "kept")],
    ids=["yes", "no", "declined"],
)
async def test_a_question_is_asked_in_the_words_of_the_workflow(
    client: Peer, answer: Mapping[str, Any], result: str
) -> None:
    task_id, keys = await asked(client, "ship_order", {"order_id": "A1"})
    await client.answer(task_id, **{keys["Ship order A1?"]: answer})
    assert (await client.until(task_id))["result"]["content"][0]["text"] == result


async def test_two_questions_are_asked_at_once_and_answered_one_by_one(client: Peer) -> None:
    task_id, keys = await asked(client, "ask_two", {"order_id": "A1"}, questions=2)
    price, pieces = keys["What may order A1 cost, in EUR?"], keys["How many are there for order A1?"]
    await client.answer(task_id, **{price: accepted(price=12.5)})
    while (left := (await client.until(task_id, "input_required"))["inputRequests"].keys()) != {pieces}:
        assert left <= {price, pieces}
    await client.answer(task_id, **{pieces: accepted(pieces=3)})
    assert (await client.until(task_id))["result"]["structuredContent"] == {"price": 12.5, "pieces": 3}


@pytest.mark.parametrize(("answer", "approved"), [(accepted(ok=True), True), ({"action": "decline"}, False)])
async def test_a_workflow_that_was_not_written_for_us_asks_at_its_gate(
    client: Peer, answer: Mapping[str, Any], approved: bool
) -> None:
    task_id, keys = await asked(client, "approve_contract", {"contract": "C-7"})
    await client.answer(task_id, **{keys["Approve contract «C-7»?"]: answer})
    result = (await client.until(task_id))["result"]["structuredContent"]
    assert result == {"contract": "C-7", "approved": approved}


async def test_of_executions_with_one_key_only_one_goes_on(client: Peer, google_engine: GoogleEngine) -> None:
    task_id = (await client.call("charge_once", {"amount": 5})).result["taskId"]
    assert (await client.until(task_id))["result"]["content"][0]["text"] == "charged EUR 5"
    workflow = f"{google_engine.place}/workflows/charge_once"
    request = ListExecutionsRequest(parent=workflow, view=ExecutionView.FULL)
    executions: Any = google_engine.executions()  # Any: its methods are typed in part only
    [first] = executions.list_executions(request=request, timeout=60)
    second = google_engine.execute(workflow, {"amount": 5}, dict(first.labels))
    assert google_engine.ended(second).result == '"another execution does it"'


def test_the_readmes_call_is_answered(served: str) -> None:
    [line] = set(
        re.findall(r"^mcp-workflows (call .*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    )  # wherever it stands, it is one call
    words = shlex.split(line.replace("http://127.0.0.1:8931/mcp", served))
    done = run([COMMAND, *words])
    assert done.returncode == 0, done.stderr
    assert "shipped" in done.stdout


def test_what_the_readme_says_is_appended_is_what_is_missing() -> None:
    readme = (FOLDER / "README.md").read_text()
    said: list[str] = re.findall(r"mcp-workflows helper google >> (\S+)", readme)
    for file in FOLDER.glob(f"*{SUFFIX}"):
        appended = add_subworkflows(source := file.read_text()).removeprefix(source.rstrip())
        assert appended.strip() == (embedded_files()["google"].strip() if file.name in said else "")


def test_the_readme_names_each_workflow() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert [file.name for file in FOLDER.glob(f"*{SUFFIX}") if f"`{file.name}`" not in readme] == []


def test_they_are_no_sample_with_a_worker() -> None:
    assert all("questions" not in samples(engine) for engine in ENGINES)
