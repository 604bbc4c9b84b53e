"""workflows.yaml: what it becomes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from mcp_workflows.adapter import load_adapter
from mcp_workflows.tools.tool import TaskSupport, Tool
from tests.support.config_files import ENGINES, FINE, SAMPLE, load, problems


def test_the_sample_becomes_frozen_models(tmp_path: Path) -> None:
    config = load(tmp_path, SAMPLE)
    (tool,) = config.tools
    settings = config.engines["orders"].settings.model_dump()
    assert config.server.name == "acme-orders"
    assert config.server.instructions == "Order operations."
    assert config.engines["orders"].adapter == "temporal"
    assert config.engines["orders"].kind is load_adapter("temporal")
    assert settings["address"] == "localhost:7233"
    assert settings["task_queue"] == "orders"
    assert (tool.name, tool.engine, tool.workflow) == ("fulfil_order", "orders", "FulfilOrder")
    assert tool.tasks is TaskSupport.REQUIRED
    assert tool.ttl == timedelta(days=7)
    assert isinstance(tool, Tool)
    assert tool.args == ["{{order_id}}", "{{express}}"]
    assert tool.ask["reason"].when_missing
    assert tool.options == {}


def test_questions_can_be_answered_on_pages_where_there_are_some(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        server:
          public_url: https://mcp.example.com
          auth: {issuers: [{issuer: "https://login.example.com"}]}
          web: {issuer: "https://login.example.com", client_id: pages}
        engines: {here: {adapter: memory}}
        tools:
          ship:
            engine: here
            workflow: gated
            questions:
              ok: {when: {after_seconds: 0}, message: "Ship?", send: yes, answer_in: page}
        """,
    )
    gate = config.tools[0].frozen_gates({"args": {}})["ok"]
    assert gate.request.on_page


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    config = load(tmp_path, FINE)
    assert config.server.name == "mcp-workflows"
    assert config.server.version == "0.2.0"
    assert config.store.retention == timedelta(days=90)
    assert config.tools[0].input == {"type": "object"}


def test_a_key_that_is_not_of_the_tool_is_an_option_for_its_adapter(tmp_path: Path) -> None:
    text = SAMPLE.replace("    ttl: 7d\n", "    task_queue: express\n")
    assert load(tmp_path, text).tools[0].options == {"task_queue": "express"}


def test_tools_keep_the_order_of_the_file(tmp_path: Path) -> None:
    names = ["zebra", "apple", "mango"]
    tools = "".join(f"  {name}: {{engine: orders, workflow: sleep}}\n" for name in names)
    assert [tool.name for tool in load(tmp_path, f"{ENGINES}tools:\n{tools}").tools] == names


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("store: sqlite:///tasks.db", "tasks.db"),
        ("store: {url: 'sqlite:///data/tasks.db', retention: 30d}", "data/tasks.db"),
        ("store: {retention: 30d}", "mcp-workflows.db"),
    ],
)
def test_a_relative_sqlite_path_starts_at_the_folder_of_the_file(tmp_path: Path, written: str, file: str) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    url = load(folder, f"{written}\n{FINE}").store.url
    assert url == f"sqlite:///{(folder / file).as_posix()}".replace(" ", "%20")


def test_values_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "title").write_text("From a file\n\n", encoding="utf-8")
    text = """\
        title: ${file:title}
        description: a ${NOUN}, a ${OTHER:-default one}, a $${NOUN} for ${{price}}
        max_result: ${MAX}
        output: {type: object, description: "${EMPTY:-filled}"}
    """
    tool = load(tmp_path, FINE + _indented(text), NOUN="noun", MAX="17", EMPTY="").tools[0]
    assert tool.title == "From a file\n"
    assert tool.description == "a noun, a default one, a ${NOUN} for ${{price}}"
    assert tool.max_result == 17
    assert tool.output == {"type": "object", "description": "filled"}


def _indented(text: str) -> str:
    """As keys of the tool at the end of FINE."""
    return "".join(f"    {line}\n" for line in dedent(text).splitlines())


def test_what_is_merged_brings_along_what_was_merged_into_it(tmp_path: Path) -> None:
    text = f"""{ENGINES}tools:
  a: &a {{engine: orders, workflow: sleep, title: A, allow: {{call: {{scopes: [x]}}, see: {{}}}}}}
  b: &b {{<<: *a, workflow: echo}}
  c: {{<<: [*b, {{title: C, ttl: 1d}}], engine: orders}}
"""
    tool = load(tmp_path, text).tools[2]
    assert (tool.workflow, tool.title, tool.ttl) == ("echo", "A", timedelta(days=1))
    assert tool.allow
    assert tool.allow.call[0].scopes == ["x"]


def test_a_schema_can_be_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"type": "object", "required": ["id"]}', encoding="utf-8")
    assert load(tmp_path, f"{FINE}    input: ./order.json\n").tools[0].input["required"] == ["id"]


WORKFLOW = """\
from temporalio import workflow

@workflow.defn
class FulfilOrder:
    @workflow.run
    async def run(self, order_id: str, express: bool = False) -> dict[str, str]:
        return {}

@workflow.defn
class CountOrders:
    @workflow.run
    async def run(self) -> int:
        return 0
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with workflows, beside workflows.yaml and importable as the command line makes it."""
    name = "shop_of_test_config"
    (tmp_path / f"{name}.py").write_text(WORKFLOW, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield name
    sys.modules.pop(name, None)


def _with_input(text: str) -> str:
    """The sample, with this instead of its input, output and args."""
    lines = [line for line in SAMPLE.splitlines(keepends=True) if not line.startswith(("    args:", "    output:"))]
    lines = [line for line in lines if "questions:" not in line and "reason:" not in line]
    return "".join(f"    {text}\n" if line.startswith("    input:") else line for line in lines)


def test_a_workflow_in_code_gives_input_output_and_args(tmp_path: Path, code: str) -> None:
    tool = load(tmp_path, _with_input(f"input: {code}:FulfilOrder")).tools[0]
    assert list(tool.input["properties"]) == ["order_id", "express"]
    assert tool.output is not None
    assert tool.map({"args": {"order_id": "A-1", "express": True}}) == ["A-1", True]


def test_what_is_written_out_wins_over_what_the_code_says(tmp_path: Path, code: str) -> None:
    text = _with_input(f"input: {code}:FulfilOrder\n    output: {{type: object, title: Mine}}\n    args: ['x']")
    tool = load(tmp_path, text).tools[0]
    assert isinstance(tool, Tool)
    assert (tool.output, tool.args) == ({"type": "object", "title": "Mine"}, ["x"])


def test_code_that_returns_no_object_gives_no_output_schema(tmp_path: Path, code: str) -> None:
    text = _with_input(f"input: {code}:CountOrders").replace("workflow: FulfilOrder", "workflow: CountOrders")
    assert load(tmp_path, text).tools[0].output is None
    (problem,) = problems(tmp_path, _with_input(f"output: {code}:CountOrders"))
    assert problem.startswith("15: tools.fulfil_order.output: ")
    assert "does not return an object" in problem


@pytest.mark.parametrize("missing", ["nowhere:FulfilOrder", "shop_of_test_config:Nothing"])
def test_code_that_is_not_there_is_named_with_its_line(tmp_path: Path, code: str, missing: str) -> None:
    (problem,) = problems(tmp_path, _with_input(f"input: {missing}"))
    assert problem.startswith("15: tools.fulfil_order.input: ")
    assert missing.rpartition(":")[0 if missing.startswith("nowhere") else 2] in problem
