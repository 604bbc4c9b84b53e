"""Settings and options: what may be written, what wins, and that secrets stay secret."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalOptions, TemporalSettings, credentials
from mcp_workflows_temporal.connection import merged_profile, read_config
from mcp_workflows_temporal.settings import Place
from mcp_workflows_temporal.start import attributes, priority, versioning_override
from pydantic import ValidationError
from temporalio.common import PinnedVersioningOverride, Priority
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import TLSConfig

from mcp_workflows.adapter import Adapter, StartGuarantee, load_adapter
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError, EngineRefused
from mcp_workflows.kit.tooling import Checks, Schemas
from mcp_workflows.sidecar.config.load import load_config

PROFILE = """
[profile.default]
address = "from-file:7233"
namespace = "file-ns"
[profile.cloud]
address = "acme.a1b2c.tmprl.cloud:7233"
namespace = "acme.a1b2c"
api_key = "file-key"
"""


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    return monkeypatch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "temporal.toml"
    path.write_text(PROFILE)
    return path


def test_the_adapter_enters_by_its_entry_point_and_satisfies_the_protocols() -> None:
    adapter: type[Adapter] = TemporalAdapter
    assert load_adapter("temporal") is adapter
    assert isinstance(TemporalAdapter(TemporalSettings()).tooling, Checks)
    assert isinstance(TemporalAdapter(TemporalSettings()).tooling, Schemas)
    assert adapter.starts is StartGuarantee.KEYED


@pytest.mark.parametrize(
    "wrong",
    [
        {"adress": "localhost:7233"},
        {"address": "https://localhost:7233"},
        {"address": "localhost"},
        {"namespace": ""},
        {"task_queue": ""},
        {"timeout_seconds": 0},
        {"timeout_seconds": "soon"},
        {"max_input_bytes": 0},
        {"tls": {"cert": "x"}},
        {"tls": {"client_cert": "hush.pem"}},
        {"tls": {"client_cert": "c.pem", "client_key": "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----"}},
        {"api_key": "two\nhush"},
    ],
)
def test_wrong_settings_are_refused_and_not_repeated(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        TemporalSettings.model_validate(wrong)
    assert "hush" not in str(caught.value)


def connect_config(settings: TemporalSettings) -> ClientConnectConfig:
    return read_config(merged_profile(settings))


def test_settings_win_over_the_environment_and_that_over_the_file(
    no_environment: pytest.MonkeyPatch, file: Path
) -> None:
    settings = TemporalSettings(config_file=file)
    assert connect_config(settings) == {"target_host": "from-file:7233", "namespace": "file-ns"}
    no_environment.setenv("TEMPORAL_NAMESPACE", "env-ns")
    assert connect_config(settings).get("namespace") == "env-ns"
    assert connect_config(TemporalSettings(config_file=file, namespace="own")).get("namespace") == "own"


def test_a_profile_brings_its_api_key_and_tls(no_environment: pytest.MonkeyPatch, file: Path) -> None:
    found = connect_config(TemporalSettings(config_file=file, profile="cloud"))
    assert (found.get("api_key"), found.get("tls")) == ("file-key", True)


def test_certificates_are_read_from_their_files(no_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name)
    tls = {"server_name": "s", "server_root_ca_cert": tmp_path / "ca"}
    pair = {"client_cert": tmp_path / "cert", "client_key": tmp_path / "key"}
    found = connect_config(TemporalSettings.model_validate({"tls": {**tls, **pair}}))
    expected = TLSConfig(domain="s", server_root_ca_cert=b"ca", client_cert=b"cert", client_private_key=b"key")
    assert found.get("tls") == expected


@pytest.mark.parametrize(("tls", "expected"), [(True, TLSConfig()), (False, False), ({"disabled": True}, False)])
def test_tls_can_be_switched_on_and_off(no_environment: pytest.MonkeyPatch, tls: object, expected: object) -> None:
    settings = TemporalSettings.model_validate({"tls": tls, "api_key": "k"})
    assert connect_config(settings).get("tls") == expected


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"tls": {"server_root_ca_cert": "no-such-file.pem"}}, "no-such-file.pem"),
        ({"config_file": "no-such-file.toml"}, "no-such-file.toml does not exist"),
        ({"profile": "nope"}, "nope"),
    ],
)
async def test_what_cannot_be_read_is_a_config_error_on_entering(
    no_environment: pytest.MonkeyPatch, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        await TemporalAdapter(TemporalSettings.model_validate(settings)).__aenter__()


async def test_an_address_of_the_environment_is_checked_too(no_environment: pytest.MonkeyPatch) -> None:
    no_environment.setenv("TEMPORAL_ADDRESS", "http://localhost:7233")
    with pytest.raises(ConfigError, match="host:port"):
        await TemporalAdapter(TemporalSettings()).__aenter__()


def test_secrets_are_not_printed() -> None:
    settings = TemporalSettings.model_validate({"api_key": "hush", "grpc_meta": {"authorization": "hush"}})
    assert "hush" not in repr(settings)
    assert "hush" not in settings.model_dump_json()


@pytest.mark.parametrize(
    ("address", "ui_url", "root"),
    [
        ("localhost:7233", None, "http://localhost:8233"),
        ("127.0.0.1:7000", None, "http://localhost:8000"),
        ("acme.a1b2c.tmprl.cloud:7233", None, "https://cloud.temporal.io"),
        ("eu-west-1.aws.api.temporal.io:7233", None, "https://cloud.temporal.io"),
        ("temporal.internal:7233", None, None),
        ("temporal.internal:7233", "https://temporal.acme.com/", "https://temporal.acme.com"),
    ],
)
def test_the_ui_is_found_where_one_can_know_it(address: str, ui_url: str | None, root: str | None) -> None:
    assert Place.of(address, "default", ui_url).ui == root


def test_ids_are_quoted_in_links() -> None:
    shop = Place(address="engine:7233", namespace="a b", ui="u")
    assert shop.page("x/y?", "r") == "u/namespaces/a%20b/workflows/x%2Fy%3F/r/history"
    assert replace(shop, ui=None).page("b", "c") is None


def test_a_secret_that_only_now_may_be_read_counts_as_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "CHECK_EVERY", 0.0)
    secret = tmp_path / "key"
    secret.write_text("hush")
    watched = credentials.WatchedFiles([secret])
    assert not watched.changed()
    deadline = time.monotonic() + 60
    while not watched.changed():  # the clock of a file system ticks every few milliseconds
        assert time.monotonic() < deadline
        secret.chmod(0o640 if secret.stat().st_mode & 0o777 == 0o600 else 0o600)


HEAD = """
engines: {orders: {adapter: temporal, task_queue: orders}}
tools:
  fulfil:
    engine: orders
    workflow: FulfilOrder
    input: {type: object, properties: {order_id: {type: string}, urgent: {type: integer}, wait: {type: string}}}
