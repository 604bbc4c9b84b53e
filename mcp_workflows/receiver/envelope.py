"""The envelope of a result on the wire: results as dicts, and the server's name on ours."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any, TypeAlias

import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

from mcp_workflows.adapter import JSON
from mcp_workflows.receiver.context import Context, is_modern

AnyServer: TypeAlias = Server[Any] | MCPServer[Any]  # Any: the lifespan is the user's


def plain(result: HandlerResult) -> dict[str, Any]:
    """Return a handler's result as a dict for the wire."""
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})


class Envelope:
    """The envelope of results that do not pass through the SDK's own."""

    def __init__(self, server: AnyServer) -> None:
        self._server = server

    def around(self, ctx: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result with the server's information in 2026-07-28, and unchanged in older revisions."""
        if not is_modern(ctx):
            return result
        meta: Mapping[str, JSON] = result.get("_meta", {})
        return {**result, "_meta": {types.SERVER_INFO_META_KEY: self._stamp(), **meta}}

    def _stamp(self) -> Mapping[str, JSON]:
        """Return a copy of the server's information, as callers may add to it."""
        info = self._server_info
        return deepcopy(info) if "icons" in info else dict(info)  # no other value is nested

    @cached_property
    def _server_info(self) -> Mapping[str, JSON]:
        """The server's information, in the SDK's form; it never changes, so it is rendered once."""
        server = self._server
        if isinstance(server, Server):
            return server.server_info_stamp
        found = types.Implementation(
            name=server.name,
            version=server.version or "",
            title=server.title,
            description=server.description,
            website_url=server.website_url,
            icons=server.icons,
        )
        return found.model_dump(by_alias=True, mode="json", exclude_none=True)
