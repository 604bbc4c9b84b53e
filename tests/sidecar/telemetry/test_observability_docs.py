"""The configuration and the event of docs/operate/observability.md, and its settings of Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from mcp_workflows.access.audit import Event
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import AuditSettings
from mcp_workflows.sidecar.telemetry.exporters import AuditEvent

DOCS = Path(__file__).parents[3] / "docs" / "operate"
PAGE = (DOCS / "observability.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_its_configuration_is_one(tmp_path: Path) -> None:
    engines = "engines: {here: {adapter: memory}}\ntools: {echo: {engine: here, workflow: echo}}\n"
    (tmp_path / "workflows.yaml").write_text(blocks("yaml")[0] + engines)
    config = load_config(tmp_path / "workflows.yaml", {})
    assert config.audit == AuditSettings(to=str(tmp_path.resolve() / "audit.jsonl"))
    assert config.telemetry


def test_its_event_is_one() -> None:
    [written] = blocks("json")
    event = AuditEvent.model_validate_json(written)
    assert json.loads(written) == event.model_dump(mode="json", exclude={"arguments", "result"})


def test_all_events_are_in_its_table() -> None:
    assert [name for name in re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) if name in set(Event)] == list(Event)


def test_prometheus_is_told_of_files_that_are_there() -> None:
    told: Any = YAML(typ="safe").load(blocks("yaml")[1])  # pyright: ignore[reportUnknownMemberType]
    assert all((DOCS.parents[1] / "deploy" / name).is_file() for name in told["rule_files"])
    for linked in re.findall(r"\]\(([^):#]+)[^)]*\)", PAGE):
        assert linked.startswith("http") or (DOCS / linked).is_file(), linked
