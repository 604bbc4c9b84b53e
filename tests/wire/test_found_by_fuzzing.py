"""The smallest inputs of what fuzzing has found; each once broke something."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mcp_workflows.access.authn.identity import ClaimsReader
from mcp_workflows.errors import RequestError
from mcp_workflows.wire import v2025_11_25 as in_core
from mcp_workflows.wire import v2026_07_28 as modern
from mcp_workflows.wire.params import task_id_of
from tests.support.served import peer, site

pytestmark = pytest.mark.anyio

TAKES_TASKS = modern.Client(takes_tasks=True, takes_questions=True)


def test_half_a_character_is_no_task_id() -> None:
    for read in (
        lambda: task_id_of({"taskId": "\ud800"}),
        lambda: in_core.parse_list({"cursor": "\ud800"}),
        lambda: modern.parse_call({"name": "\ud800"}, TAKES_TASKS),
        lambda: modern.parse_task_request("tasks/get", {"taskId": "\ud800"}, TAKES_TASKS),
        lambda: modern.parse_listen({"notifications": {"taskIds": ["\ud800"]}}, TAKES_TASKS),
    ):
        with pytest.raises(RequestError, match="half a surrogate pair"):
            read()


@pytest.mark.parametrize(
    "notifications", [{"taskIds": [], "toolsListChanged": 7}, {"taskIds": [], "promptsListChanged": {}}]
)
async def test_a_subscription_that_is_wrong_is_refused_as_what_it_is(
    tmp_path: Path, notifications: dict[str, object]
) -> None:
    async with site(store=f"sqlite:///{tmp_path}/tasks.db") as here, peer(here.url) as client:
        reply = await client.send("subscriptions/listen", {"notifications": notifications})
        assert (reply.code, reply.error["message"]) == (-32602, "Invalid request parameters")


@pytest.mark.parametrize(("exp", "over"), [(10**400, False), (-(10**400), True), (float("nan"), True), (1e300, False)])
def test_a_time_beyond_all_calendars_is_late_or_long_ago(exp: float, *, over: bool) -> None:
    reading = ClaimsReader(issuer="https://issuer.example", audience=["workflows"])
    found = reading.identity({"aud": "workflows", "sub": "alice", "exp": exp})
    assert found.expires is not None
    assert (found.expires < datetime.now(UTC)) == over
