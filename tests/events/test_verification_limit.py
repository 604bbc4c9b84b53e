"""The limit of new endpoints of one host, which keeps callers from having others flooded."""

from __future__ import annotations

from pathlib import Path

from mcp_workflows.events.service import VERIFICATIONS_PER_MINUTE
from mcp_workflows.wire.events import Code
from tests.events.test_webhooks import served, wanted
from tests.support.endpoint import endpoint
from tests.support.served import Reply


async def test_too_many_new_endpoints_of_one_host_are_refused_with_the_limit_and_when_to_ask_again(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (_, alice), endpoint() as receiver:
        base, replies = receiver.url, list[Reply]()
        for number in range(VERIFICATIONS_PER_MINUTE + 1):
            receiver.url = f"{base}/{number}"
            replies.append(await alice.send("events/subscribe", wanted(receiver)))
    assert all("result" in reply.body for reply in replies[:-1])
    error = replies[-1].error
    assert error["code"] == Code.EXHAUSTED
    assert error["data"]["limit"] == "verificationsPerMinute"
    assert 0 < error["data"]["retryAfterMs"] <= 60_000
    assert len(receiver.got) == VERIFICATIONS_PER_MINUTE
