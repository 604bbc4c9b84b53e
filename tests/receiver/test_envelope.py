"""What is around a result says who gave it, and belongs to who got it."""

from __future__ import annotations

from typing import Any, cast

import mcp_types as types
import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from mcp_workflows.receiver.context import Context
from mcp_workflows.receiver.middleware import AnyServer, Envelope
from mcp_workflows.wire import v2026_07_28

ICONS = [types.Icon(src="https://shop.example/icon.png")]
SERVERS: dict[str, AnyServer] = {
    "lowlevel": Server("shop", version="1", icons=ICONS),
    "mcpserver": MCPServer("shop", version="1", icons=ICONS),
    "plain": Server("shop", version="1"),
}
STAMP = types.SERVER_INFO_META_KEY


def request() -> Context:
    nobody = cast("Any", None)  # Any: nothing here asks for the session
    return ServerRequestContext(
        session=nobody,
        lifespan_context=None,
        protocol_version=v2026_07_28.PROTOCOL_VERSION,
        method="tasks/get",
    )


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_what_somebody_does_to_a_result_shows_in_no_other_result(server: AnyServer) -> None:
    envelope = Envelope(server)
    first = envelope.around(request(), {"_meta": {"own": 1}})["_meta"]
    assert (first[STAMP]["name"], first[STAMP]["version"], first["own"]) == ("shop", "1", 1)
    before = repr(first[STAMP])
    first[STAMP]["name"] = "another"
    for icon in first[STAMP].get("icons", []):
        icon["src"] = "https://another.example"
    assert repr(envelope.around(request(), {})["_meta"][STAMP]) == before
