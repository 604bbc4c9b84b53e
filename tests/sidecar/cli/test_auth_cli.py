"""Who is let in, on the command line: what is refused, what is warned of, what is checked, what is handed out."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mcp_workflows.access.authn.verifier import sha256_of
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.address import Address
from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.checks import ItemKind, ItemState, check
from mcp_workflows.sidecar.cli.app import main
from mcp_workflows.sidecar.cli.serve import refuse_remote_callers, warn_of_remote_callers
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.reload import Reloader
from tests.support.configured import written
from tests.support.identified import GOOD, MEMORY, TOOLS, jwks
from tests.support.served import Peer, peer, serving
from tests.support.sidecars import sidecar
from tests.support.tokens import ISSUER, KeyServer

WORLD, HERE = Address(host="0.0.0.0", port=8931), Address(host="127.0.0.1", port=8931)
BY_HAND: Mapping[str, Any] = {"auth": {"tokens": [{"name": "ci", "sha256": sha256_of("secret")}]}}
BY_ISSUER: Mapping[str, Any] = {"auth": {"issuers": [{"issuer": ISSUER}]}}
PUBLIC = {"public_url": "https://workflows.example.com"}


def config_of(folder: Path, server: Mapping[str, Any]) -> Config:
    return load_config(written(folder, "memory", MEMORY, TOOLS, server), {})


@pytest.mark.parametrize(
    ("http", "server", "unsafe", "complaint"),
    [
        (WORLD, {}, False, "callers are not authenticated"),
        (WORLD, {}, True, None),
        (WORLD, BY_HAND, False, None),
        (WORLD, BY_ISSUER, False, "set server.public_url"),
        (WORLD, {**BY_ISSUER, **PUBLIC}, False, None),
        (WORLD, BY_HAND, True, "remove one"),
        (HERE, BY_HAND, True, "remove one"),
        (HERE, {}, False, None),
        (HERE, BY_ISSUER, False, None),
        (None, {}, False, None),
        (None, BY_ISSUER, False, None),
    ],
)
def test_other_machines_are_served_only_where_somebody_asks(
    tmp_path: Path, http: Address | None, server: Mapping[str, Any], unsafe: bool, complaint: str | None
) -> None:
    config = config_of(tmp_path, server)
    if complaint is None:
        refuse_remote_callers(http, config, unsafe)
        return
    with pytest.raises(ConfigError, match=complaint):
        refuse_remote_callers(http, config, unsafe)


@pytest.mark.parametrize(
    ("http", "server", "warning"),
    [
        (WORLD, {}, "CALLERS ARE NOT AUTHENTICATED"),
        (WORLD, BY_HAND, "unencrypted"),
        (WORLD, {**BY_HAND, **PUBLIC}, None),
        (HERE, {}, None),
        (None, {}, None),
    ],
)
def test_what_everybody_can_do_is_said_loudly(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    http: Address | None,
    server: Mapping[str, Any],
    warning: str | None,
) -> None:
    warn_of_remote_callers(http, config_of(tmp_path, server))
    assert [warning in each.getMessage() for each in caplog.records if warning] == ([True] if warning else [])
    assert all(each.levelno == logging.WARNING for each in caplog.records)


def test_a_token_is_printed_once_with_what_goes_into_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mcp-workflows", "token", "ci", "--scope", "orders:write", "--subject", "alice"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    token = printed.out.strip()
    assert ended.value.code in {0, None}
    assert len(token) > 40
    assert token not in printed.err
    (tmp_path / "part.yaml").write_text(printed.err[printed.err.index("server:") :])
    entry = json.loads(printed.err.rpartition("- ")[2])
    assert entry == {"name": "ci", "sha256": sha256_of(token), "subject": "alice", "scopes": ["orders:write"]}
    assert config_of(tmp_path, {"auth": {"tokens": [entry]}}).server.auth is not None


DOCUMENT = Path(__file__).parents[3] / "docs" / "secure" / "authentication.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
RECIPES = [block for block in BLOCKS if "cors:" not in block]


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_in_the_documents_can_be_used(tmp_path: Path, recipe: str) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(
        f"{recipe}engines: {{memory: {{adapter: memory}}}}\ntools: {{it: {{engine: memory, workflow: echo}}}}\n"
    )
    auth = load_config(path, {"INTROSPECTION_SECRET": "s3cret"}).server.auth
    assert auth is not None


@pytest.mark.anyio
async def test_check_says_whether_tokens_could_be_verified_now(tmp_path: Path, key_server: KeyServer) -> None:
    key_server.asked["check"] = lambda form, _: {"active": False}
    asked = {"issuer": "https://two.example", "client_id": "us", "client_secret": "s"}
    auth = {
        "issuers": [jwks(key_server, "check-keys"), {"issuer": f"{key_server.address}/nobody"}],
        "introspection": [
            {**asked, "endpoint": f"{key_server.address}/check", "prefix": "a"},
            {**asked, "endpoint": f"{key_server.address}/gone", "prefix": "b"},
        ],
    }
    found = await check(config_of(tmp_path, {"auth": auth}))
    rows = {row.name: row for row in found.rows if row.kind is ItemKind.ISSUER}
    states = {name.removeprefix(key_server.address): row.state for name, row in rows.items()}
    assert states == {
        ISSUER: ItemState.OK,
        "/nobody": ItemState.PROBLEM,
        "/check": ItemState.OK,
        "/gone": ItemState.PROBLEM,
    }
    told = rows[f"{key_server.address}/nobody"].finding
    assert told is not None
    assert "/.well-known/oauth-authorization-server/nobody: it answers 500" in told.text
    assert len(found.as_json()["issuers"]) == 4


@pytest.mark.anyio
@pytest.mark.parametrize("missing", ["", "token_endpoint"])
async def test_check_says_whether_people_could_log_in_to_the_pages(
    tmp_path: Path, key_server: KeyServer, missing: str
) -> None:
    issuer = f"{key_server.address}/pages{missing}"
    known = {"issuer": issuer, "authorization_endpoint": f"{issuer}/a", "token_endpoint": f"{issuer}/t"}
    metadata = {name: value for name, value in known.items() if name != missing}
    key_server.raw[f"pages{missing}/.well-known/openid-configuration"] = json.dumps(metadata).encode()
    auth = {"issuers": [{"issuer": issuer, "jwks_url": key_server.publish("pages-keys", GOOD)}]}
    web = {"issuer": issuer, "client_id": "us"}
    found = await check(config_of(tmp_path, {"auth": auth, "web": web, "public_url": "https://x.example"}))
    [row] = [row for row in found.rows if row.name == "pages"]
    assert row.finding is not None
    if missing:
        assert row.state is ItemState.PROBLEM
        assert "has no token_endpoint: nobody can log in there" in row.finding.text
    else:
        assert row.state is ItemState.OK
        assert "https://x.example/login/callback must be registered for us" in row.finding.text


@pytest.mark.anyio
async def test_tokens_and_issuers_in_a_saved_file_take_effect_and_the_rest_is_told_to_need_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = config_of(tmp_path, BY_HAND)
    found, reloading = build(config), Reloader(tmp_path / "workflows.yaml", config, {})
    async with serving(http_app(found, config, "127.0.0.1", 0)) as url, peer(url, token="secret") as client:
        assert await status_of(client) == 200
        other = {"tokens": [{"name": "ci", "sha256": sha256_of("other")}]}
        config_of(tmp_path, {"auth": other})
        await reloading.reload(found)
        assert await status_of(client) == 401
        client.token = "other"
        assert await status_of(client) == 200
        assert "restart" not in caplog.text
        config_of(tmp_path, {"auth": {**other, "required_scopes": ["more"]}})
        await reloading.reload(found)
        assert await status_of(client) == 200
        assert "server has changed: restart the server to apply this" in caplog.text
        config_of(tmp_path, {})
        await reloading.reload(found)
        assert await status_of(client) == 200


async def status_of(client: Peer) -> int:
    async with client.response("tools/list") as response:
        await response.aread()
        return response.status_code


@pytest.mark.slow
def test_a_sidecar_believes_the_socket_and_no_header_of_where_it_comes_from(tmp_path: Path) -> None:
    auth = {**BY_HAND["auth"], "proxy": {"peers": ["10.0.0.7"]}}
    path = written(tmp_path, "memory", MEMORY, TOOLS, {"auth": auth})
    with sidecar(path) as running, httpx2.Client() as http:
        sent = {"accept": "application/json, text/event-stream"}
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        forged = {**sent, "x-forwarded-user": "alice", "x-forwarded-for": "10.0.0.7"}
        assert http.post(running.url, json=body, headers=forged).status_code == 401
        assert http.post(running.url, json=body, headers={**sent, "authorization": "Bearer secret"}).status_code == 200
        assert "127.0.0.1 is not one of server.auth.proxy.peers" in running.log.read_text()
