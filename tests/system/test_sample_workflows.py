"""The samples' workflows for Google Cloud, as they are written: within the limits of Google, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mcp_workflows_google.tooling.embed import add_subworkflows
from mcp_workflows_google_local.language.source import load

from mcp_workflows.sidecar.config.load import load_config
from tests.support.local_engines import SAMPLES

SUFFIX = ".workflow.yaml"
FILES = sorted(SAMPLES.glob(f"*/google/*{SUFFIX}"))
MOST_OF_AN_EXPRESSION = 400  # characters: https://cloud.google.com/workflows/quotas
MOST_OF_A_SOURCE = 128 * 1024  # bytes
NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}[a-z0-9]")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.parent.name}-{file.name.partition('.')[0]}")
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
