"""docs/google-contract.md, and the file that authors append: every workflow in them runs, and asks."""

from __future__ import annotations

import json
import os
import re
import shlex
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.input_requests import answer_calls
from mcp_workflows_google.outcome import read_failure
from mcp_workflows_google.questions import MAX_MESSAGE, PostedQuestion
from mcp_workflows_google.tooling.embed import FILES, add_subworkflows, embedded_files
from mcp_workflows_google_local.language.errors import Raised, Tag

from adapters.google.tests import cloud
from adapters.google.tests.tell import EXECUTION, GOOGLE, noted, posted
from adapters.google.tests.worlds import World, run
from mcp_workflows.adapter import Failure, Ref, Start
from mcp_workflows.adapter.templates import Template
from mcp_workflows.kit.tooling import Embeds
from mcp_workflows.sidecar.config.load import load_config
from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.google_engine import GoogleEngine
from tests.support.local_engines import ENGINES, SAMPLES, samples
from tests.support.served import Peer, peer
from tests.support.sidecars import Process

pytestmark = pytest.mark.anyio

PAGE: Final = (Path(__file__).parents[3] / "docs" / "google-contract.md").read_text()
ORDER: Final = {"order_id": "A1"}
YES: Final = {"action": "accept", "content": {"ok": True}}
NO: Final[Mapping[str, Any]] = {"action": "decline", "content": {}}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def workflow(step: str) -> str:
    """The workflow on the page that has this step."""
    [found] = [block for block in blocks("yaml") if block.startswith("main:") and f"- {step}:" in block]
    return found


def configurations() -> list[str]:
    return [block for block in blocks("yaml") if block.startswith("engines:")]


def shown(field: str) -> list[Any]:
    """The JSON on the page that has this field."""
    return [block for block in map(json.loads, blocks("json")) if field in block]


def test_the_adapter_embeds_what_the_page_tells_to_append() -> None:
    assert isinstance(GoogleAdapter.tooling, Embeds)
    assert GoogleAdapter.tooling.embeds() == embedded_files()
    [command] = [line for line in blocks("sh")[0].splitlines() if " helper " in line]
    assert command.split()[3] in FILES
    assert "--update-env-vars=MCP_WORKFLOWS_URL=" in blocks("sh")[0]


@pytest.mark.parametrize(
    ("answer", "result"),
    [(YES, "shipped"), ({"action": "accept", "content": {"ok": False}}, "kept"), (NO, "kept"), (Tag.TIMEOUT, "kept")],
)
def test_the_question_on_the_page_is_asked(answer: Any, result: str) -> None:
    world = World(answers=[answer])
    assert run(workflow("ask"), world, ORDER) == result
    asked = PostedQuestion.read(world.bodies[0])
    assert (asked.message, asked.timeout) == ("Ship order A1?", 86_400)
    assert asked.requested_schema["required"] == ["ok"]


def test_two_branches_on_the_page_ask_at_once() -> None:
    world = World(answers=[YES, YES])
    assert run(workflow("ask_both"), world) == "accept and accept"
    assert {body["message"] for body in world.bodies} == {"Sales: is the price right?", "Legal: may we sign?"}
    assert len({body["callback_url"] for body in world.bodies}) == 2


def test_the_answers_on_the_page_are_what_workflows_get() -> None:
    source = "main:\n  steps:\n    - a:\n        call: mcp_elicit\n        args: {message: m}\n        result: answer\n"
    source += "    - b:\n        return: ${answer}\n"
    told = [run(source, World(answers=[answer])) for answer in (YES, NO, Tag.TIMEOUT)]
    assert told == [each for each in shown("action") if "timed_out" in each]
    [sent] = answer_calls(EXECUTION, {"cb-1": noted()}, (), {}, {"cb-1": YES}, rest_url=GOOGLE)
    assert [each for each in shown("action") if "timed_out" not in each] == [sent.body]


def test_the_body_on_the_page_is_what_is_posted() -> None:
    assert shown("callback_url") == [posted()]
    assert f"at most {MAX_MESSAGE} characters" in PAGE
    assert f"`{PostedQuestion.model_fields['timeout'].default}" not in PAGE
    assert f"Default: {PostedQuestion.model_fields['timeout'].default}," in PAGE


