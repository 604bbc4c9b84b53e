"""A codec server and a data converter of one's own: nothing readable reaches Temporal, all of it reaches us."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.connection import quiet_runtime
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverterWithEncodedAttributes

from adapters.temporal.tests.codec_server import CodecServer, Encryption, codec_server
from adapters.temporal.tests.scene import PATIENCE, Scene, plan, workflow_id
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import ConfigError, EngineRefused, EngineUnavailable
from mcp_workflows.sidecar.config.load import load_config
from tests.support.child_processes import free_port
from tests.support.dev_server import DevServer

TOKEN = "Bearer hush-hush"
OWN = "adapters.temporal.tests.own_converter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """A worker that encrypts, a codec server with its key, and an adapter that has only the server."""

    scene: Scene
    server: CodecServer
    settings: TemporalSettings


@pytest.fixture
async def vault(dev_server: DevServer) -> AsyncIterator[Vault]:
    codec = Encryption(os.urandom(32))
    converter = replace(
        pydantic_data_converter,
        payload_codec=codec,
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
    client = await Client.connect(dev_server.address, data_converter=converter, runtime=quiet_runtime())
    scene = Scene.new(client)
    async with codec_server(codec) as server:
        settings = TemporalSettings.model_validate(
            {
                "address": dev_server.address,
                "task_queue": scene.queue,
                "timeout_seconds": 4,
                "codec": {"endpoint": server.endpoint + "/{namespace}", "auth": TOKEN},
            }
        )
        async with TemporalAdapter(settings) as adapter:
            yield Vault(scene=scene.on(adapter), server=server, settings=settings)


async def history(vault: Vault, ref: Ref) -> str:
    """All that Temporal itself knows, byte for byte as it is stored: as JSON, payloads are in base64."""
    found = await vault.scene.client.get_workflow_handle(workflow_id(ref)).fetch_history()
    return b"".join(event.SerializeToString() for event in found.events).decode("latin-1")


async def test_arguments_questions_answers_and_results_pass_through_the_codec_server(vault: Vault) -> None:
    scene = vault.scene
    async with scene.worker():
        ref = await scene.start("Ask", "Bob-the-secret")
        [key] = (await scene.asked(ref)).requests
        await scene.adapter.answer(ref, {key: {"action": "decline"}})
        assert (await scene.ended(ref)).output["action"] == "decline"
        assert await scene.adapter.start(plan("Ask", "Bob-the-secret", key=workflow_id(ref)[4:])) == ref.handle
    stored = await history(vault, ref)
    assert "Ask" in stored  # what is not encrypted can be read in it
    assert "Bob-the-" not in stored  # three letters come up by chance in what is encrypted
    assert "alice" not in stored  # in mcp.context
    assert {namespace for _, namespace in vault.server.asked} == {"default"}
    assert {path for path, _ in vault.server.asked} == {"/default/encode", "/default/decode"}


async def test_failures_with_encoded_attributes_are_read(vault: Vault) -> None:
    scene = vault.scene
    async with scene.worker():
        ref = await scene.start("Fails", "the secret reason", "Kind", [{"a": 1}])
        failure = (await scene.ended(ref)).failure
    assert failure is not None
    assert (failure.text, failure.kind) == ("the secret reason", "Kind")
    assert "secret" not in (await history(vault, ref))


async def test_a_cancelling_signal_passes_through_it_too(vault: Vault) -> None:
    ref = await vault.scene.start("Waits")
    await vault.scene.adapter.cancel(replace(ref, options={"cancel": {"signal": "stop", "args": ["hidden-reason"]}}))
    assert "hidden-reason" not in (await history(vault, ref))


async def test_a_codec_server_that_is_down_starts_nothing_and_ends_nothing(vault: Vault) -> None:
    scene = vault.scene
    async with scene.worker():
        ref = await scene.start("Echo", "x")
        await scene.ended(ref)
    vault.server.broken = 503
    with pytest.raises(EngineUnavailable, match=r"codec server \(encode\): it answers 503") as caught:
        await scene.start("Echo", "y")
    assert not caught.value.sent
    with pytest.raises(EngineUnavailable, match=r"codec server \(decode\)"):
        await scene.adapter.describe(ref)
    vault.server.broken = None
    seen = await scene.adapter.describe(ref)
    assert (seen.status, seen.output) == (Status.SUCCEEDED, "x")


STATUSES: Mapping[int, tuple[type[Exception], str]] = {
    401: (EngineRefused, "check codec.auth"),
    404: (EngineRefused, "check codec.endpoint"),
    400: (EngineRefused, "it answers 400"),
    302: (EngineRefused, "it answers 302"),
    429: (EngineUnavailable, "it answers 429"),
    500: (EngineUnavailable, "it answers 500"),
}


async def test_what_the_codec_server_answers_becomes_our_words_without_the_token(vault: Vault) -> None:
    for status, (error, said) in STATUSES.items():
        vault.server.broken = status
        with pytest.raises(error, match=said) as caught:
            await vault.scene.start("Waits")
        assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_checking_the_engine_tries_the_codec_server(vault: Vault) -> None:
    assert (await vault.scene.adapter.tooling.check_engine()).ok
    vault.server.broken = 403
    found = await vault.scene.adapter.tooling.check_engine()
    assert not found.ok
    assert "codec server (encode)" in found.text


async def test_a_codec_server_that_does_not_answer_is_given_up_in_time(vault: Vault) -> None:
    vault.server.silent = True
    with pytest.raises(EngineUnavailable, match="no answer within 2 s"):
        await vault.scene.start("Waits")


GARBLED = {
    b"<html>": "no list of payloads",
    b'{"payloads": [{}]}': "are no payloads",
    b'{"payloads": [' + b"[" * 100_000: "no list of payloads",
    b" " * (2**20 + 1): "more than 1 MiB",
}


async def test_no_answer_of_a_codec_server_ends_a_task(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows_temporal.codec.LARGEST", 2**20)
    async with vault.scene.worker():
        ref = await vault.scene.start("Echo", "Bob")
        await vault.scene.ended(ref)
    for garbled, said in GARBLED.items():
        vault.server.garbled = garbled
        with pytest.raises(EngineUnavailable, match=said):
            await vault.scene.adapter.describe(ref)
    vault.server.garbled = None
    assert (await vault.scene.adapter.describe(ref)).output == "Bob"


async def test_a_codec_server_that_is_not_there_is_said_to_be(vault: Vault) -> None:
    nowhere = vault.settings.model_copy(
        update={"codec": vault.settings.codec and vault.settings.codec.model_copy(update={"endpoint": nowhere_url()})}
    )
    async with TemporalAdapter(nowhere) as adapter:
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await adapter.start(plan("Waits"))


def nowhere_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def test_the_credentials_are_read_again_when_their_file_changes(
    vault: Vault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    codec = {"endpoint": vault.server.endpoint, "auth_file": str(file)}
    settings = TemporalSettings.model_validate(
        {"address": vault.settings.address, "task_queue": vault.settings.task_queue, "codec": codec}
    )
    async with TemporalAdapter(settings) as adapter:
        await adapter.start(plan("Waits"))
        file.write_text("")  # half-written
        with caplog.at_level(logging.WARNING):
            await until_warned(adapter, caplog)
        vault.server.token = "Bearer rotated"
        file.write_text("Bearer rotated")
        with anyio.fail_after(PATIENCE):
            while not await starts(adapter):
                await anyio.sleep(0.1)
    assert "hush" not in caplog.text
    assert "rotated" not in caplog.text


async def until_warned(adapter: TemporalAdapter, caplog: pytest.LogCaptureFixture) -> None:
    """What was read before stays in use until then."""
    with anyio.fail_after(PATIENCE):
        while "must hold one line" not in caplog.text:
            assert await starts(adapter)
            await anyio.sleep(0.1)


async def starts(adapter: TemporalAdapter) -> bool:
    try:
        return bool(await adapter.start(plan("Waits")))
    except EngineRefused:
        return False


# --- data_converter


@pytest.mark.parametrize("name", ["converter", "Converter", "make"])
async def test_a_data_converter_of_your_own_is_used(dev_server: DevServer, name: str) -> None:
    settings = TemporalSettings(address=dev_server.address, data_converter=f"{OWN}:{name}")
    async with TemporalAdapter(settings) as adapter:
        queue = Scene.new(await Client.connect(dev_server.address, runtime=quiet_runtime())).queue
        start = replace(plan("Waits", "shouted"), options={"task_queue": queue})
        handle = await adapter.start(start)
        client = await Client.connect(dev_server.address, runtime=quiet_runtime())
        found = await client.get_workflow_handle(handle.rpartition("/")[0]).fetch_history()
    data = found.events[0].workflow_execution_started_event_attributes.input.payloads[0].data
    assert data == b'"SHOUTED"'


async def test_a_data_converter_and_a_codec_server_combine(vault: Vault) -> None:
    combined = vault.settings.model_copy(update={"data_converter": f"{OWN}:make"})
    async with vault.scene.worker(), TemporalAdapter(combined) as adapter:
        scene = vault.scene.on(adapter)
        ref = await scene.start("Echo", "shouted")
        assert (await scene.ended(ref)).output == "SHOUTED"
    assert "SHOUTED" not in (await history(vault, ref))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"data_converter": "no_such_module:x"}, "cannot import no_such_module: ModuleNotFoundError"),
        ({"data_converter": "json:nothing"}, "json has no nothing"),
        ({"data_converter": "json"}, "not module:attribute"),
        ({"data_converter": "json:codecs"}, "is a module: a temporalio DataConverter is needed"),
        ({"data_converter": f"{OWN}:broken"}, "cannot be loaded: RuntimeError: no key"),
        ({"data_converter": f"{OWN}:encrypting", "codec": {"endpoint": "http://c"}}, "has a payload codec of its own"),
        ({"codec": {"endpoint": "localhost:8081"}}, "write a URL"),
        ({"codec": {"endpoint": "https://u:p@codec"}}, "not into the URL"),
        ({"codec": {"endpoint": "https://codec", "auth": "a", "auth_file": "b"}}, "not both"),
        ({"api_key": "a", "api_key_file": "b"}, "not both"),
    ],
)
def test_wrong_codecs_are_found_in_the_settings(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        TemporalSettings.model_validate(settings)


def test_the_converter_of_a_config_is_found_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "payloads_of_the_config.py").write_text(
        "from temporalio.converter import DataConverter\nours = DataConverter()\n"
    )
    file = tmp_path / "workflows.yaml"
    tools = "tools: {t: {engine: e, workflow: W}}"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    file.write_text(f"engines: {{e: {{adapter: temporal, data_converter: 'payloads_of_the_config:ours'}}}}\n{tools}\n")
    [engine] = load_config(file, {}).engines.values()
    assert isinstance(engine.settings, TemporalSettings)
    file.write_text(f"engines: {{e: {{adapter: temporal, data_converter: 'payloads_of_the_config:yours'}}}}\n{tools}\n")
    with pytest.raises(ConfigError, match=r"workflows.yaml:1: engines.e.data_converter: payloads_of_the_config:yours"):
        load_config(file, {})
