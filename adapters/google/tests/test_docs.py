"""The pages, the subworkflows that authors append, and the samples: all that they show works as they say."""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_workflows_google
import pytest
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.input_requests import answer_calls
from mcp_workflows_google.outcome import read_failure
from mcp_workflows_google.questions import MAX_MESSAGE, PostedQuestion
from mcp_workflows_google.settings import Discover, GoogleSettings
from mcp_workflows_google.tooling.check import permissions
from mcp_workflows_google.tooling.subworkflows import FILES, add_subworkflows, embedded_files
from mcp_workflows_google_local.language.errors import Raised, Tag

from adapters.google.tests import cloud
from adapters.google.tests.tell import EXECUTION, GOOGLE, noted
from adapters.google.tests.worlds import World, run
from mcp_workflows.adapter import Failure, Ref, Start
from mcp_workflows.adapter.templates import Template
from mcp_workflows.kit.tooling import Embeds, Use
from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.config.load import load_config
from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.cloud_suites import PagesSuite, blocks, page
from tests.support.commands import COMMAND
from tests.support.google_engine import GoogleEngine
from tests.support.local_engines import ENGINES, SAMPLES, samples
from tests.support.served import peer, serving

pytestmark = pytest.mark.anyio

ORDER: Final = {"order_id": "A1"}
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}}
NO: Final[Mapping[str, Any]] = {"action": "decline", "content": {}}


class TestPages(PagesSuite):
    """Pages about workflows."""

    package = mcp_workflows_google
    pages = ("../../adapters/google/README", "google", "google-access")
    errors = "google"


def workflows(name: str) -> Sequence[str]:
    return [block for block in blocks(name, "yaml") if block.startswith("main:")]


def test_the_workflow_on_the_page_can_be_deployed_with_the_helper(google_engine: GoogleEngine) -> None:
    assert google_engine.deploy("documented", add_subworkflows(workflow()))


def test_the_role_and_the_settings_are_those_of_the_code() -> None:
    shown = re.findall(r"^\| `(workflows\.[a-z.]+)` \|", page("google-access"), re.MULTILINE)
    given = GoogleSettings(project="shop-prod", location="europe-west1", discover=Discover())
    role = permissions(given, [Use(tool="fulfil_order", workflow="fulfil_order")])
    assert sorted(shown) == role["includedPermissions"]
    assert [name for name in GoogleSettings.model_fields if f"`{name}`" not in page("google")] == []


# --- the contract


def workflow() -> str:
    """The workflow on the page."""
    [found] = workflows("google-contract")
    return found


WAITS: Final = """
main:
  params: [args]
  steps:
    - make_callback:
        call: events.create_callback_endpoint
        args:
          http_callback_method: "POST"
        result: callback
    - wait_for_approval:
        call: events.await_callback
        args:
          callback: ${callback}
          timeout: 86400
        result: request
    - done:
        switch:
          - condition: ${request.http_request.body.approved}
            return: ${"shipped, says " + default(map.get(request.http_request.body, "by"), "somebody")}
        next: keep
    - keep:
        return: kept
"""
OUT_OF_STOCK: Final = "raise: {code: OUT_OF_STOCK, message: there are none left}"
NO_SUCH_ORDER: Final = "raise: {mcp_error: {code: -32602, message: no such order, data: {field: order_id}}}"


def test_the_adapter_embeds_what_the_page_tells_to_append() -> None:
    assert isinstance(GoogleAdapter.tooling, Embeds)
    assert GoogleAdapter.tooling.embeds() == embedded_files()
    [command, *_] = re.findall(r"^mcp-workflows print helper (\S+)", page("google-contract"), re.MULTILINE)
    assert command in FILES
    assert "--update-env-vars=MCP_WORKFLOWS_URL=" in blocks("google-contract", "sh")[0]


@pytest.mark.parametrize(
    ("answer", "result"),
    [(YES, "shipped"), ({"action": "accept", "content": {"ok": False}}, "kept"), (NO, "kept"), (Tag.TIMEOUT, "kept")],
)
def test_the_question_on_the_page_is_asked(answer: Any, result: str) -> None:
    world = World(answers=[answer])
    assert run(workflow(), world, ORDER) == result
    asked = PostedQuestion.read(world.bodies[0])
    assert (asked.message, asked.timeout) == ("Ship order A1?", 86_400)
    assert asked.requested_schema["required"] == ["ok"]


def test_two_branches_of_the_sample_ask_at_once() -> None:
    assert "samples/questions/google/ask_two.workflow.yaml)" in page("google-contract")
    source = (SAMPLES / "questions" / "google" / "ask_two.workflow.yaml").read_text()
    answers = [{"action": "accept", "content": {"price": 40}}, {"action": "accept", "content": {"pieces": 2}}]
    world = World(answers=answers)
    assert run(source, world, ORDER) == {"price": 40, "pieces": 2}
    assert len({body["callback_url"] for body in world.bodies}) == 2


