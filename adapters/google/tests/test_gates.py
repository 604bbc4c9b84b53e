"""Gates on the local engine, through the adapter: workflows that were not written for us."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests import cloud
from adapters.google.tests.cloud import GATED
from mcp_workflows.adapter import Gate
from tests.support.cloud_suites import APPROVE, begin
from tests.support.google_engine import GoogleEngine

pytestmark = pytest.mark.anyio

YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}, "send": {"body": {"approved": True}}}
NO: Final[Mapping[str, Any]] = {"action": "decline", "send": {"body": {"approved": False}}}

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
    return Gate(when=when, request=APPROVE, send={"body": {"approved": "{{answer.ok}}"}}, decline=NO["send"])


@pytest.fixture
async def adapter(google_engine: GoogleEngine) -> AsyncIterator[GoogleAdapter]:
    """In front of the local engine."""
    async with cloud.adapter(google_engine) as found:
        yield found


async def test_methods_tell_parallel_gates_apart(google_engine: GoogleEngine, adapter: GoogleAdapter) -> None:
    gates = {
        "sales": gate({"step": "wait_for_sales", "method": "POST"}),
        "legal": gate({"step": "wait_for_legal", "method": "PUT"}),
    }
    it = await begin(adapter, google_engine.deploy("gated", TWO.replace("METHOD", "PUT")), gates)
    legal, sales = await it.asked("legal"), await it.asked("sales")
    await adapter.answer(it.ref, {legal: NO})
    left = await it.until(lambda seen: legal not in seen.requests)
    assert list(left.requests) == [sales]
    await adapter.answer(it.ref, {sales: YES, legal: YES})
    done = await it.until(lambda seen: seen.terminal)
    assert done.output == [YES["send"]["body"], NO["send"]["body"]]


NAPS_FIRST: Final = GATED.replace("  steps:\n", "  steps:\n    - nap: {call: sys.sleep, args: {seconds: 600}}\n", 1)


@pytest.mark.parametrize(
    ("source", "when", "said"),
    [
        (
            GATED,
            "wait_for_aproval",
            r"in the workflow there is no step 'wait_for_aproval'; did you mean 'wait_for_app.*",
        ),
        (
            NAPS_FIRST,
            "wait_for_approval",
            "the execution is at main/nap; step wait_for_approval was not reached, or is over: Google does not .*",
        ),
        (NAPS_FIRST, "prepare", "step 'prepare' does not call events.await_callback itself: .*do: wait_for_approval.*"),
        (NAPS_FIRST, "nap", "step nap waits for no callback now"),
        (
            GATED,
            {"step": "wait_for_approval", "method": "PUT"},
            "step wait_for_approval waits for no callback of method PUT; there are: POST",
        ),
        (GATED, {"step": ""}, "when.step: .*"),
    ],
)
async def test_why_a_gate_is_closed_is_told(
    google_engine: GoogleEngine, adapter: GoogleAdapter, source: str, when: Any, said: str
) -> None:
    it = await begin(adapter, google_engine.deploy("gated", source), {"approval": gate(when)})
    await it.until_explained(f"closed: {said}")
    await adapter.cancel(it.ref)
