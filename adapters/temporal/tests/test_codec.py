"""Payload codecs: with the user's own client all goes through it; without it nothing breaks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from google.protobuf.struct_pb2 import Struct
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.connection import quiet_runtime
from mcp_workflows_temporal.payloads import decode
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, PayloadCodec

from adapters.temporal.tests.scene import Scene, open_adapter
from mcp_workflows.adapter import Status
from mcp_workflows.errors import EngineUnavailable
from tests.support.dev_server import DevServer

FLIP = bytes(range(255, -1, -1))


class CodecError(Exception):
    """What a codec raises is its own affair."""


class Upside(PayloadCodec):
    """As good as encryption for a test: nobody without it can read anything."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._wrap(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._unwrap(payload) for payload in payloads]

    def _wrap(self, payload: Payload) -> Payload:
        return Payload(metadata={"encoding": b"binary/upside"}, data=payload.SerializeToString().translate(FLIP))

    def _unwrap(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != b"binary/upside":
            raise CodecError("not ours")
        return Payload.FromString(payload.data.translate(FLIP))


async def coded(server: DevServer) -> Client:
    converter = replace(pydantic_data_converter, payload_codec=Upside())
    return await Client.connect(server.address, data_converter=converter, runtime=quiet_runtime())


async def test_without_the_codec_a_look_shows_what_it_can(dev_server: DevServer) -> None:
    scene = Scene.new(await coded(dev_server))
    async with TemporalAdapter.from_client(scene.client, TemporalSettings(task_queue=scene.queue)) as adapter:
        scene = scene.on(adapter)
        async with scene.worker(), open_adapter(dev_server) as stranger:
            ref = await scene.start("Ask", "Bob")
            [key] = (await scene.asked(ref)).requests
            seen = await stranger.describe(ref)
            assert (seen.status, seen.requests) == (Status.RUNNING, {})
            await adapter.answer(ref, {key: {"action": "decline"}})
            await scene.ended(ref)
            failure = (await stranger.describe(ref)).failure
    assert failure is not None
    assert "binary/upside" in failure.text


async def test_a_codec_that_raises_does_not_break_a_look(dev_server: DevServer, working: Scene) -> None:
    ref = await working.start("Ask", "Bob")
    await working.asked(ref)
    async with TemporalAdapter.from_client(await coded(dev_server)) as adapter:
        seen = await adapter.describe(ref)
    assert (seen.status, seen.requests) == (Status.RUNNING, {})


class Outage(Upside):
    """A codec whose key server is away for a while."""

    def __init__(self) -> None:
        self.away = False

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self.away:
            raise ConnectionError("keys.internal hush-hush")
        return await super().encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        if self.away:
            raise ConnectionError("keys.internal hush-hush")
        return await super().decode(payloads)


async def test_a_codec_whose_key_server_is_away_starts_nothing_and_ends_nothing(dev_server: DevServer) -> None:
    codec = Outage()
    converter = replace(pydantic_data_converter, payload_codec=codec)
    client = await Client.connect(dev_server.address, data_converter=converter, runtime=quiet_runtime())
    scene = Scene.new(client)
    async with TemporalAdapter.from_client(client, TemporalSettings(task_queue=scene.queue)) as adapter:
        scene = scene.on(adapter)
        async with scene.worker():
            failed, done = await scene.start("Fails", "no", "Kind", [1]), await scene.start("Echo", "x")
            for ref in (failed, done):
                await scene.ended(ref)
        codec.away = True
        asks = (lambda: adapter.describe(failed), lambda: adapter.describe(done), lambda: scene.start("Echo", "y"))
        for ask in asks:
            with pytest.raises(EngineUnavailable, match="payload codec does not answer") as caught:
                await ask()
            assert "hush" not in str(caught.value)
        codec.away = False
        assert (await adapter.describe(done)).output == "x"


async def test_whole_numbers_of_a_struct_stay_whole() -> None:
    message = Struct()
    message.update({"n": 12, "x": [1.5, {"big": 1e300}]})
    [payload] = await DataConverter.default.encode([message])
    decoded = await decode(DataConverter.default, payload)
    assert json.dumps(decoded, sort_keys=True) == '{"n": 12, "x": [1.5, {"big": 1e+300}]}'