def test_the_answers_and_bodies_on_the_page_are_what_is_sent() -> None:
    source = "main:\n  steps:\n    - a:\n        call: mcp_elicit\n        args: {message: m}\n        result: answer\n"
    source += "    - b:\n        return: ${answer}\n"
    told = [run(source, World(answers=[answer])) for answer in (YES, NO, Tag.TIMEOUT)]
    assert told[:1] == [json.loads(block) for block in blocks("google-contract", "json")]
    assert told[1:] == [{**NO, "timed_out": False}, {"action": "cancel", "content": {}, "timed_out": True}]
    [sent] = answer_calls(EXECUTION, {"cb-1": noted()}, (), {}, {"cb-1": YES}, rest_url=GOOGLE)
    assert sent.body == YES
    assert f"at most {MAX_MESSAGE} characters" in page("google-contract")
    assert f"Default of `timeout`: {PostedQuestion.model_fields['timeout'].default} s" in page("google-contract")


@pytest.mark.parametrize(("claimed", "result"), [(True, "charged EUR 40"), (False, "another execution does it")])
def test_the_claim_that_the_page_links_lets_one_through(claimed: bool, result: str) -> None:
    assert "samples/questions/google/charge_once.workflow.yaml)" in page("google-contract")
    source = (SAMPLES / "questions" / "google" / "charge_once.workflow.yaml").read_text()
    assert run(source, World({"claimed": claimed}), {"amount": 40}) == result
    assert f'`{{"claimed": {str(claimed).lower()}}}`' in page("google-contract")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (
            OUT_OF_STOCK,
            Failure(
                text="there are none left (code OUT_OF_STOCK)",
                kind="OUT_OF_STOCK",
                details={"code": "OUT_OF_STOCK"},
            ),
        ),
        (
            NO_SUCH_ORDER,
            Failure(text="no such order", kind="mcp_error", code=-32602, data={"field": "order_id"}),
        ),
    ],
)
def test_the_errors_on_the_page_are_told_so(step: str, told: Failure) -> None:
    assert f"`{step}`" in page("google-contract")
    with pytest.raises(Raised) as raised:
        run(f"main:\n  steps:\n    - fail:\n        {step}\n", World())
    assert read_failure(json.dumps(raised.value.payload), str(raised.value)) == told
    payload = {"code": 404, "message": "HTTP server responded with error code 404", "tags": ["HttpError"]}
    googles = read_failure(json.dumps(payload), 'in step "read_item", routine "main", line: 5').text
    assert f"`{googles}`" in page("google-contract")


@pytest.mark.parametrize("accepts", [True, False])
async def test_the_gate_on_the_page_opens_its_step(accepts: bool, google_engine: GoogleEngine, tmp_path: Path) -> None:
    [configuration] = [block for block in blocks("google-contract", "yaml") if block.startswith("engines:")]
    (tmp_path / "workflows.yaml").write_text(configuration)
    [tool] = load_config(tmp_path / "workflows.yaml", {}).tools
    scope = {"args": ORDER, "principal": {"subject": "ada"}, "task": {"id": None}}
    gates = tool.frozen_gates(scope)
    deployed = google_engine.deploy("gate", add_subworkflows(WAITS))
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


async def test_the_sample_and_the_call_of_its_readme_work(google_engine: GoogleEngine, tmp_path: Path) -> None:
    folder, suffix, port = SAMPLES / "questions" / "google", ".workflow.yaml", free_port()
    readme, address = (folder / "README.md").read_text(), f"http://127.0.0.1:{port}"
    reach = {"MCP_WORKFLOWS_URL": f"{address}/engines/google", "MCP_WORKFLOWS_AUDIENCE": address}
    for file in folder.glob(f"*{suffix}"):
        assert f"`{file.name}`" in readme
        source = add_subworkflows(file.read_text())
        google_engine.deploy(file.name.removesuffix(suffix), source, env=reach, unique=False)
    store = f"sqlite:///{tmp_path}/tasks.db"
    environ = {**google_engine.environ, "MCP_WORKFLOWS_AUDIENCE": address, "MCP_WORKFLOWS_STORE": store}
    config = load_config(folder / "workflows.yaml", environ)
    [line] = set(re.findall(r"^mcp-workflows (call .*)$", readme, re.MULTILINE))  # wherever it stands, it is one call
    words = shlex.split(line.replace("http://127.0.0.1:8931", address))
    app = http_app(build(config), config, "127.0.0.1", port)
    async with serving(app, port=port) as url, peer(url) as client:
        done = await anyio.to_thread.run_sync(commands.run, [COMMAND, *words])
        assert (done.returncode, "shipped" in done.stdout) == (0, True), done.stderr
        task_id = (await client.call("approve_contract", {"contract": "C-7"})).result["taskId"]
        [(key, question)] = (await client.until(task_id, "input_required"))["inputRequests"].items()
        assert question["params"]["message"] == "Approve contract «C-7»?"
        await client.answer(task_id, **{key: YES})
        result = (await client.until(task_id))["result"]["structuredContent"]
    assert result == {"contract": "C-7", "approved": True}
    assert all("questions" not in samples(engine) for engine in ENGINES)  # they are no sample with a worker
