"""TLS, mTLS and API keys: real handshakes in front of the real server, and secrets that are rotated meanwhile."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.errors import Call
from mcp_workflows_temporal.settings import Place

from adapters.temporal.tests.scene import PATIENCE
from adapters.temporal.tests.tls_proxy import TLSProxy, tls_proxy
from mcp_workflows.errors import ConfigError, EngineUnavailable
from tests.support.authority import Authority
from tests.support.dev_server import DevServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """Temporal behind TLS that wants a client certificate of ours."""

    proxy: TLSProxy
    authority: Authority
    folder: Path

    def open(self, **tls: Any) -> TemporalAdapter:
        """An adapter that trusts our authority."""
        secured = {"server_root_ca_cert": self.authority.file, **tls}
        settings = {"address": self.proxy.address, "timeout_seconds": 12, "tls": secured}
        return TemporalAdapter(TemporalSettings.model_validate(settings))


@pytest.fixture
async def mutual(dev_server: DevServer, tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path)
    async with tls_proxy(dev_server.port, authority, tmp_path, clients=authority) as proxy:
        yield Secured(proxy=proxy, authority=authority, folder=tmp_path)


@pytest.fixture
async def plain_tls(dev_server: DevServer, tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path)
    async with tls_proxy(dev_server.port, authority, tmp_path) as proxy:
        yield Secured(proxy=proxy, authority=authority, folder=tmp_path)


async def until(adapter: TemporalAdapter, wanted: Callable[[], object]) -> None:
    """Call again and again until it is as wanted; every call must be answered."""
    with anyio.fail_after(PATIENCE):
        while not wanted():  # the files are looked at before calls, and every few seconds
            found = await adapter.tooling.check_engine()
            assert found.ok, found.text
            await anyio.sleep(0.1)


async def test_tls_with_an_authority_of_your_own(plain_tls: Secured) -> None:
    async with plain_tls.open() as adapter:
        assert (await adapter.tooling.check_engine()).ok
    async with plain_tls.open(server_name="temporal.internal") as adapter:
        assert (await adapter.tooling.check_engine()).ok


async def test_a_server_of_another_authority_or_name_is_not_trusted(plain_tls: Secured) -> None:
    other = Authority(plain_tls.folder, "other ca")
    wrong = {"server_root_ca_cert": other.file}, {"server_name": "else.internal"}
    for tls, said in zip(wrong, ("we do not trust who signed", "another name is in"), strict=True):
        async with plain_tls.open(**tls) as adapter:
            found = await adapter.tooling.check_engine()
        assert not found.ok
        assert said in found.text


async def test_mtls_shows_our_certificate(mutual: Secured) -> None:
    cert, key = mutual.authority.issue_into(mutual.folder / "client", "adapter one")
    async with mutual.open(client_cert=cert, client_key=key) as adapter:
        assert (await adapter.tooling.check_engine()).ok
    assert set(mutual.proxy.clients) == {"adapter one"}


async def test_mtls_without_a_certificate_or_with_a_strangers_is_refused(mutual: Secured) -> None:
    stranger = Authority(mutual.folder, "stranger ca")
    cert, key = stranger.issue_into(mutual.folder / "stranger", "stranger")
    for tls in ({}, {"client_cert": cert, "client_key": key}):
        async with mutual.open(**tls) as adapter:
            found = await adapter.tooling.check_engine()
        assert not found.ok
        assert "client_cert" in found.text
    assert mutual.proxy.clients == []


async def test_a_connection_closed_before_the_first_answer_names_the_certificate() -> None:
    """What the SDK says when the frontend hangs up just after the handshake: now and then, by a race, so as a text."""
    said = (
        "Failed client connect: `get_system_info` call error after connection: Status { code: Cancelled, message: "
        '"operation was canceled", source: Some(tonic::transport::Error(Transport, hyper::Error(Canceled, '
        '"connection closed"))) }'
    )
    with pytest.raises(EngineUnavailable, match="if it wants TLS with a client_cert, check tls") as caught:
        async with Call(Place(address="frontend:7233", namespace="default"), PATIENCE):
            raise RuntimeError(said)
    assert not caught.value.sent


async def test_a_certificate_and_a_key_that_do_not_belong_together_are_found_on_entering(mutual: Secured) -> None:
    cert, _ = mutual.authority.issue_into(mutual.folder / "one", "one")
    _, key = mutual.authority.issue_into(mutual.folder / "two", "two")
    with pytest.raises(ConfigError, match=r"client_cert and client_key cannot be used: key values mismatch"):
        await mutual.open(client_cert=cert, client_key=key).__aenter__()


async def test_a_rotated_certificate_is_shown_and_a_half_written_one_never(
    mutual: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = mutual.authority.issue_into(mutual.folder / "client", "adapter one")
    async with mutual.open(client_cert=cert, client_key=key) as adapter:
        assert (await adapter.tooling.check_engine()).ok
        new_cert, new_key = mutual.authority.issue("adapter two")
        cert.write_bytes(new_cert)  # the key is still the old one
        with caplog.at_level(logging.WARNING):
            await until(adapter, lambda: "the values read before stay in use" in caplog.text)
        key.write_bytes(new_key)
        await until(adapter, lambda: "adapter two" in mutual.proxy.clients)
    assert set(mutual.proxy.clients) == {"adapter one", "adapter two"}
    assert "PRIVATE" not in caplog.text


async def test_an_api_key_in_a_file_is_read_again_when_it_changes(
    plain_tls: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    file, proxy = plain_tls.folder / "key", plain_tls.proxy
    file.write_text("k-one\n")
    settings = {
        "address": proxy.address,
        "api_key_file": file,
        "tls": {"server_root_ca_cert": plain_tls.authority.file},
    }
    async with TemporalAdapter(TemporalSettings.model_validate(settings)) as adapter:
        assert (await adapter.tooling.check_engine()).ok
        file.write_text("")
        with caplog.at_level(logging.WARNING):
            await until(adapter, lambda: "must hold one line of text (ASCII), and nothing is there" in caplog.text)
        file.unlink()
        await until(adapter, lambda: "cannot read" in caplog.text)
        file.write_text("k-two")
        await until(adapter, lambda: "Bearer k-two" in proxy.tokens)
    assert set(proxy.tokens) == {"Bearer k-one", "Bearer k-two"}
    assert "k-one" not in caplog.text
    assert "k-two" not in caplog.text


async def test_a_profile_of_temporals_own_configuration_brings_its_certificates(mutual: Secured) -> None:
    cert, key = mutual.authority.issue_into(mutual.folder / "client", "by profile")
    file = mutual.folder / "temporal.toml"
    file.write_text(
        f'[profile.prod]\naddress = "{mutual.proxy.address}"\n[profile.prod.tls]\nclient_cert_path = "{cert}"\n'
        f'client_key_path = "{key}"\nserver_ca_cert_path = "{mutual.authority.file}"\n'
    )
    async with TemporalAdapter(TemporalSettings(config_file=file, profile="prod")) as adapter:
        assert (await adapter.tooling.check_engine()).ok
        new_cert, new_key = mutual.authority.issue("by profile, rotated")
        key.write_bytes(new_key)
        cert.write_bytes(new_cert)
        await until(adapter, lambda: "by profile, rotated" in mutual.proxy.clients)


@pytest.mark.parametrize("content", ["", "two\nlines", b"\xff\xfe"])
async def test_an_api_key_that_is_none_is_found_on_entering(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match="api_key_file"):
        await TemporalAdapter(TemporalSettings(api_key_file=file)).__aenter__()
