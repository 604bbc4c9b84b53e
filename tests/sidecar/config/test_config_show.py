"""`print config`: the configuration in the end, and nothing secret in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from mcp_workflows.sidecar.config import redaction
from mcp_workflows.sidecar.config.json_schema import config_schema
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.redaction import redact_config
from tests.sidecar.cli.conftest import terminal
from tests.sidecar.cli.terminal import Terminal
from tests.sidecar.config.test_includes import PLATFORM, written
from tests.support.config_files import SAMPLE

__all__ = ["terminal"]

SECRET = "hunter2-and-much-more"
SCHEMA = cache(config_schema)  # takes half a second, and is the same in all tests here


@pytest.fixture(autouse=True)
def schema_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "config_schema", SCHEMA)


ENGINE = "engines:\n  orders: {{adapter: temporal, task_queue: q, {}}}\n"
TOOLS = "tools:\n  pay: {engine: orders, workflow: Pay}\n"

SECRETIVE: Mapping[str, tuple[str, str]] = {
    # where the secret is written, and what is shown instead
    "a variable": (ENGINE.format("api_key: '${KEY}'") + TOOLS, "api_key: ${KEY}"),
    "a variable in a text": (ENGINE.format("address: 'x-${KEY}:1'") + TOOLS, "address: x-${KEY}:1"),
    "a file": (ENGINE.format("api_key: '${file:key}'") + TOOLS, "api_key: ${file:key}"),
    "a default of a secret": (ENGINE.format(f"api_key: '${{NONE:-{SECRET}}}'") + TOOLS, "api_key: '***'"),
    "a default that was not taken": (ENGINE.format(f"api_key: '${{KEY:-{SECRET}}}'") + TOOLS, "api_key: ${KEY:-***}"),
    "a variable beside a secret": (ENGINE.format(f"api_key: 'a ${{OTHER}} {SECRET}'") + TOOLS, "api_key: '***'"),
    "a secret of an adapter": (ENGINE.format(f"api_key: {SECRET}") + TOOLS, "api_key: '***'"),
    "secrets by name": (ENGINE.format(f"grpc_meta: {{x-plain: {SECRET}}}") + TOOLS, "x-plain: '***'"),
    "a password in a URL": (
        f"store: postgresql://me:{SECRET}@host/db\nengines:\n  orders: {{adapter: memory}}\n{TOOLS}",
        "store: postgresql://me:***@host/db",
    ),
    "a token in a URL": (
        f"server: {{instructions: 'https://host/a?b=c&access_token={SECRET}'}}\n" + ENGINE.format("tls: true") + TOOLS,
        "instructions: https://host/a?b=c&access_token=***",
    ),
    "a key of the store": (
        f"store: {{encryption: {{keys: [{SECRET}, '${{KEY}}']}}}}\n" + ENGINE.format("tls: true") + TOOLS,
        "    keys:\n    - '***'\n    - ${KEY}\n",
    ),
    "one key where a list belongs": (
        f"store: {{encryption: {{keys: {SECRET}}}}}\n" + ENGINE.format("tls: true") + TOOLS,
        "    keys: '***'\n",
    ),
    "a token of ours where its hash belongs": (
        f"server: {{auth: {{tokens: [{{name: ci, sha256: mcpw_{SECRET}}}]}}}}\n" + ENGINE.format("tls: true") + TOOLS,
        "sha256: mcpw_***",
    ),
    "a header that is a text": (
        ENGINE.format("tls: true") + TOOLS.replace("Pay}", f"Pay, args: [{{auth: Bearer {SECRET}}}]}}"),
        "auth: Bearer ***",
    ),
    "an argument": (
        ENGINE.format("tls: true") + TOOLS.replace("Pay}", f"Pay, args: [{{password: {SECRET}}}]}}"),
        "password: '***'",
    ),
    "a section nobody knows": (f"other: {{x: {{y: {SECRET}}}}}\n" + ENGINE.format("tls: true") + TOOLS, "other: '***'"),
    "a setting nobody knows": (ENGINE.format(f"tsl: {SECRET}") + TOOLS, "tsl: '***'"),
    "a mapping nobody knows": (
        ENGINE.format(f"codec: {{endpoint: 'https://x', headers: {{x: {SECRET}}}}}") + TOOLS,
        "      endpoint: https://x\n      headers: '***'\n",
    ),
    "a list nobody knows": (ENGINE.format(f"codec: {{header: [[{SECRET}]]}}") + TOOLS, "header: '***'"),
    "a number nobody knows": (ENGINE.format("pin: 424242") + TOOLS, "pin: '***'"),
    "a variable nobody knows": (ENGINE.format("tsl: '${KEY}'") + TOOLS, "tsl: ${KEY}"),
    "a mapping where a text belongs": (ENGINE.format(f"address: {{x: {SECRET}}}") + TOOLS, "x: '***'"),
    "a list where a text belongs": (ENGINE.format(f"address: [{SECRET}]") + TOOLS, "address: '***'"),
    "a header of an engine": (
        f"engines:\n  jobs: {{adapter: mcp, headers: {{X-Auth: {SECRET}, X-Id: '${{KEY}}'}}}}\n{TOOLS}",
        "    headers:\n      X-Auth: '***'\n      X-Id: ${KEY}\n",
    ),
    "a header of a request": (
        f"engines:\n  jobs: {{adapter: http, start: {{request: {{headers: {{X-Functions-Key: {SECRET}}}}}}}}}\n{TOOLS}",
        "X-Functions-Key: '***'",
    ),
    "a setting of another adapter": (
        f"engines:\n  orders: {{adapter: memory, address: {SECRET}}}\n{TOOLS}",
        "adapter: memory\n    address: '***'",
    ),
    "a setting of an adapter that is not here": (
        f"engines:\n  orders: {{adapter: nope, address: {SECRET}}}\n{TOOLS}",
        "adapter: nope\n    address: '***'",
    ),
    "a setting of a tool that nobody knows": (
        ENGINE.format("tls: true") + TOOLS.replace("Pay}", f"Pay, headers: {{x: {SECRET}}}}}"),
        "headers: '***'",
    ),
    "a rule that nobody knows": (
        ENGINE.format("tls: true") + TOOLS.replace("Pay}", f"Pay, allow: {{call: {{by: {SECRET}}}}}}}"),
        "by: '***'",
    ),
}


@pytest.mark.parametrize(("text", "shown"), SECRETIVE.values(), ids=SECRETIVE)
def test_no_secret_is_shown_wherever_it_is(tmp_path: Path, text: str, shown: str) -> None:
    (tmp_path / "key").write_text(SECRET)
    found = redact_config(written(tmp_path, {"workflows.yaml": text}), {"KEY": SECRET, "OTHER": "other"})
    for printed in (found.as_yaml(), json.dumps(found.as_json())):
        assert not any(SECRET[start : start + 6] in printed for start in range(len(SECRET) - 5)), printed
    assert shown in found.as_yaml()


def test_what_is_shown_can_be_used_and_means_the_same(tmp_path: Path) -> None:
    text = SAMPLE + '    args: [{price: "$${x} {{order_id}}"}]\n'
    text = text.replace('    args: ["{{order_id}}", "{{express}}"]\n', "")
    path = written(tmp_path, {"workflows.yaml": text})
    environ = {"TEMPORAL_ADDRESS": "temporal.example.com:7233"}
    before = load_config(path, environ)
    path.write_text(redact_config(path, environ).as_yaml())
    after = load_config(path, environ)
    assert (after.tools, after.engines, after.server) == (before.tools, before.engines, before.server)


def test_each_tool_says_where_it_and_its_settings_are_from(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    platform = "defaults: {ttl: 1d}\n" + PLATFORM + "rules:\n  '*': {max_result: 9}\n"
    written(tmp_path, {"workflows.yaml": platform, "teams/a.yaml": "tools:\n\n  say: {engine: here, workflow: echo}\n"})
    ended = terminal.run("print", "config", "workflows.yaml", "--format", "json")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert told["from"] == {
        "orders_say": {
            "place": "teams/a.yaml:3",
            "settings": {"max_result": "workflows.yaml:8", "ttl": "workflows.yaml:1"},
        }
    }
    assert told["config"].keys() == {"engines", "tools"}
    assert told["config"]["tools"]["orders_say"] == {
        "engine": "here",
        "workflow": "echo",
        "max_result": 9,
        "ttl": "1d",
    }


def test_the_arguments_of_a_command_are_shown_without_secrets(tmp_path: Path, terminal: Terminal) -> None:
    words = ["npx", "-y", "@acme/server", "--api-key", "k3y-canary", "--token=t0k-canary", "--mode", "fast"]
    words += ["postgresql://me:pw-canary@db/orders", "Xk29fLq81canaryPz7", "ghp_0123456789canaryABCDEF", "./a/file.txt"]
    config = f"engines: {{up: {{adapter: mcp, command: {json.dumps(words)}}}}}\ntools: {{}}\n"
    shown = terminal.run("print", "config", str(written(tmp_path, {"workflows.yaml": config})), "--format", "json")
    assert "canary" not in shown.out
    kept = ["npx", "-y", "@acme/server", "--api-key", "***", "--token=***", "--mode", "fast"]
    command = json.loads(shown.out)["config"]["engines"]["up"]["command"]
    assert command == [*kept, "postgresql://me:***@db/orders", "***", "***", "./a/file.txt"]


def test_it_is_shown_without_the_variables_too_and_what_is_missing_is_said(tmp_path: Path, terminal: Terminal) -> None:
    path = written(tmp_path, {"workflows.yaml": ENGINE.format("api_key: '${NO_SUCH_KEY}'") + TOOLS})
    ended = terminal.run("print", "config", str(path))
    assert ended.code == 1
    assert "api_key: ${NO_SUCH_KEY}\n" in ended.out
    assert "workflows.yaml:2: engines.orders.api_key: ${NO_SUCH_KEY}: NO_SUCH_KEY is not set" in ended.err
