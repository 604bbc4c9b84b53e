"""One look: every state of Temporal, every kind of result and failure, and the link to its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal.client import STATUSES
from mcp_workflows_temporal.payloads import read_failure
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.common import RawValue
from temporalio.converter import DataConverter, DefaultFailureConverter
from temporalio.exceptions import ApplicationError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from adapters.temporal.tests.codec_server import Encryption
from adapters.temporal.tests.scene import PATIENCE, Scene, workflow_id
from mcp_workflows.adapter import Failure, Ref, Status
from mcp_workflows.errors import ExecutionNotFound

NAMES = "WORKFLOW_EXECUTION_STATUS_"


def test_no_state_of_the_engine_is_forgotten() -> None:
    assert {State.Value(name) for name in State.keys()} - set(STATUSES) == {State.Value(NAMES + "UNSPECIFIED")}  # noqa: SIM118  # no mapping


VALUES = [None, True, 0, 1.5, "text", "", [], [1, None], {}, {"a": {"b": ["ü", 2**53]}}, "x" * 1_900_000]


async def test_any_json_comes_back_as_it_was(working: Scene) -> None:
    for value in VALUES:
        seen = await working.ended(await working.start("Echo", value))
        assert (seen.status, seen.output, seen.failure) == (Status.SUCCEEDED, value, None)


FAILURES: Sequence[tuple[str, Sequence[Any], Failure]] = [
    ("Fails", ["out of stock", "OutOfStock"], Failure(text="out of stock", kind="OutOfStock", retryable=False)),
    ("Fails", ["no kind"], Failure(text="no kind", retryable=False)),
    (
        "Fails",
        ["out of stock", "OutOfStock", [{"sku": "A1"}, 0]],
        Failure(text="out of stock", kind="OutOfStock", retryable=False, details=[{"sku": "A1"}, 0]),
    ),
    (
        "Charges",
        ["declined"],
        Failure(text="the card was declined", kind="CardDeclined", retryable=False, step="charge"),
    ),
    (
        "Charges",
        ["declined", "could not charge"],
        Failure(text="could not charge: the card was declined", kind="Wrapped", step="charge"),
    ),
    ("Parent", [], Failure(text="the card was declined", kind="CardDeclined", retryable=False, step="charge")),
    (
        "SlowStep",
        [],
        Failure(text="activity never_ends timed out (start to close)", kind="TimeoutError", step="never_ends"),
    ),
    (
        "SlowStep",
        [True],
        Failure(text="workflow Waits timed out (start to close)", kind="TimeoutError", step="Waits"),
    ),
    ("Fails", ["bad", "McpError", [-32602]], Failure(text="bad", kind="McpError", code=-32602, retryable=False)),
    (
        "Fails",
        ["bad", "McpError", [-32000, {"why": 1}]],
        Failure(text="bad", kind="McpError", code=-32000, data={"why": 1}, retryable=False),
    ),
    (
        "Charges",
        ["protocol"],
        Failure(
            text="no such card",
            kind="McpError",
            code=-32602,
            data={"field": "card"},
            retryable=False,
            step="charge",
        ),
    ),
    (
        "Fails",
        ["bad", "McpError", ["no code"]],
        Failure(text="bad", kind="McpError", retryable=False, details=["no code"]),
    ),
    ("Fails", ["bad", "McpError"], Failure(text="bad", kind="McpError", retryable=False)),
    ("Fails", ["bad", "Other", [-32602]], Failure(text="bad", kind="Other", retryable=False, details=[-32602])),
    ("TimesOut", [], Failure(text="the workflow timed out: it did not end within 1 s", kind="TimedOut")),
]


async def test_a_failure_is_told_in_the_words_of_whoever_raised_it(working: Scene) -> None:
    refs = [await working.start(workflow, *arguments) for workflow, arguments, _ in FAILURES]
    for ref, (_, _, failure) in zip(refs, FAILURES, strict=True):
        seen = await working.ended(ref)
        assert (seen.status, seen.failure) == (Status.FAILED, failure)


SEALED = RawValue(Payload(metadata={"encoding": b"binary/encrypted"}, data=b"x"))
DECLINED = ApplicationError("card declined", SEALED, type="CardDeclined", non_retryable=True)
PLAIN = DefaultFailureConverter(), DataConverter.default
CODEC = DefaultFailureConverter(), replace(DataConverter.default, payload_codec=Encryption(bytes(32)))
HIDING = DefaultFailureConverter(encode_common_attributes=True), DataConverter.default


def caused_by(error: BaseException) -> ApplicationError:
    outer = ApplicationError("the order failed", type="OrderFailed")
    outer.__cause__ = TemporalTimeoutError("late", type=None, last_heartbeat_details=[SEALED])
    outer.__cause__.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("how", "error", "failure"),
    [
        (PLAIN, DECLINED, Failure(text="card declined", kind="CardDeclined", retryable=False)),
        (CODEC, DECLINED, Failure(text="card declined", kind="CardDeclined", retryable=False)),
        (HIDING, DECLINED, Failure(text="card declined", kind="CardDeclined", retryable=False)),
        (
            PLAIN,
            caused_by(DECLINED),
            Failure(text="the order failed: a step timed out (no answer in time)", kind="OrderFailed"),
        ),
    ],
)
async def test_details_that_cannot_be_read_here_hide_nothing_else_of_a_failure(
    how: tuple[DefaultFailureConverter, DataConverter], error: BaseException, failure: Failure
) -> None:
    encoder, reader = how
    message = FailureMessage()
    encoder.to_failure(error, DataConverter.default.payload_converter, message)
    before = message.SerializeToString()
    assert (await read_failure(reader, message), message.SerializeToString()) == (failure, before)


async def test_a_message_that_cannot_be_read_here_leaves_the_type_of_a_failure() -> None:
    message = FailureMessage()
    HIDING[0].to_failure(DECLINED, DataConverter.default.payload_converter, message)
    message.encoded_attributes.CopyFrom(SEALED.payload)
    found = await read_failure(CODEC[1], message)
    assert found == Failure(text="Encoded failure", kind="CardDeclined", retryable=False)


async def test_a_pending_activity_is_a_step(scene: Scene) -> None:
    async with scene.worker(activities=()):
        ref = await scene.start("Charges", "declined")
        with anyio.fail_after(PATIENCE):
            while not (steps := (await scene.adapter.describe(ref)).steps):
                await anyio.sleep(0.05)
    assert [step.status for step in steps] == [Status.RUNNING]
    assert "charge" in steps[0].name.lower()


async def test_a_workflow_that_ignores_a_cancel_says_that_it_was_asked(working: Scene) -> None:
    ref = await working.start("Stubborn")
    await working.until(ref, lambda seen: seen.message is None)
    await working.adapter.cancel(ref)
    seen = await working.until(ref, lambda seen: seen.message == "cancellation requested")
    assert (seen.status, seen.cancel_requested) == (Status.RUNNING, True)
    await working.client.get_workflow_handle(workflow_id(ref)).signal("go")
    assert (await working.ended(ref)).output == "did it anyway"


async def test_an_id_that_belongs_to_another_chain_by_now_is_not_found(scene: Scene) -> None:
    ref = await scene.start("Waits")
    other = Ref(workflow="Waits", handle=f"{workflow_id(ref)}/00000000-0000-0000-0000-000000000000")
    for verb in (scene.adapter.describe(other), scene.adapter.cancel(other), scene.adapter.answer(other, {})):
        with pytest.raises(ExecutionNotFound):
            await verb
    assert not (await scene.adapter.describe(ref)).cancel_requested


async def test_the_link_leads_to_the_current_run_in_the_ui(scene: Scene) -> None:
    ref = await scene.start("Waits")
    run = ref.handle.rpartition("/")[2]
    url = (await scene.adapter.describe(ref)).url
    assert url is not None
    assert url.startswith("http://localhost:")
    assert url.endswith(f"/namespaces/default/workflows/{workflow_id(ref)}/{run}/history")


async def test_a_memo_of_a_foreign_codec_does_not_break_a_look(working: Scene) -> None:
    ref = await working.start("ForeignMemo")
    seen = await working.until(ref, lambda seen: seen.message is None)
    assert seen.status is Status.RUNNING
    await working.client.get_workflow_handle(workflow_id(ref)).signal("go")
    done = await working.ended(ref)
    assert done.status is Status.FAILED
    assert done.failure is not None
    assert done.failure.kind == "UndecodableResult"
    assert "binary/foreign" in done.failure.text


async def test_a_worker_that_went_away_is_noticed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows_temporal.diagnosis.NO_WORKER_AFTER", timedelta(seconds=1))
    async with scene.worker():
        ref = await scene.start("Waits")
        await scene.until(ref, lambda seen: seen.message is None)
    await scene.client.get_workflow_handle(workflow_id(ref)).signal("go")
    with anyio.fail_after(PATIENCE):
        seen = await scene.until(ref, lambda seen: seen.message)
    assert seen.message in {f"{said} task queue {scene.queue}" for said in ("waiting for a worker on", "nobody polls")}
