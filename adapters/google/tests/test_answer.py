"""Questions that come in over HTTP, and answers that go to their callbacks: once, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from google.cloud.workflows import executions_v1
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests.injecting import Fault, Injecting, Reply
from adapters.google.tests.stubbed import PLACE, opened, start, told
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.testing import MemoryNotes

pytestmark = pytest.mark.anyio

NUMBER: Final = "123456789012"
YES: Final = {"action": "accept", "content": {"ok": True}}
FORM: Final = {"type": "object", "properties": {"ok": {"type": "boolean"}}}


@dataclass(frozen=True, kw_only=True)
class Asking:
    """An execution that has asked, and where its answer goes."""

    stub: Injecting
    ref: Ref
    path: str

    @property
    def listing(self) -> str:
        """What is asked to list its callbacks."""
        return f"GET {self.path.rpartition('/')[0]}"

    def answers(self) -> list[Any]:
        return [asked.request for asked in self.stub.asked if asked.what == f"POST {self.path}"]

    def listed(self, *, payloads: int = 0, waiters: int = 1) -> None:
        """What the list of its callbacks says from now on."""
        execution = self.ref.handle
        callback = {"name": f"{execution}/callback/cb1", "method": "POST", "waiters": str(waiters)}
        rows = [{**callback, "availablePayloads": ["{}"] * payloads}]
        self.stub.reply(f"GET /v1/{execution}/callbacks", Reply(body={"callbacks": rows}))


def question(stub: Injecting, execution: str, path: str | None = None) -> Mapping[str, Any]:
    """What the execution posts to us."""
    url = f"http://{stub.address}{path or f'/v1/{execution}/callbacks/cb1'}"
    asked = {"callback_url": url, "message": "Ship it?", "requested_schema": FORM}
    return {**PLACE, "execution": execution.rpartition("/")[2], **asked}


async def ask(stub: Injecting, adapter: GoogleAdapter, *, project: str | None = None) -> Asking:
    """Start one, and let it ask; its callback is named with this project, or as its handle is."""
    handle = await adapter.start(start())
    _, ours, rest = handle.split("/", 2)
    path = f"/v1/projects/{project or ours}/{rest}/callbacks/cb1"
    assert await told(adapter, "input", question(stub, handle, path)) == {"kept": True}
    asking = Asking(stub=stub, ref=Ref(workflow="orders", handle=handle), path=path)
    asking.listed()
    return asking


async def open_questions(adapter: GoogleAdapter, asking: Asking) -> Mapping[str, Any]:
    return (await adapter.describe(asking.ref)).requests


async def test_a_question_is_seen_and_its_answer_goes_to_its_callback(stub: Injecting, adapter: GoogleAdapter) -> None:
    asking = await ask(stub, adapter)
    stub.reply(f"POST {asking.path}", Reply())
    seen = await adapter.describe(asking.ref)
    assert (seen.status, list(seen.requests)) == (Status.INPUT_REQUIRED, ["cb1"])
    await adapter.answer(asking.ref, {"cb1": YES, "unknown": YES})
    [(_, body)] = asking.answers()
    assert body == b'{"action":"accept","content":{"ok":true}}'
    assert not await open_questions(adapter, asking)


async def test_a_question_that_beats_our_own_create_reply_is_kept(stub: Injecting, adapter: GoogleAdapter) -> None:
    stub.tell("CreateExecution", Fault(code="UNAVAILABLE", work=True))
    with pytest.raises(EngineUnavailable):
        await adapter.start(start())
    [name] = stub.executions
    await told(adapter, "input", question(stub, name))
    handle = await adapter.find(start())
    assert handle == name
    assert set((await adapter.describe(Ref(workflow="orders", handle=name))).requests) == {"cb1"}


async def test_the_same_question_again_is_one_and_stays_answered(
    stub: Injecting, adapter: GoogleAdapter, notes: MemoryNotes
) -> None:
    asking = await ask(stub, adapter)
    stub.reply(f"POST {asking.path}", Reply())
    await told(adapter, "input", question(stub, asking.ref.handle))
    assert set(await open_questions(adapter, asking)) == {"cb1"}
    await adapter.answer(asking.ref, {"cb1": YES})
    await told(adapter, "input", question(stub, asking.ref.handle))
    assert not await open_questions(adapter, asking)
    await adapter.answer(asking.ref, {"cb1": YES})
    assert len(asking.answers()) == 1
    [until] = [until for key, until in notes.until.items() if key.endswith("/ask/cb1")]
    assert until - datetime.now(UTC) <= timedelta(days=1)  # it is soon forgotten, as every sweep reads it


async def test_a_question_that_cannot_be_kept_or_whose_execution_is_over_or_not_shown_is_refused(
    stub: Injecting, adapter: GoogleAdapter, notes: MemoryNotes
) -> None:
    nobody = "projects/acme-shop/locations/europe-west1/workflows/orders/executions/nobody"
    with pytest.raises(EngineUnavailable):  # or whoever may call could fill the store
        await told(adapter, "input", question(stub, nobody))
    assert not notes.until
    ended = await adapter.start(start())
    stub.executions[ended].state = executions_v1.Execution.State.CANCELLED
    with pytest.raises(EngineRefused, match="has ended"):
        await told(adapter, "input", question(stub, ended))
    notes.available = False
    with pytest.raises(EngineUnavailable):
        await ask(stub, adapter)


@pytest.mark.parametrize("lost", [Reply(status=503), Reply(hang=True)], ids=["503", "hang"])
async def test_an_answer_that_may_not_have_arrived_stays_open_and_is_sent_again_when_it_has_not(
    stub: Injecting, notes: MemoryNotes, lost: Reply
) -> None:
    async with opened(stub, notes, timeout_seconds=1 if lost.hang else 8) as adapter:
        asking = await ask(stub, adapter)
        stub.reply(f"POST {asking.path}", lost, Reply())
        with pytest.raises(EngineUnavailable):
            await adapter.answer(asking.ref, {"cb1": YES})
        assert set(await open_questions(adapter, asking)) == {"cb1"}
        await adapter.answer(asking.ref, {"cb1": YES})
        assert len(asking.answers()) == 2
        lists = stub.count(asking.listing)
        assert not await open_questions(adapter, asking)
        assert stub.count(asking.listing) == lists  # a look needs no list of callbacks any more


@pytest.mark.parametrize(("lost", "arrived"), [(Reply(cut=True), "held"), (Reply(status=429), "gone")], ids=str)
async def test_an_answer_that_has_arrived_though_its_reply_was_lost_is_not_sent_again(
    stub: Injecting, adapter: GoogleAdapter, lost: Reply, arrived: str
) -> None:
    asking = await ask(stub, adapter)
    stub.reply(f"POST {asking.path}", lost)
    if arrived == "held":
        asking.listed(payloads=1)
    else:
        stub.reply(f"GET /v1/{asking.ref.handle}/callbacks", Reply(body={}))
    await adapter.answer(asking.ref, {"cb1": YES})
    assert not await open_questions(adapter, asking)
    await adapter.answer(asking.ref, {"cb1": YES})
    assert len(asking.answers()) == 1


async def test_an_answer_that_was_taken_before_we_could_ask_is_not_asked_for_again(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    asking = await ask(stub, adapter)
    stub.reply(f"POST {asking.path}", Reply(cut=True), Reply())
    asking.listed(waiters=0)  # a callback may stay in the list for as long as its execution runs
    with pytest.raises(EngineUnavailable):
        await adapter.answer(asking.ref, {"cb1": YES})
    assert not await open_questions(adapter, asking)
    assert not await adapter.describe_many([asking.ref])
    await adapter.answer(asking.ref, {"cb1": YES})
    assert len(asking.answers()) == 1


async def test_an_answer_is_not_sent_again_before_it_is_known_that_it_has_not_arrived(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    asking = await ask(stub, adapter)
    stub.reply(f"POST {asking.path}", Reply(cut=True), Reply())
    stub.reply(f"GET /v1/{asking.ref.handle}/callbacks", Reply(status=403, body={}))
    for _ in range(2):
        with pytest.raises((EngineUnavailable, EngineRefused)):
            await adapter.answer(asking.ref, {"cb1": YES})
    assert len(asking.answers()) == 1


async def test_a_callback_that_is_over_closes_its_question(stub: Injecting, adapter: GoogleAdapter) -> None:
    asking = await ask(stub, adapter)
    stub.reply(f"POST {asking.path}", Reply(status=404, body={}))
    await adapter.answer(asking.ref, {"cb1": YES})
    assert not await open_questions(adapter, asking)


async def test_the_token_goes_into_no_other_project(stub: Injecting, adapter: GoogleAdapter) -> None:
    asking = await ask(stub, adapter, project="evil-project")
    with pytest.raises(EngineRefused, match="another project"):
        await adapter.answer(asking.ref, {"cb1": YES})
    assert not asking.answers()


async def test_the_number_of_our_own_project_is_our_project(stub: Injecting, adapter: GoogleAdapter) -> None:
    """Google shows the execution under both."""
    asking = await ask(stub, adapter, project=NUMBER)
    name = asking.ref.handle
    numbered = "/".join(["projects", NUMBER, *name.split("/")[2:]])
    stub.executions[numbered] = executions_v1.Execution(stub.executions[name], name=numbered)
    stub.reply(f"POST {asking.path}", Reply())
    await adapter.answer(asking.ref, {"cb1": YES})
    assert len(asking.answers()) == 1
