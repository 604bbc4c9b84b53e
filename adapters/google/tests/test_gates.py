"""Gates on the local engine, through the adapter: workflows that were not written for us."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import httpx2
import pytest
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests import scene
from mcp_workflows.adapter import Execution, Gate, InputRequest, Ref, Start, Status
from tests.support.google_engine import GoogleEngine

pytestmark = pytest.mark.anyio

QUESTION: Final = InputRequest(method="elicitation/create", params={"mode": "form", "message": "Approve?"})
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}, "send": {"body": {"approved": True}}}
NO: Final[Mapping[str, Any]] = {"action": "decline", "send": {"body": {"approved": False}}}

ONE: Final = """
main:
  params: [args]
  steps:
    - prepare:
        call: events.create_callback_endpoint
        args: {http_callback_method: POST}
        result: callback
    - wait_for_approval:
        call: events.await_callback
        args: {callback: "${callback}", timeout: 600}
        result: request
    - done:
        return: ${request.http_request.body}
"""
TWO: Final = """
main:
  params: [args]
  steps:
    - prepare:
        assign:
          - sales: null
          - legal: null
    - both:
        parallel:
          shared: [sales, legal]
          branches:
            - of_sales:
                steps:
                  - open_sales:
                      call: events.create_callback_endpoint
                      args: {http_callback_method: POST}
                      result: for_sales
                  - wait_for_sales:
                      call: events.await_callback
                      args: {callback: "${for_sales}", timeout: 600}
                      result: sales
            - of_legal:
                steps:
                  - open_legal:
                      call: events.create_callback_endpoint
                      args: {http_callback_method: METHOD}
                      result: for_legal
                  - wait_for_legal:
                      call: events.await_callback
                      args: {callback: "${for_legal}", timeout: 600}
                      result: legal
    - done:
        return: ["${sales.http_request.body}", "${legal.http_request.body}"]