"""
ALL = """
    workflow_id: "fulfil-{{order_id}}"
    on_existing: adopt
    execution_timeout: "{{wait}}"
    run_timeout: 2h
    task_timeout: 500ms
    search_attributes:
      OrderId: "{{order_id}}"
      Urgent: {type: Int, value: "{{urgent}}"}
      Express: true
    priority: {key: "{{urgent}}", fairness_key: "{{order_id}}", fairness_weight: 2.5}
    versioning_override: {pinned: {deployment: orders, build_id: "1.{{urgent}}"}}
    cancel: {signal: stop, args: ["{{principal.id}}"]}
    summary: "order {{order_id}}"
    task_queue: "orders-{{urgent}}"
"""


def loaded(folder: Path, text: str) -> Mapping[str, Any]:
    file = folder / "workflows.yaml"
    file.write_text(HEAD + text)
    [tool] = load_config(file, {}).tools
    return tool.options


def filled(options: Mapping[str, Any], **arguments: Any) -> TemporalOptions:
    rendered: Mapping[str, Any] = Template(dict(options)).render({"args": arguments, "principal": {"id": "p"}})
    return TemporalOptions.final(rendered)


def test_all_that_a_tool_may_set_survives_the_file_and_is_filled_in(tmp_path: Path) -> None:
    options = filled(loaded(tmp_path, ALL), order_id="A1", urgent=2, wait="30m")
    assert options.workflow_id == "fulfil-A1"
    assert options.execution_timeout == timedelta(minutes=30)
    assert (options.run_timeout, options.task_timeout) == (timedelta(hours=2), timedelta(milliseconds=500))
    assert [(name, str(kind), value) for name, kind, value in attributes(options)] == [
        ("OrderId", "Keyword", "A1"),
        ("Urgent", "Int", 2),
        ("Express", "Bool", True),
    ]
    assert priority(options) == Priority(priority_key=2, fairness_key="A1", fairness_weight=2.5)
    pinned = versioning_override(options)
    assert isinstance(pinned, PinnedVersioningOverride)
    assert pinned.version.to_canonical_string() == "orders.1.2"
    assert options.cancel is not None
    assert (options.cancel.signal, options.cancel.args, options.summary) == ("stop", ["p"], "order A1")
    assert options.task_queue == "orders-2"


def test_what_the_arguments_do_not_bring_is_not_set(tmp_path: Path) -> None:
    options = filled(loaded(tmp_path, ALL), order_id="A1")
    assert options.execution_timeout is None
    assert [name for name, _, _ in attributes(options)] == ["OrderId", "Express"]
    assert priority(options) == Priority(fairness_key="A1", fairness_weight=2.5)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("on_existing: join", "on_existing: .*'refuse' or 'adopt'"),
        ("execution_timeout: soon", "execution_timeout: a duration is a number and a unit"),
        ("priority: {key: 0}", "priority.key: must be greater than or equal to 1"),
        ("priority: {kee: 1}", "unknown key; did you mean 'key'"),
        ("search_attributes: {A: {type: Keywrd, value: a}}", "Keyword"),
        ("versioning_override: newest", "auto_upgrade"),
        ("cancel: {args: []}", "cancel.signal: is missing"),
        ('progress: {query: state, value: "abc"}', "value: write the field of the query's result"),
        ('progress: {query: state, value: "{{done}}", total: -5}', "total: write a number above 0"),
        ('progress: {query: state, value: "{{done}}", total: many}', "total: write a number above 0"),
        (
            'query: state\n    workflow_id: "a"\n    progress: {query: state, value: "{{done}}"}',
            "progress: a tool that",
        ),
        ('workflow_id: "fulfil-{{order_id"', "braces that are not closed"),
        ('workflow_id: "fulfil-{{ordr_id}}"', "there is no argument 'ordr_id'; did you mean 'order_id'"),
    ],
)
def test_a_mistake_is_found_in_the_file(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        loaded(tmp_path, f"    {line}")


@pytest.mark.parametrize(
    ("line", "arguments", "complaint"),
    [
        ('execution_timeout: "{{wait}}"', {"wait": "soon"}, "execution_timeout: .*a duration is a number and a unit"),
        ('execution_timeout: "{{wait}}"', {"wait": "{{wait}}"}, "a duration is a number and a unit"),
        ('priority: {key: "{{urgent}}"}', {"urgent": 0}, "priority.key"),
        ('priority: {fairness_key: "{{order_id}}"}', {"order_id": "x" * 65}, "longer than 64 bytes"),
        ('workflow_id: "{{order_id}}"', {"order_id": " "}, "empty"),
        ('workflow_id: "{{order_id}}"', {"order_id": "\u00e4" * 501}, "longer than 1000 bytes"),
        ('workflow_id: "{{order_id}}"', {"order_id": "a\nb"}, "cannot be printed"),
        ('workflow_id: "{{order_id}}"', {"order_id": "mcp-other"}, "begin with mcp-"),
    ],
)
def test_a_value_that_does_not_fit_is_a_definite_no(
    tmp_path: Path, line: str, arguments: Mapping[str, Any], complaint: str
) -> None:
    options = loaded(tmp_path, f"    {line}")
    with pytest.raises(EngineRefused, match=complaint):
        filled(options, **arguments)


def test_a_workflow_id_may_be_a_number() -> None:
    assert TemporalOptions.final({"workflow_id": 17}).workflow_id == "17"
