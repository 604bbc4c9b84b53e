"""workflows.yaml files of the tests, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config

ENGINES = "engines:\n  orders: {adapter: memory}\n"
TOOL = "tools:\n  wait:\n    engine: orders\n    workflow: sleep\n"  # after ENGINES: lines 3 to 6
FINE = ENGINES + TOOL

SAMPLE = """\
server: {name: acme-orders, instructions: "Order operations."}
store: sqlite:///mcp-workflows.db
engines:
  orders:
    adapter: temporal
    address: ${TEMPORAL_ADDRESS:-localhost:7233}
    namespace: default
    task_queue: orders
tools:
  fulfil_order:
    engine: orders
    workflow: FulfilOrder
    title: Fulfil an order
    description: Reserve stock, charge the card and ship. Takes minutes to days.
    input: {type: object, properties: {order_id: {type: string}, express: {type: boolean}}, required: [order_id]}
    args: ["{{order_id}}", "{{express}}"]
    output: {type: object}
    annotations: {destructiveHint: true}
    tasks: required
    ttl: 7d
    questions:
      reason: {message: "Why now?", schema: {type: string}, when_missing: true}
"""


def load(folder: Path, text: str, **environ: str) -> Config:
    path = folder / "workflows.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environ)


def problems(folder: Path, text: str, **environ: str) -> list[str]:
    """Line and text of everything that is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **environ)
    lines = str(caught.value).splitlines()
    start = f"{folder / 'workflows.yaml'}:"
    assert all(line.startswith(start) for line in lines), lines
    return [line.removeprefix(start) for line in lines]
