"""The order workflows inside an MCP server of your own: its tools and the workflows stand side by side.

`python library.py` serves http://127.0.0.1:8932/mcp; the worker must be up, as for the sidecar.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from mcp.server.mcpserver import MCPServer
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from shop import Shop

from mcp_workflows import Question, TaskSupport, Tool, attach

TOOLS = [
    Tool(
        name="fulfil_order",
        engine="orders",
        workflow="FulfilOrder",
        title="Fulfil an order",
        description="Reserve stock, charge the card and ship. Takes minutes to days.",
        input={"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        args=["{{order_id}}", False, "{{reason}}"],
        tasks=TaskSupport.REQUIRED,
        questions={"reason": Question(message="Why now?", schema={"type": "string"}, when_missing=True)},
    ),
]


def build(address: str, store: str, shop: Shop) -> MCPServer[None]:
    """An ordinary server with a tool of its own, and the workflows beside it."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncGenerator[None]:
        async with workflows:
            yield

    server: MCPServer[None] = MCPServer("acme-shop", version="1.0.0", lifespan=lifespan)

    @server.tool()
    def stock(article: str) -> int:  # pyright: ignore[reportUnusedFunction]  # the decorator took it
        """How many of an article are on the shelf."""
        pieces: int = shop.books()["stock"].get(article, 0)
        return pieces

    engine = TemporalAdapter(TemporalSettings(address=address, task_queue="orders"))
    workflows = attach(server, tools=TOOLS, engines={"orders": engine}, store=store)
    return server


def main() -> None:
    """Serve it over HTTP."""
    address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    server = build(address, "sqlite:///library.db", Shop.from_environment())
    server.run("streamable-http", port=8932)


if __name__ == "__main__":
    main()
