"""The published JSON Schema of workflows.yaml, and its reference for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from mcp_workflows.sidecar.config.json_schema import config_schema
from mcp_workflows.tools.json_schema import violations
from scripts import config_reference
from tests.support.config_files import FINE, SAMPLE

ROOT = Path(__file__).parents[3]
SCHEMA = cache(config_schema)


def plain(text: str) -> Any:  # Any: whatever the YAML holds
    return YAML(typ="safe").load(text)  # pyright: ignore[reportUnknownMemberType]  # ruamel types its streams as Any


def complaints(text: str) -> Sequence[str]:
    """What an editor would underline."""
    return violations(SCHEMA(), plain(text))


def test_the_published_schema_is_a_schema_and_accepts_the_sample() -> None:
    Draft202012Validator.check_schema(SCHEMA())
    assert complaints(SAMPLE) == []
    assert complaints(FINE) == []


def test_the_published_schema_accepts_what_comes_from_outside_in_place_of_anything() -> None:
    text = SAMPLE.replace("ttl: 7d", "ttl: ${TTL}").replace("tasks: required", "tasks: ${TASKS}")
    text = text.replace("namespace: default", "max_input_bytes: ${BYTES}").replace(
        "output: {type: object}", "output: a:B"
    )
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("server:", "serverr:"),
        ("name:", "nam:"),
        ("task_queue:", "taskqueue:"),
        ("title:", "titel:"),
        ("destructiveHint", "destructive"),
        ("when_missing", "if_missing"),
        ("adapter: temporal", "adapter: temporl"),
        ("tasks: required", "tasks: always"),
        ("ttl: 7d", "ttl: 7 days"),
        ("workflow: FulfilOrder", "workflows: FulfilOrder"),
    ],
)
def test_the_published_schema_rejects_a_misspelt_key(right: str, wrong: str) -> None:
    assert complaints(SAMPLE.replace(right, wrong, 1)) != []


def test_the_published_schema_accepts_what_the_pages_show() -> None:
    pages = [each for each in sorted((ROOT / "docs").rglob("*.md")) if each.parent.name != "presets"]
    blocks = [block for page in pages for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", page.read_text("utf-8"))]
    shown = [block for block in blocks if re.match(r"(# workflows.yaml\n)?engines:", block) and "acme" not in block]
    assert len(shown) > 10
    assert [(block, found) for block in shown if (found := complaints(block))] == []


def test_the_reference_is_made_from_the_models() -> None:
    assert config_reference.main(["--check"]) == 0