"""


def gate(when: Any) -> Gate:
    return Gate(when=when, request=QUESTION, send={"body": {"approved": "{{answer.ok}}"}}, decline=NO["send"])


@pytest.fixture
async def adapter(google_engine: GoogleEngine) -> AsyncIterator[GoogleAdapter]:
    """In front of the local engine."""
    async with scene.adapter(google_engine) as found:
        yield found


class Watched:
    """One execution behind gates, as a task sees it."""

    def __init__(self, adapter: GoogleAdapter, ref: Ref) -> None:
        self.adapter = adapter
        self.ref = ref

    async def until(self, wanted: Callable[[Execution], object]) -> Execution:
        with anyio.fail_after(15):
            while not wanted(seen := await self.adapter.describe(self.ref)):
                await anyio.sleep(0.01)
        return seen

    async def asked(self, gate: str) -> str:
        found = await self.until(lambda seen: gate in {each.gate for each in seen.requests.values()})
        [key] = [key for key, each in found.requests.items() if each.gate == gate]
        return key


async def begin(engine: GoogleEngine, adapter: GoogleAdapter, source: str, **gates: Gate) -> Watched:
    workflow = engine.deploy("gated", source)
    start = Start(workflow=workflow, arguments=[{}], key=uuid.uuid4().hex, created=datetime.now(UTC))
    return Watched(adapter, Ref(workflow=workflow, handle=await adapter.start(start), gates=gates))


async def send_elsewhere(engine: GoogleEngine, handle: str, body: Any) -> None:
    """As the one does who has the mail with the URL."""
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer somebody"}) as client:
        [found] = (await client.get(f"{engine.url}/v1/{handle}/callbacks")).json()["callbacks"]
        url = f"{engine.url}/v1/{found['name'].replace('/callback/', '/callbacks/')}"
        assert (await client.post(url, json=body)).is_success


@pytest.mark.parametrize("response", [YES, NO])
async def test_an_answer_at_a_gate_goes_to_its_step(
    google_engine: GoogleEngine, adapter: GoogleAdapter, response: Mapping[str, Any]
) -> None:
    it = await begin(google_engine, adapter, ONE, approval=gate("wait_for_approval"))
    key = await it.asked("approval")
    seen = await adapter.describe(it.ref)
    assert (seen.status, seen.message) == (Status.INPUT_REQUIRED, "wait_for_approval")
    assert seen.requests[key].params == QUESTION.params
    await adapter.answer(it.ref, {key: response})
    done = await it.until(lambda seen: seen.terminal)
    assert (done.status, done.output) == (Status.SUCCEEDED, response["send"]["body"])
    await adapter.answer(it.ref, {key: YES})  # too late, and ignored


async def test_an_answer_given_elsewhere_closes_the_gate(google_engine: GoogleEngine, adapter: GoogleAdapter) -> None:
    it = await begin(google_engine, adapter, ONE, approval=gate("wait_for_approval"))
    key = await it.asked("approval")
    await send_elsewhere(google_engine, it.ref.handle, "by mail")
    await adapter.answer(it.ref, {key: NO})
    done = await it.until(lambda seen: seen.terminal)
    assert (done.status, done.output) == (Status.SUCCEEDED, "by mail")


async def test_methods_tell_parallel_gates_apart(google_engine: GoogleEngine, adapter: GoogleAdapter) -> None:
    gates = {
        "sales": gate({"step": "wait_for_sales", "method": "POST"}),
        "legal": gate({"step": "wait_for_legal", "method": "PUT"}),
    }
    it = await begin(google_engine, adapter, TWO.replace("METHOD", "PUT"), **gates)
    legal, sales = await it.asked("legal"), await it.asked("sales")
    await adapter.answer(it.ref, {legal: NO})
    left = await it.until(lambda seen: legal not in seen.requests)
    assert list(left.requests) == [sales]
    await adapter.answer(it.ref, {sales: YES, legal: YES})
    done = await it.until(lambda seen: seen.terminal)
    assert done.output == [YES["send"]["body"], NO["send"]["body"]]


async def test_gates_that_cannot_be_told_apart_are_told_and_not_asked(
    google_engine: GoogleEngine, adapter: GoogleAdapter
) -> None:
    gates = {"sales": gate("wait_for_sales"), "legal": gate("wait_for_legal")}
    it = await begin(google_engine, adapter, TWO.replace("METHOD", "POST"), **gates)
    seen = await it.until(lambda seen: "2 callbacks" in (seen.message or ""))
    assert (seen.status, seen.requests) == (Status.RUNNING, {})
    assert "gate sales: step wait_for_sales waits" in str(seen.message)
    await adapter.cancel(it.ref)


async def test_the_url_of_a_callback_is_in_no_log_and_in_no_look(
    google_engine: GoogleEngine, adapter: GoogleAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        it = await begin(google_engine, adapter, ONE, approval=gate("wait_for_approval"))
        key = await it.asked("approval")
        seen = await adapter.describe(it.ref)
        await adapter.answer(it.ref, {key: YES})
        await it.until(lambda seen: seen.terminal)
    assert "/callbacks/" not in repr(seen)
    assert "/callbacks/" not in caplog.text


NAPS_FIRST: Final = ONE.replace("  steps:\n", "  steps:\n    - nap: {call: sys.sleep, args: {seconds: 600}}\n", 1)


async def until_told(it: Watched, said: str) -> None:
    """Explained again and again until it is said of the gate."""
    found = ""
    try:
        with anyio.fail_after(15):
            while not re.fullmatch(said, found):
                gate = (await it.adapter.tooling.explain(it.ref)).gates["approval"]
                found = f"{gate.state}: {gate.why}"
    except TimeoutError:
        raise AssertionError(found) from None


@pytest.mark.parametrize(
    ("source", "when", "said"),
    [
        (ONE, "wait_for_aproval", r"in the workflow there is no step 'wait_for_aproval'; did you mean 'wait_for_app.*"),
        (
            NAPS_FIRST,
            "wait_for_approval",
            "the execution is at main/nap; step wait_for_approval was not reached, or is over: Google does not tell .*",
        ),
        (NAPS_FIRST, "prepare", "step 'prepare' does not call events.await_callback itself: .*do: wait_for_approval.*"),
        (NAPS_FIRST, "nap", "step nap waits for no callback now"),
        (
            ONE,
            {"step": "wait_for_approval", "method": "PUT"},
            "step wait_for_approval waits for no callback of method PUT; there are: POST",
        ),
        (ONE, {"step": ""}, "when.step: .*"),
    ],
)
async def test_why_a_gate_is_closed_is_told(
    google_engine: GoogleEngine, adapter: GoogleAdapter, source: str, when: Any, said: str
) -> None:
    it = await begin(google_engine, adapter, source, approval=gate(when))
    await until_told(it, f"closed: {said}")
    await adapter.cancel(it.ref)


async def test_that_a_gate_is_open_is_told(google_engine: GoogleEngine, adapter: GoogleAdapter) -> None:
    it = await begin(google_engine, adapter, ONE, approval=gate("wait_for_approval"))
    key = await it.asked("approval")
    await until_told(it, rf"open: it asks: Approve\? \({key}\)")
    await adapter.cancel(it.ref)
