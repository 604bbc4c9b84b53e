"""The samples' state machines and workflows, as they are written: complete, and within the limits of Google."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_google.tooling.subworkflows import add_subworkflows
from mcp_workflows_google_local.language.source import load

from mcp_workflows.sidecar.config.load import load_config
from tests.support.local_engines import SAMPLES

MACHINES = sorted(SAMPLES.glob("*/stepfunctions/*.asl.json"))
WAITS = ".waitForTaskToken"


def machines(definition: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A machine, and those within its Parallel and Map states."""
    yield definition
    for state in definition["States"].values():
        for inner in (*state.get("Branches", ()), *filter(None, [state.get("ItemProcessor")])):
            yield from machines(inner)


def ways(state: Mapping[str, Any]) -> Iterator[str]:
    """The states that may come after this one."""
    yield from (state[key] for key in ("Next", "Default") if key in state)
    yield from (way["Next"] for way in (*state.get("Choices", ()), *state.get("Catch", ())))


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: f"{file.parent.parent.name}-{file.name.partition('.')[0]}")
def test_every_state_is_there_and_can_be_reached_and_a_question_does_not_wait_for_ever(file: Path) -> None:
    for machine in machines(json.loads(file.read_text())):
        states = machine["States"]
        assert {machine["StartAt"], *(way for state in states.values() for way in ways(state))} == set(states)
        waiting = [name for name, state in states.items() if state.get("Resource", "").endswith(WAITS)]
        assert [name for name in waiting if "TimeoutSeconds" not in states[name]] == []


# --- Google Cloud

SUFFIX = ".workflow.yaml"
WORKFLOWS = sorted(SAMPLES.glob(f"*/google/*{SUFFIX}"))
MOST_OF_AN_EXPRESSION = 400  # characters: https://cloud.google.com/workflows/quotas
MOST_OF_A_SOURCE = 128 * 1024  # bytes
NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}[a-z0-9]")


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: f"{file.parent.parent.name}-{file.name.partition('.')[0]}")
def test_a_workflow_can_be_deployed_and_holds_the_limits_of_google(file: Path) -> None:
    source = add_subworkflows(file.read_text())
    load(source)
    assert NAME.fullmatch(file.name.removesuffix(SUFFIX))
    assert len(source.encode()) <= MOST_OF_A_SOURCE
    assert [one for one in re.findall(r"\$\{(.*?)\}['\s]", source) if len(one) > MOST_OF_AN_EXPRESSION] == []
    assert set(re.findall(r"call: (mcp_\w+)", source)) <= set(re.findall(r"^(mcp_\w+):", source, re.MULTILINE))


@pytest.mark.parametrize("sample", ["orders", "conformance", "questions"])
def test_the_tools_of_a_sample_are_its_workflows_on_google_and_on_a_local_engine(sample: str) -> None:
    folder = SAMPLES / sample / "google"
    there = {file.name.removesuffix(SUFFIX) for file in folder.glob(f"*{SUFFIX}")}
    local = load_config(folder / "workflows.yaml", {"GOOGLE_WORKFLOWS_EMULATOR": "127.0.0.1:8790"})
    for config in (local, load_config(folder / "workflows.yaml", {"GOOGLE_CLOUD_PROJECT": "shop-prod"})):
        assert {tool.workflow for tool in config.tools} == there - {"undo_order"}
