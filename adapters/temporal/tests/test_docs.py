"""The examples of the documentation run as they are written."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalOptions, TemporalSettings
from ruamel.yaml import YAML
from temporalio.worker import Worker

from adapters.temporal.tests.scene import Scene
from mcp_workflows.sidecar.config.load import load_config

ROOT = Path(__file__).parents[3]
PAGES = {
    "readme": ROOT / "adapters/temporal/README.md",
    "worker": ROOT / "adapters/temporal-worker/README.md",
    "docs": ROOT / "docs/engines/temporal.md",
}


def blocks(page: str, language: str) -> Sequence[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page].read_text(), re.DOTALL)


def block(page: str, language: str) -> str:
    return blocks(page, language)[0]


@pytest.fixture
def module(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # Any: whatever the example defines
    name = f"example_of_{page}"
    (tmp_path / f"{name}.py").write_text(block(page, "python"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return import_module(name)


@pytest.mark.parametrize("page", ["readme", "docs"])
def test_the_settings_in_the_examples_are_right(page: str) -> None:
    loaded: Any = YAML(typ="safe").load(block(page, "yaml"))  # pyright: ignore[reportUnknownMemberType]  # untyped stream
    engine = loaded["engines"]["orders"]
    assert engine.pop("adapter") == "temporal"
    assert TemporalSettings.model_validate(engine).task_queue == "orders"


def test_the_other_examples_of_the_docs_are_whole_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our_payloads.py").write_text(
        "from temporalio.contrib.pydantic import pydantic_data_converter as converter\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for text in blocks("docs", "yaml")[1:]:
        (tmp_path / "workflows.yaml").write_text(text)
        [tool] = load_config(tmp_path / "workflows.yaml", {}).tools
        scope = {"args": {"order_id": "A1", "tenant": "acme"}, "principal": {"id": "alice"}}
        TemporalOptions.final(tool.frozen_options(scope))


def test_the_page_names_every_call_that_the_server_makes() -> None:
    [section] = re.findall(r"(?ms)^### Permissions\n(.*?)^### ", PAGES["docs"].read_text())
    client = (ROOT / "adapters/temporal/mcp_workflows_temporal/client.py").read_text()
    made_by_the_sdk = {"GetSystemInfo", "StartWorkflowExecution"}
    named = set(re.findall(r"`(?:OperatorService\.)?([A-Z]\w+)`", section)) - {"Write"}
    assert named == made_by_the_sdk | set(re.findall(r" = (\w+)Request\(", client))


@pytest.mark.parametrize("page", ["worker"])
async def test_the_workflow_of_the_readme_ships_after_a_yes(scene: Scene, module: Any) -> None:
    assert TemporalAdapter.tooling.schema(f"{module.__name__}:FulfilOrder").args == (
        '{{[args."order_id", not_null(args."express", `false`)]}}'
    )
    async with Worker(scene.client, task_queue=scene.queue, workflows=[module.FulfilOrder]):
        ref = await scene.start("FulfilOrder", "o-1")
        seen = await scene.asked(ref)
        assert seen.message == "checking stock"
        [key] = seen.requests
        await scene.adapter.answer(ref, {key: {"action": "accept", "content": {"note": "fragile"}}})
        done = await scene.ended(ref)
    assert done.output == {"order_id": "o-1", "state": "shipped", "note": "fragile"}


@pytest.mark.parametrize("page", ["docs"])
@pytest.mark.parametrize(("amount", "said"), [(10, "refunded 10"), (5000, "a refund is at most 1000")])
async def test_the_workflow_of_the_docs_pays_or_says_why_not(scene: Scene, module: Any, amount: int, said: str) -> None:
    async with Worker(scene.client, task_queue=scene.queue, workflows=[module.Refund]):
        ref = await scene.start("Refund", "o-1")
        [key] = (await scene.asked(ref)).requests
        await scene.adapter.answer(ref, {key: {"action": "accept", "content": {"amount": amount}}})
        done = await scene.ended(ref)
    assert said == (done.failure.text if done.failure else done.output)
