"""Whose task it is: everybody who may come with an id, times every way to use one, in both versions of the protocol.

The tokens are those of real OpenID providers: see `tests.support.oidc`. The table is what is expected, all of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

import pytest

from tests.support import ownership
from tests.support.oidc import Providers
from tests.support.ownership import Deed, Town, everybody, lister, of_card, plain, request, table, task_tool, town, word

pytestmark = pytest.mark.anyio

ANSWER: Final = {"question": {"action": "accept", "content": {"answer": "yes"}}}

TABLE: Final = """
deed                | version    | owner   | again   | person    | client    | issuer    | robot     | nobody | revoked | expired | elapsed
tasks/get           | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/update        | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/cancel        | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/result        | 2026-07-28 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
tasks/list          | 2026-07-28 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
subscriptions/listen| 2026-07-28 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
resources/read      | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tools/call again    | 2026-07-28 | yes     | yes     | refused   | refused   | refused   | refused   | 401    | 401     | 401     | 401
task_status         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_wait           | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_answer         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_cancel         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
my_tasks            | 2026-07-28 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
open_questions      | 2026-07-28 | none    | none    | none      | none      | none      | none      | 401    | 401     | 401     | 401
view: task_status   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_answer   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_cancel   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_find           | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/get           | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/update        | 2025-11-25 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
tasks/cancel        | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/result        | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/list          | 2025-11-25 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
subscriptions/listen| 2025-11-25 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
resources/read      | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_status         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_wait           | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_answer         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_cancel         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
my_tasks            | 2025-11-25 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
open_questions      | 2025-11-25 | none    | none    | none      | none      | none      | none      | 401    | 401     | 401     | 401
view: task_status   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_answer   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_cancel   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_find           | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll         | 2026-07-28 | cursor  | cursor  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll again   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll of tool | 2026-07-28 | cursor  | cursor  | cursor    | cursor    | cursor    | cursor    | 401    | 401     | 401     | 401
events/poll question| 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll progress| 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/stream       | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/subscribe    | 2026-07-28 | -32015  | -32015  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/unsubscribe  | 2026-07-28 | -32011  | -32011  | -32011    | -32011    | -32011    | -32011    | 401    | 401     | 401     | 401
events/poll         | 2025-11-25 | cursor  | cursor  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll again   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll of tool | 2025-11-25 | cursor  | cursor  | cursor    | cursor    | cursor    | cursor    | 401    | 401     | 401     | 401
events/poll question| 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll progress| 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/stream       | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/subscribe    | 2025-11-25 | -32015  | -32015  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/unsubscribe  | 2025-11-25 | -32011  | -32011  | -32011    | -32011    | -32011    | -32011    | 401    | 401     | 401     | 401
"""  # noqa: E501  # a line a row
"""again: the same user and client with another token, in a session of its own; person: another user at that client;
client: the user at another client; issuer: the user at that client, by another issuer; robot: the client for itself."""

DEEDS: Final[Mapping[str, tuple[str, Deed]]] = {  # with a task of this tool; `call`: with the state of a call
    "tasks/get": ("echo", request("tasks/get")),
    "tasks/update": ("ask", request("tasks/update", inputResponses=ANSWER)),
    "tasks/cancel": ("ask", request("tasks/cancel")),
    "tasks/result": ("echo", request("tasks/result")),
    "tasks/list": ("echo", ownership.lists),
    "subscriptions/listen": ("ask", ownership.listens),
    "resources/read": ("echo", ownership.reads),
    "tools/call again": ("call", ownership.retries),
    "task_status": ("echo", task_tool("task_status")),
    "task_wait": ("echo", task_tool("task_wait", seconds=1)),
    "task_answer": ("ask", task_tool("task_answer", content={"answer": "yes"})),
    "task_cancel": ("ask", task_tool("task_cancel")),
    "my_tasks": ("echo", lister("my_tasks")),
    "open_questions": ("approve", lister("open_questions")),
    "view: task_status": ("echo", of_card("task_status")),
    "view: task_answer": ("ask", of_card("task_answer", content={"answer": "yes"})),
    "view: task_cancel": ("ask", of_card("task_cancel")),
    "task_find": ("echo", ownership.finds),
    "events/poll": ("echo", ownership.event("task.ended")),
    "events/poll again": ("echo", ownership.event("task.ended", again=True)),
    "events/poll of tool": ("echo", ownership.event("task.ended", again=True, tool="echo")),
    "events/poll question": ("ask", ownership.event("task.input_required", again=True)),
    "events/poll progress": ("ask", ownership.event("task.progress", again=True)),
    "events/stream": ("echo", ownership.streams),
    "events/subscribe": ("echo", ownership.subscribes),
    "events/unsubscribe": ("echo", ownership.unsubscribes),
}
CHANGING: Final = frozenset({"tasks/update", "tasks/cancel", "task_answer", "task_cancel", "tools/call again"}) | {
    "view: task_answer",
    "view: task_cancel",
}
OF_CLIENTS: Final = frozenset({"tools/call again"})  # what goes on in one client, whoever the task belongs to
COLUMNS, ROWS = table(TABLE)


@pytest.fixture(scope="module", params=["subject", pytest.param("client", marks=pytest.mark.slow)])
async def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, providers: Providers
) -> AsyncGenerator[Town]:
    """The sidecar with everybody at it, by `server.auth.owner`."""
    async with town(tmp_path_factory.mktemp("town"), providers, request.param) as found, everybody(found):
        yield found


def wanted_of(expected: Mapping[str, str], deed: str, owner: str) -> Mapping[str, str]:
    """By subject, the person's other client is the owner too."""
    if owner == "client" or deed in OF_CLIENTS:
        return expected
    return {**expected, "client": expected["owner"]}


@pytest.mark.parametrize(("deed", "era", "expected"), ROWS, ids=[f"{deed}-{era}" for deed, era, _ in ROWS])
async def test_a_task_is_its_owners_alone(place: Town, deed: str, era: str, expected: Mapping[str, str]) -> None:
    wanted = wanted_of(expected, deed, place.owns)
    tool, do = DEEDS[deed]
    seen: dict[str, str] = {}
    shared = await place.round() if tool == "call" else await place.task(tool)
    for name in sorted(COLUMNS, key=lambda name: wanted[name] == "yes"):  # strangers first: nothing may come of it
        mine = shared
        if deed in CHANGING and wanted[name] == "yes":
            mine = await place.round() if tool == "call" else await place.task(tool)
        reply = await do(place.callers[name], era, mine)
        seen[name] = word(reply, mine)
        if seen[name] in {"not found", "none"} and tool != "call":
            unknown = await do(place.callers[name], era, "f" * len(mine))
            assert plain(unknown) == plain(reply), "the same text as for a task that is not there"
    assert {name: seen[name] for name in COLUMNS} == dict(wanted)
    if tool == "ask":
        assert (await place.owner.modern.get(shared))["status"] == "input_required", "nobody has changed it"
