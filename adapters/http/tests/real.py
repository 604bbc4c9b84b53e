"""The subject of the contract for a preset on a real engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from mcp_workflows_http import HttpAdapter, HttpSettings

from mcp_workflows.adapter import Adapter
from mcp_workflows.testing import Subject, lossy_proxy


def adapter_of(**settings: Any) -> HttpAdapter:
    return HttpAdapter(HttpSettings.model_validate(settings))


@asynccontextmanager
async def subject_of(url: str, roles: dict[str, Any], **settings: Any) -> AsyncGenerator[Subject]:
    async with lossy_proxy(int(urlsplit(url).port or 0)) as lossy:

        @asynccontextmanager
        async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
            async with lossy.losing():
                yield

        yield Subject(
            new_adapter=lambda: adapter_of(url=f"http://127.0.0.1:{lossy.port}", **settings),
            unreachable=lambda: adapter_of(url="http://127.0.0.1:1", auth={"bearer": "s3cret"}, **settings),
            secret="s3cret",
            losing_replies=losing_replies,
            timeout=150,  # these engines start processes; Toil may take 60 s to say that a run is cancelled
            **roles,
        )
