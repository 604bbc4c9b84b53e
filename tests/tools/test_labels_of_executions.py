"""Labels and claims: what of the caller reaches the engine, what the task keeps, and what is said if it is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows import Tool
from mcp_workflows.access import Principal
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.adapter.memory import MemoryAdapter
from mcp_workflows.store.protocol import open_store
from mcp_workflows.wire.commands import Finished
from tests.tasks import test_idempotency as scenery

pytestmark = pytest.mark.anyio

CLAIMS: Mapping[str, Any] = {"email": "ada@example.com", "team": "shop", "private": "never kept", "n": 7, "none": None}
ADA = Principal(id='["web","https://login","ada"]', issuer="https://login", subject="ada", client="web", claims=CLAIMS)
NOBODY = Principal(id="local")
TELL = {"email": "{{principal.claims.email}}", "desk": "{{principal.claims.desk}}", "order": "{{a}}"}
TOOLS = [
    Tool(name="telling", engine="memory", workflow="forever", labels=TELL),
    Tool(name="gapped", engine="memory", workflow="forever", labels={"who": "x-{{principal.claims.email}}"}),
    Tool(name="named", engine="memory", workflow="forever", options={"id": "{{principal.claims.team}}-{{a}}"}),
    Tool(
        name="mapped",
        engine="memory",
        workflow="forever",
        args=[{"by": "{{principal.claims.email}}", "n": "{{principal.claims.n}}", "scopes": "{{principal.scopes}}"}],
    ),
    Tool(
        name="nested",
        engine="memory",
        workflow="forever",
        args=[{"roles": "{{principal.claims.realm_access.roles}}", "none": "{{principal.claims.realm_access.team}}"}],
        labels={
            "role": "{{principal.claims.realm_access.roles[0]}}",
            "clerk": '{{principal.claims.resource_access."shop.eu".roles[0]}}',
            "desk": '{{principal.claims."https://acme.example/desk"}}',
        },
        options={"id": "{{principal.claims.realm_access.roles[1]}}-{{a}}"},
    ),
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Start]:
    """What the engine was told to start."""
    seen: list[Start] = []
    start = MemoryAdapter.start

    async def noting(self: MemoryAdapter, order: Start) -> str:
        seen.append(order)
        return await start(self, order)

    monkeypatch.setattr(MemoryAdapter, "start", noting)
    return seen


async def test_the_engine_is_told_whose_it_is_and_what_the_tool_says_of_them(
    tmp_path: Path, started: list[Start]
) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        await here.task("telling", ADA)
        await here.task("telling", NOBODY)
    who = {"owner": "ada", "principal": ADA.id, "issuer": "https://login", "client": "web"}
    known = {"tool": "telling", **who}
    assert started[0].context == {**known, "email": "ada@example.com", "order": "1"}
    assert started[1].context == {"tool": "telling", "owner": "local", "order": "1"}


async def test_claims_are_arguments_where_a_template_names_them(tmp_path: Path, started: list[Start]) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        await here.task("mapped", ADA)
        await here.task("named", ADA)
    assert started[0].arguments == [{"by": "ada@example.com", "n": 7, "scopes": []}]
    assert started[1].options == {"id": "shop-1"}


@pytest.mark.parametrize(
    ("tool", "claim"), [("gapped", "email"), ("named", "team"), ("nested", r"realm_access.roles\[1\]")]
)
async def test_a_claim_that_a_text_is_made_of_and_that_is_missing_starts_nothing(
    tmp_path: Path, started: list[Start], tool: str, claim: str
) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        outcome = await here.outcome(tool, NOBODY)
    assert isinstance(outcome, Finished)
    text = outcome.result["content"][0]["text"]
    assert re.search(rf"principal\.claims\.{claim} must be", text)
    assert "nothing was started" in text
    assert started == []


async def test_no_claim_is_kept_but_where_a_template_put_it(tmp_path: Path) -> None:
    async with scenery.replica(tmp_path, tools=TOOLS) as here:
        for tool in ("telling", "named", "mapped"):
            await here.task(tool, ADA)
        assert all(isinstance(ref, Ref | str) for ref in here.engine.handles)
    async with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        rows = await store.list_all()
    assert len(rows) == 3
    assert "never kept" not in repr(rows)
    assert ["ada@example.com" in repr(row) for row in sorted(rows, key=lambda row: row.tool)] == [False, False, True]