@pytest.mark.parametrize(("claimed", "result"), [(True, "charged 40"), (False, None)])
def test_the_fence_on_the_page_lets_one_through(claimed: bool, result: Any) -> None:
    world = World({"claimed": claimed})
    assert run(workflow("claim"), world, {"amount": 40}) == result
    assert shown("claimed") == [{"claimed": True}]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("out_of_stock", Failure(text="there are none left (code OUT_OF_STOCK)", kind="OUT_OF_STOCK")),
        (
            "no_such_order",
            Failure(text="no such order", kind="mcp_error", code=-32602, data={"field": "order_id"}),
        ),
    ],
)
def test_the_errors_on_the_page_are_told_so(step: str, told: Failure) -> None:
    with pytest.raises(Raised) as raised:
        run(workflow(step), World())
    assert read_failure(json.dumps(raised.value.payload), str(raised.value)) == told


def test_an_error_of_googles_on_the_page_is_told_so() -> None:
    payload = {"code": 404, "message": "HTTP server responded with error code 404", "tags": ["HttpError"]}
    told = read_failure(json.dumps(payload), 'in step "read_item", routine "main", line: 5').text
    assert f"`{told}`" in PAGE


@pytest.mark.anyio
@pytest.mark.parametrize("accepts", [True, False])
async def test_the_gate_on_the_page_opens_its_step(accepts: bool, google_engine: GoogleEngine, tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(configurations()[1])
    [tool] = load_config(tmp_path / "workflows.yaml", {}).tools
    scope = {"args": ORDER, "principal": {"subject": "ada"}, "task": {"id": None}}
    gates = tool.frozen_gates(scope)
    deployed = google_engine.deploy("gate", add_subworkflows(workflow("wait_for_approval")))
    async with cloud.adapter(google_engine) as adapter:
        start = Start(workflow=deployed, arguments=[{}], key=uuid.uuid4().hex, created=datetime.now(UTC))
        ref = Ref(workflow=deployed, handle=await adapter.start(start), gates=gates)
        with anyio.fail_after(60):
            while not (seen := await adapter.describe(ref)).requests:
                await anyio.sleep(0.01)
        [(key, request)] = seen.requests.items()
        assert (request.gate, request.params["message"]) == ("approval", "Ship «A1»?")
        template = gates["approval"].send if accepts else gates["approval"].decline
        sent = Template(template).render({**scope, "answer": {"ok": True} if accepts else None})
        await adapter.answer(ref, {key: {"action": "accept" if accepts else "decline", "send": sent}})
        with anyio.fail_after(60):
            while not (seen := await adapter.describe(ref)).terminal:
                await anyio.sleep(0.01)
    assert seen.output == ("shipped, says ada" if accepts else "kept")


# --- samples/questions/google


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


@pytest.mark.parametrize(("answer", "approved"), [(accepted(ok=True), True), ({"action": "decline"}, False)])
async def test_a_workflow_that_was_not_written_for_us_asks_at_its_gate(
    client: Peer, answer: Mapping[str, Any], approved: bool
) -> None:
    task_id, keys = await asked(client, "approve_contract", {"contract": "C-7"})
    await client.answer(task_id, **{keys["Approve contract «C-7»?"]: answer})
    result = (await client.until(task_id))["result"]["structuredContent"]
    assert result == {"contract": "C-7", "approved": approved}


def test_the_readmes_call_is_answered(served: str) -> None:
    [line] = set(
        re.findall(r"^mcp-workflows (call .*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    )  # wherever it stands, it is one call
    words = shlex.split(line.replace("http://127.0.0.1:8931/mcp", served))
    done = commands.run([COMMAND, *words])
    assert done.returncode == 0, done.stderr
    assert "shipped" in done.stdout


def test_the_readme_names_each_workflow() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert [file.name for file in FOLDER.glob(f"*{SUFFIX}") if f"`{file.name}`" not in readme] == []


def test_they_are_no_sample_with_a_worker() -> None:
    assert all("questions" not in samples(engine) for engine in ENGINES)
