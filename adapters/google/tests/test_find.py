"""Find: which execution of a key is the one, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from google.cloud.workflows import executions_v1
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.start import label_value, labels
from mcp_workflows_google_local.labels import check_labels

from adapters.google.tests.injecting import Fault, Injecting
from adapters.google.tests.stubbed import BEGAN, PLACE, start, told
from mcp_workflows.adapter import Ref, Start, Status
from mcp_workflows.errors import EngineUnavailable, StartConflict
from mcp_workflows.testing import MemoryNotes

pytestmark = pytest.mark.anyio


State = executions_v1.Execution.State


async def test_the_oldest_counts_and_later_ones_are_cancelled(stub: Injecting, adapter: GoogleAdapter) -> None:
    first, second, third = [await adapter.start(start()) for _ in range(3)]
    other = await adapter.start(start("another"))
    assert await adapter.find(start()) == first
    assert await adapter.find(start("never started")) is None
    states = {name: each.state for name, each in stub.executions.items()}
    assert states == {first: State.ACTIVE, second: State.CANCELLED, third: State.CANCELLED, other: State.ACTIVE}


async def test_one_that_a_list_does_not_show_yet_is_not_found(stub: Injecting, adapter: GoogleAdapter) -> None:
    stub.lag = True
    name = await adapter.start(start())
    assert await adapter.find(start()) is None
    stub.settle()
    assert await adapter.find(start()) == name


async def test_a_filter_is_done_without_if_refused_and_believed_once_it_has_shown_one_of_ours(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    """On a busy workflow, going through all executions is many calls."""
    name = await adapter.start(start())
    stub.tell("ListExecutions", Fault(code="INVALID_ARGUMENT", text="unknown field: labels"))
    assert await adapter.find(start()) == name
    filters = [asked.request.filter for asked in stub.asked if asked.what == "ListExecutions"]
    assert filters == ['labels.mcp-workflows-key="one"', ""]
    stub.asked.clear()
    for key in ("none", "one", "none"):
        await adapter.find(start(key))
    believed = [bool(asked.request.filter) for asked in stub.asked if asked.what == "ListExecutions"]
    assert believed == [True, False, True, True]


async def test_a_duplicate_that_cannot_be_cancelled_now_is_cancelled_the_next_time(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    first, second = [await adapter.start(start()) for _ in range(2)]
    stub.tell("CancelExecution", Fault(code="UNAVAILABLE"))
    with pytest.raises(EngineUnavailable):
        await adapter.find(start())
    assert await adapter.find(start()) == first
    assert stub.executions[second].state == State.CANCELLED


async def test_another_argument_under_the_key_is_a_conflict(adapter: GoogleAdapter) -> None:
    await adapter.start(start())
    with pytest.raises(StartConflict):
        await adapter.find(Start(workflow="orders", arguments=[{"order": 2}], key="one", created=BEGAN))


async def claim(adapter: GoogleAdapter, handle: str) -> bool:
    """As the first step of the execution does it; it knows the project's id, whatever the handle says."""
    answered = await told(adapter, "claim", {**PLACE, "execution": handle.rpartition("/")[2]})
    assert set(answered) == {"claimed"}
    return bool(answered["claimed"])


async def test_of_two_executions_with_one_key_the_first_that_claims_it_goes_on(adapter: GoogleAdapter) -> None:
    first, second = [await adapter.start(start()) for _ in range(2)]
    assert [await claim(adapter, name) for name in (second, first, second, first)] == [True, False, True, False]
    assert await adapter.find(start()) == second  # it is what runs, though it is not the oldest


async def test_the_oldest_has_the_key_before_a_duplicate_is_cancelled(adapter: GoogleAdapter) -> None:
    """Or a duplicate could claim it just then, and nothing would run at all."""
    first, second = [await adapter.start(start()) for _ in range(2)]
    assert await adapter.find(start()) == first
    assert [await claim(adapter, name) for name in (second, first)] == [False, True]


async def test_names_with_the_projects_number_are_the_same_executions(stub: Injecting, adapter: GoogleAdapter) -> None:
    stub.project = "123456789012"
    names = [await adapter.start(start()) for _ in range(2)]
    stub.executions.update({name.replace(stub.project, "acme-shop"): stub.executions[name] for name in names})
    assert await claim(adapter, names[1])
    assert await adapter.find(start()) == names[1]


async def test_who_has_lost_the_claim_is_seen_answered_and_cancelled_as_the_one_that_goes_on(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    first, second = [await adapter.start(start()) for _ in range(2)]
    assert await claim(adapter, second)
    assert not await claim(adapter, first)
    stub.executions[first].state = State.SUCCEEDED
    stub.executions[first].result = '{"lost": true}'
    ref = Ref(workflow="orders", handle=first)
    seen = await adapter.describe(ref)
    assert (seen.status, seen.execution_id) == (Status.RUNNING, second)
    await adapter.cancel(ref)
    assert stub.executions[second].state == State.CANCELLED


async def test_an_execution_that_nobody_of_ours_started_may_always_go_on(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    names = [await adapter.start(start()) for _ in range(2)]
    for name in names:
        stub.executions[name].labels.clear()
    assert [await claim(adapter, name) for name in names] == [True, True]


async def test_a_claim_that_cannot_be_kept_or_whose_execution_is_not_shown_yet_is_tried_again(
    adapter: GoogleAdapter, notes: MemoryNotes
) -> None:
    with pytest.raises(EngineUnavailable):
        await claim(adapter, "projects/acme-shop/locations/europe-west1/workflows/orders/executions/e-99")
    name = await adapter.start(start())
    notes.available = False
    with pytest.raises(EngineUnavailable):
        await claim(adapter, name)


# --- labels


def made(context: Mapping[str, str]) -> Mapping[str, str]:
    order = Start(workflow="w", arguments=[], key="t-1", created=datetime.now(UTC), context=context)
    found = labels(order)
    check_labels(found)
    return found


def test_the_owner_and_what_is_said_of_them_and_the_trace_are_labels() -> None:
    told = {"tool": "Fulfil.Order", "owner": "ada", "issuer": "https://login", "client": "web", "desk": "7"}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    expected = {
        "mcp-workflows-key": "t-1",
        "mcp-workflows-tool": "fulfil-order",
        "mcp-workflows-owner": "ada",
        "mcp-workflows-for-desk": "7",
    }
    assert made({**told, "traceparent": "junk"}) == expected
    assert made({**told, "traceparent": trace}) == {**expected, "mcp-workflows-traceparent": trace}


HARD = ["ada@example.com", "Ada", "x" * 64, "\u00e4da", "a b", "ADA@example.com", "ada.example@com", "\ud800", "key"]


@pytest.mark.parametrize("text", HARD)
def test_any_text_can_be_a_label(text: str) -> None:
    made({"owner": text, "email": text, "key": text})


def test_no_two_people_have_one_label() -> None:
    assert len({label_value(text) for text in HARD}) == len(HARD)
    assert label_value("ada@example.com").startswith("ada-example-com-")
