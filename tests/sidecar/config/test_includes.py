"""Files of teams: what they become together with the platform's own, and what they may not say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from mcp_workflows.access import Allow
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.config.yaml import variables_in
from mcp_workflows.sidecar.reload import files_of
from mcp_workflows.tools.tool import AnyTool, TaskSupport

SECRET = "hunter2-and-much-more"

PLATFORM = """\
include:
  - {files: teams/*.yaml, namespace: orders, engines: [here]}
engines:
  here: {adapter: memory}
  vault: {adapter: memory, name: private-ledger}
"""
TEAM = "tools:\n  create: {engine: here, workflow: echo}\n"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    return folder / "workflows.yaml"


def load(folder: Path, files: Mapping[str, str], **environ: str) -> Config:
    return load_config(written(folder, files), environ)


def tools(folder: Path, files: Mapping[str, str], **environ: str) -> Mapping[str, AnyTool]:
    return {tool.name: tool for tool in load(folder, files, **environ).tools}


def problems(folder: Path, files: Mapping[str, str], **environ: str) -> list[str]:
    """A line for all that is wrong, as seen from the folder."""
    with pytest.raises(ConfigError) as caught:
        load(folder, files, **environ)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def team(folder: Path, text: str, **environ: str) -> list[str]:
    return problems(folder, {"workflows.yaml": PLATFORM, "teams/a.yaml": text}, **environ)


# --- together


def test_tools_of_teams_come_after_the_platforms_own_in_the_order_of_their_files(tmp_path: Path) -> None:
    found = tools(
        tmp_path,
        {
            "workflows.yaml": PLATFORM + "tools:\n  own: {engine: vault, workflow: echo}\n",
            "teams/b.yaml": "tools:\n  z: {engine: here, workflow: echo}\n",
            "teams/a.yaml": "tools:\n  y: {engine: here, workflow: echo}\n  x: {engine: here, workflow: echo}\n",
            "teams/.hidden.yaml": "what: is this\n",
            "teams/notes.txt": "not matched",
        },
    )
    assert list(found) == ["own", "orders_y", "orders_x", "orders_z"]


def test_a_setting_is_taken_whole_from_the_uppermost_place_that_has_it(tmp_path: Path) -> None:
    platform = """\
        defaults: {engine: here, ttl: 1d, max_result: 1000, allow: {call: {scopes: [any]}, see: {}}}
        include:
          - {files: teams/*.yaml, namespace: orders, engines: [here]}
        engines: {here: {adapter: memory}}
        rules:
          "orders_*": {allow: {call: {scopes: [orders]}, see: {}}}
          orders_pay: {allow: {call: {scopes: [pay]}, see: {}, cancel: {}}, max_result: 5}
        tools:
          own: {engine: here, workflow: echo, max_result: 7, ttl: }
    """
    files = {
        "workflows.yaml": platform,
        "teams/a.yaml": "tools:\n  pay: {workflow: echo, ttl: 3d}\n  see: {workflow: echo}\n",
    }
    found = tools(tmp_path, files)
    assert {name: (tool.ttl, tool.max_result) for name, tool in found.items()} == {
        "own": (timedelta(days=1), 7),
        "orders_pay": (timedelta(days=3), 5),
        "orders_see": (timedelta(days=1), 1000),
    }
    assert {name: tool.allow for name, tool in found.items()} == {
        "own": Allow.model_validate({"call": {"scopes": ["any"]}, "see": {}}),
        "orders_pay": Allow.model_validate({"call": {"scopes": ["pay"]}, "see": {}, "cancel": {}}),
        "orders_see": Allow.model_validate({"call": {"scopes": ["orders"]}, "see": {}}),
    }


def test_a_default_says_nothing_of_a_tool_that_it_does_not_count_for(tmp_path: Path) -> None:
    platform = "defaults: {wait: 5s, adaptive: 1s, cancel_on_disconnect: true}\n" + PLATFORM
    text = """\
        tools:
          a: {engine: here, workflow: echo, tasks: required}
          b: {engine: here, workflow: echo, tasks: forbidden}
          c: {engine: here, workflow: echo, tasks: wait}
          d: {engine: here, workflow: echo, kind: watch}
          e: {engine: here, workflow: echo}
    """
    found = tools(tmp_path, {"workflows.yaml": platform, "teams/a.yaml": text})
    assert found["orders_a"].tasks is TaskSupport.REQUIRED
    assert found["orders_b"].adaptive is None
    assert not found["orders_d"].cancel_on_disconnect
    assert found["orders_e"].wait == timedelta(seconds=5)


def test_a_schema_file_is_looked_for_beside_the_file_that_names_it(tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"order": {}}}'
    text = "tools:\n  create: {engine: here, workflow: echo, input: ./schemas/in.json}\n"
    files = {"workflows.yaml": PLATFORM, "teams/a.yaml": text, "teams/schemas/in.json": schema}
    assert tools(tmp_path, files)["orders_create"].input["properties"] == {"order": {}}


def test_a_glob_may_come_from_outside_and_what_it_finds_is_watched(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"workflows.yaml": PLATFORM.replace("teams/*", "'${WHERE}/*").replace("*.yaml", "*.yaml'")}
    )
    written(tmp_path, {"teams/a.yaml": TEAM})
    assert [tool.name for tool in load_config(path, {"WHERE": "teams"}).tools] == ["orders_create"]
    assert files_of(path, {"WHERE": "teams"}) == {path, tmp_path / "teams" / "a.yaml"}


@pytest.mark.parametrize(
    ("mentions", "default"),
    [
        ("${A:-eu}", "eu"),
        ("${A:-eu} ${A:-eu}", "eu"),
        ("${A:-}", ""),
        ("${A:-eu} ${A:-us} ${A:-eu}", ""),
        ("${A:-eu} ${A:-us} ${A}", None),
        ("${A} ${A:-eu}", None),
        ("${A:-eu} # not ${A}", "eu"),
    ],
)
def test_a_variable_has_a_default_if_all_its_mentions_have_one(
    tmp_path: Path, mentions: str, default: str | None
) -> None:
    path = written(tmp_path, {"workflows.yaml": f"store: {mentions}\n"})
    assert variables_in(path) == {"A": default}


# --- what a team may not say


@pytest.mark.parametrize("layer", ["defaults", "rules"])
def test_a_question_of_the_platform_joins_those_of_a_tool(tmp_path: Path, layer: str) -> None:
    asked = "questions: {sure: {message: Sure?}}"
    said = f"defaults: {{{asked}}}" if layer == "defaults" else f"rules: {{orders_create: {{{asked}}}}}"
    own = TEAM.replace("}", ", questions: {why: {message: Why?, schema: {type: string}}}}")
    (tool,) = tools(tmp_path, {"workflows.yaml": f"{PLATFORM}{said}\n", "teams/a.yaml": own}).values()
    assert (tool.confirmation or ("",))[0] == "sure"
    assert list(tool.ask) == ["why"]


def test_a_symbolic_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text(TEAM)
    (tmp_path / "outside.json").write_text('{"type": "object"}')
    (tmp_path / "in" / "teams").mkdir(parents=True)
    (tmp_path / "in" / "teams" / "x.json").symlink_to(tmp_path / "outside.json")
    path = written(
        tmp_path / "in", {"workflows.yaml": PLATFORM, "teams/a.yaml": TEAM.replace("}", ", input: ./x.json}")}
    )
    with pytest.raises(ConfigError, match=r"a.yaml:2: tools.create.input: ./x.json leads outside the folder"):
        load_config(path, {})
    (tmp_path / "in" / "teams" / "b.yaml").symlink_to(tmp_path / "outside.yaml")
    with pytest.raises(ConfigError, match=r"workflows.yaml:2: include\[0\].files: .*b.yaml leads outside the folder"):
        load_config(path, {})
