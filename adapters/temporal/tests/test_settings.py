"""Settings: what may be written, what wins, and that secrets stay secret."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalOptions, TemporalSettings, credentials
from mcp_workflows_temporal.connection import merged_profile, read_config
from mcp_workflows_temporal.settings import Place
from pydantic import ValidationError
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import TLSConfig

from mcp_workflows.adapter import Adapter, Checks, Schemas, StartGuarantee, load_adapter
from mcp_workflows.errors import ConfigError

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
    assert isinstance(TemporalAdapter(TemporalSettings()), Checks)
    assert isinstance(TemporalAdapter(TemporalSettings()), Schemas)
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


@pytest.mark.parametrize("address", ["localhost:7233", "127.0.0.1:1", "[::1]:7233", "acme.tmprl.cloud:7233"])
def test_an_address_is_host_and_port(address: str) -> None:
    assert TemporalSettings(address=address).address == address


def test_an_unknown_option_of_a_tool_is_refused() -> None:
    with pytest.raises(ValidationError):
        TemporalOptions.model_validate({"queue": "q"})


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
