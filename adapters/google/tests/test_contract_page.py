"""docs/google-contract.md, and the file that authors append: every workflow in them runs, and asks."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import yaml
from mcp_workflows_google import GoogleAdapter, GoogleSettings
from mcp_workflows_google.input_requests import answer_calls
from mcp_workflows_google.outcome import read_failure
from mcp_workflows_google.questions import MAX_MESSAGE, PostedQuestion
from mcp_workflows_google.tooling.embed import FILES, add_subworkflows, embedded_files
from mcp_workflows_google_local.language.errors import Raised, Tag

from adapters.google.tests import scene
from adapters.google.tests.tell import EXECUTION, GOOGLE, noted, posted
from adapters.google.tests.worlds import SERVER, World, run
from mcp_workflows.adapter import Failure, Ref, Start
from mcp_workflows.adapter.templates import Template
from mcp_workflows.kit.tooling import Embeds
from mcp_workflows.sidecar.config.load import load_config
from tests.support.google_engine import GoogleEngine

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
    assert command.split()[2] in FILES
    assert "--update-env-vars=MCP_WORKFLOWS_URL=" in blocks("sh")[0]


def test_the_engine_on_the_page_trusts_what_the_workflow_sends() -> None:
    written = yaml.safe_load(configurations()[0])["engines"]["shop"]
    settings = GoogleSettings.model_validate({key: value for key, value in written.items() if key != "adapter"})
    world = World(answers=[YES], env={"MCP_WORKFLOWS_URL": SERVER})
    run(workflow("ask"), world, ORDER)
    assert settings.trusted is not None
    assert settings.trusted.audience == world.requests[0]["auth"]["audience"]
    assert f"={SERVER}" in blocks("sh")[0]


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
    async with scene.adapter(google_engine) as adapter:
        start = Start(workflow=deployed, arguments=[{}], key=uuid.uuid4().hex, created=datetime.now(UTC))
        ref = Ref(workflow=deployed, handle=await adapter.start(start), gates=gates)
        with anyio.fail_after(15):
            while not (seen := await adapter.describe(ref)).requests:
                await anyio.sleep(0.01)
        [(key, request)] = seen.requests.items()
        assert (request.gate, request.params["message"]) == ("approval", "Ship «A1»?")
        template = gates["approval"].send if accepts else gates["approval"].decline
        sent = Template(template).render({**scope, "answer": {"ok": True} if accepts else None})
        await adapter.answer(ref, {key: {"action": "accept" if accepts else "decline", "send": sent}})
        with anyio.fail_after(15):
            while not (seen := await adapter.describe(ref)).terminal:
                await anyio.sleep(0.01)
    assert seen.output == ("shipped, says ada" if accepts else "kept")
