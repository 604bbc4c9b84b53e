"""The page of the task view as a resource of MCP Apps, and its address.

Source: MCP Apps, 2026-01-26 (`io.modelcontextprotocol/ui`). The SDK's own `Apps` serves only functions as tools, and
shows `_meta.ui` to clients that did not declare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID

from mcp_workflows.adapter import JSON
from mcp_workflows.wire.commands import Document
from mcp_workflows.wire.params import Params, object_of

_FOLDER: Final = "ui://mcp-workflows/run/"
_TTL_MS: Final = 3_600_000  # after an upgrade of one replica, another may serve its own page at the new address


@cache
def page_text() -> str:
    """Return the page: one HTML document that loads no other resource."""
    return Path(__file__).with_name("run.html").read_text(encoding="utf-8")


@cache
def page_uri() -> str:
    """Return the address of the page, which changes with its content, as hosts may cache a page by its address."""
    return f"{_FOLDER}{sha256(page_text().encode()).hexdigest()[:16]}.html"


def page_at(uri: object) -> Document | None:
    """Return the page for an address of the run card; None for any other resource.

    The address of an older version returns the current page, too: a chat from before an upgrade uses that address, and
    only the current page fits the current tools.
    """
    if not isinstance(uri, str) or not (uri.startswith(_FOLDER) and uri.endswith(".html")):
        return None
    meta: Mapping[str, JSON] = {"ui": {"prefersBorder": True}}  # no domains: the page needs no network
    return Document(uri=uri, mime_type=APP_MIME_TYPE, text=page_text(), meta=meta, ttl_ms=_TTL_MS)


def with_apps(discovered: Params) -> dict[str, Any]:
    """Return the result of `server/discover` with MCP Apps advertised."""
    capabilities = object_of(discovered.get("capabilities"))
    extensions: dict[str, JSON] = {EXTENSION_ID: {}, **object_of(capabilities.get("extensions"))}
    return {**discovered, "capabilities": {**capabilities, "extensions": extensions}}
