"""The laws of an adapter's abilities beyond the four verbs; tests of missing ones are skipped."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import NoReturn

import anyio
import pytest
from jsonschema_rs import Draft202012Validator

from mcp_workflows.adapter import (
    Adapter,
    Adopts,
    Allowance,
    Execution,
    HasLogs,
    Hints,
    Ref,
    Routes,
    SharedSecret,
    Status,
    Sweeps,
    Terminates,
    Waits,
)
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Explains, Exposes
from mcp_workflows.testing.laws import (
    STACK_TRACES,
    Subject,
    assert_clean,
    cancelled_afterwards,
    expect_not_found,
    new_start,
    ref_of,
    see_questions,
    unreachable,
    until_ended,
)

MAX_LOG = 65_536  # bytes
ROUTE = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class CapabilityLaws:
    """Part of `AdapterContract`."""

    # --- Terminates

    async def test_a_running_execution_can_be_terminated(self, subject: Subject, adapter: Adapter) -> None:
        """Law: terminate ends it now, without asking; a no-op on an ended execution."""
        if not isinstance(adapter, Terminates):
            skip_without("Terminates")
        start = new_start(subject.endless)
        ref = ref_of(start, await adapter.start(start))
        await adapter.terminate(ref, "the contract's reason")
        ended = await until_ended(subject, adapter, ref)
        assert (ended.status, ended.output) == (Status.CANCELLED, None)
        await adapter.terminate(ref, "again")
        assert await adapter.describe(ref) == ended

    async def test_terminating_what_nobody_started_is_not_found(self, subject: Subject, adapter: Adapter) -> None:
        """Law: only `ExecutionNotFound` and its siblings cross the boundary."""
        if not isinstance(adapter, Terminates):
            skip_without("Terminates")
        await expect_not_found(adapter.terminate(_nobodys(subject), "no reason"), "terminate")

    # --- HasLogs

    async def test_a_log_is_a_text_that_tells_no_secret(self, subject: Subject, adapter: Adapter) -> None:
        """Law: log returns the end of the log of a running or ended execution; empty: there is none yet."""
        if not isinstance(adapter, HasLogs):
            skip_without("HasLogs")
        start = new_start(subject.finishes)
        ref = ref_of(start, await adapter.start(start))
        await adapter.log(ref)
        await until_ended(subject, adapter, ref)
        text = await adapter.log(ref)
        assert len(text.encode()) <= MAX_LOG
        assert_clean(subject, text)
        await expect_not_found(adapter.log(_nobodys(subject)), "log")

    # --- Routes

    async def test_a_route_has_an_address_and_trusts_somebody(self, subject: Subject, adapter: Adapter) -> None:
        """Law: paths are words, each once; all keys can be fetched, somebody is trusted; the same before it is open."""
        if not isinstance(adapter, Routes):
            skip_without("Routes")
        routes = list(adapter.routes())
        paths = [route.path for route in routes]
        assert all(ROUTE.fullmatch(path) for path in paths)
        assert len(set(paths)) == len(paths)
        for trusted in {route.trusted for route in routes}:
            if isinstance(trusted, SharedSecret):
                assert trusted.secret
                continue
            assert trusted.keys_url.startswith(("https://", "http://"))
            assert trusted.issuer
            assert trusted.audience
            assert trusted.accounts
        closed = subject.new_adapter()
        assert isinstance(closed, Routes)
        assert [(route.path, route.trusted) for route in closed.routes()] == [
            (route.path, route.trusted) for route in routes
        ]

    # --- Adopts

    async def test_an_adopted_execution_is_the_one_its_id_names(self, subject: Subject, adapter: Adapter) -> None:
        """Law: the `execution_id` that people see leads to the same execution, running or ended."""
        if not isinstance(adapter, Adopts):
            skip_without("Adopts")
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            seen = await adapter.describe(ref)
            assert seen.execution_id
            adopted = await adapter.adopt(seen.execution_id)
            assert (adopted.workflow, dict(adopted.options)) == (ref.workflow, {})
            assert (await adapter.describe(adopted)).execution_id == seen.execution_id
        ended = await adapter.adopt(seen.execution_id)
        assert (await adapter.describe(ended)).status is Status.CANCELLED

    async def test_adopting_what_nobody_started_is_not_found(self, subject: Subject, adapter: Adapter) -> None:
        """Law: only `ExecutionNotFound` and its siblings cross the boundary."""
        if not isinstance(adapter, Adopts):
            skip_without("Adopts")
        await expect_not_found(adapter.adopt(subject.unknown_handle), "adopt")

    # --- Explains

    async def test_an_explanation_has_a_reason_in_a_sentence(self, subject: Subject, adapter: Adapter) -> None:
        """Law: there is a reason, running or ended, and no stack trace in it."""
        tooling = adapter.tooling
        if not isinstance(tooling, Explains):
            skip_without("Explains")
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            running = await tooling.explain(ref)
        ended = await tooling.explain(ref)
        for found in (running, ended):
            assert found.reason
            assert "\n" not in found.reason
            assert not [trace for trace in STACK_TRACES if trace in str(found)]
        await expect_not_found(tooling.explain(_nobodys(subject)), "explain")

    # --- Sweeps

    async def test_a_sweep_sees_what_describe_sees_by_handle(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a sweep is a hint by handle: it may lag behind, and leaves out unknown ones."""
        if not isinstance(adapter, Sweeps):
            skip_without("Sweeps")
        ending = new_start(subject.finishes)
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as running:
            ended = ref_of(ending, await adapter.start(ending))
            await until_ended(subject, adapter, ended)
            refs = [running, ended, _nobodys(subject)]
            wanted = {running.handle: Status.RUNNING, ended.handle: Status.SUCCEEDED}
            seen = await _swept(subject, adapter, refs, wanted)
            assert {handle: look.status for handle, look in seen.items()} == wanted
        assert await adapter.describe_many([]) == {}

    async def test_a_sweep_shows_questions(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a difference from the sweep before is a reason to describe, so questions have to differ."""
        if not isinstance(adapter, Sweeps):
            skip_without("Sweeps")
        ref, seen = await see_questions(subject, adapter, subject.asks)
        swept = await _swept(subject, adapter, [ref], {ref.handle: Status.INPUT_REQUIRED})
        assert set(swept[ref.handle].requests) == set(seen.requests)
        await adapter.cancel(ref)

    # --- Waits

    async def test_a_wait_is_over_when_the_execution_has_ended(self, subject: Subject, adapter: Adapter) -> None:
        """Law: wait returns when it may have ended, before and after it has."""
        if not isinstance(adapter, Waits):
            skip_without("Waits")
        over = anyio.Event()
        start = new_start(subject.endless)
        ref = ref_of(start, await adapter.start(start))

        async def wait(waiting: Waits) -> None:
            await waiting.wait(ref)
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(wait, adapter)
            await adapter.describe(ref)
            assert not over.is_set()
            await adapter.cancel(ref)
            with anyio.fail_after(subject.patience):
                await over.wait()
        assert (await until_ended(subject, adapter, ref)).status is Status.CANCELLED
        with anyio.fail_after(subject.patience):
            await adapter.wait(ref)

    async def test_a_wait_can_be_given_up_at_once(self, subject: Subject, adapter: Adapter) -> None:
        """Law: wait ends when it is cancelled, and the adapter goes on."""
        if not isinstance(adapter, Waits):
            skip_without("Waits")
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            with anyio.fail_after(subject.glance):
                with anyio.move_on_after(0.3):
                    await adapter.wait(ref)
                assert (await adapter.describe(ref)).status is Status.RUNNING

    # --- Exposes

    async def test_what_is_marked_can_be_offered(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a name for a tool, a source for people, a JSON Schema of an object, options as tools have them."""
        tooling = adapter.tooling
        if not isinstance(tooling, Exposes):
            skip_without("Exposes")
        if tooling.expose_every is None:
            pytest.skip("the subject does not look for marked workflows")
        assert tooling.expose_every > 0
        for each in await tooling.exposed():
            assert TOOL_NAME.fullmatch(each.name)
            assert each.workflow
            assert each.source
            assert each.input.get("type") == "object"
            Draft202012Validator(dict(each.input), offline=True)  # raises if it is no JSON Schema
            adapter.Options.model_validate(each.options)

    # --- Limited

    async def test_an_allowance_leaves_something(self, adapter: Adapter) -> None:
        """Law: it can be read at any time, without asking the engine, and lets us ask now and then."""
        allowance = getattr(adapter, "allowance", None)
        if allowance is None:
            skip_without("Limited")
        assert isinstance(allowance, Allowance)
        assert min(allowance.looks_per_second, allowance.sweep_every, allowance.batch) > 0
        assert allowance.burst >= 0

    # --- Hints

    async def test_an_execution_that_ends_is_hinted_at_by_its_handle(self, subject: Subject, adapter: Adapter) -> None:
        """Law: a listener is told the handle that `start` returned, until it stops listening."""
        if not isinstance(adapter, Hints):
            skip_without("Hints")
        listening, over = anyio.Event(), anyio.Event()
        heard: set[str] = set()

        async def listen(telling: Hints, wanted: str) -> None:
            def hear(handle: str) -> None:
                if handle == wanted:
                    heard.add(handle)
                    over.set()

            listening.set()
            await telling.hints(hear)
            over.set()

        async with anyio.create_task_group() as group:
            async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
                group.start_soon(listen, adapter, ref.handle)
                await listening.wait()
            with anyio.move_on_after(subject.patience):
                await over.wait()
            group.cancel_scope.cancel()
        if over.is_set() and not heard:
            pytest.skip("the subject's settings are without hints")
        assert over.is_set()
        assert heard

    # --- when the engine is not there

    async def test_no_capability_lets_anything_else_cross(self, subject: Subject) -> None:
        """Law: only `EngineUnavailable` crosses when the engine is not there, and no secret with it."""
        async with unreachable(subject) as nobody:
            ref = _nobodys(subject)
            calls: list[Awaitable[object]] = []
            if isinstance(nobody, Terminates):
                calls.append(nobody.terminate(ref, "no reason"))
            if isinstance(nobody, HasLogs):
                calls.append(nobody.log(ref))
            if isinstance(nobody, Adopts):
                calls.append(nobody.adopt(subject.unknown_handle))
            if isinstance(nobody.tooling, Explains):
                calls.append(nobody.tooling.explain(ref))
            if isinstance(nobody, Sweeps):
                calls.append(nobody.describe_many([ref]))
            if isinstance(nobody, Waits):
                calls.append(nobody.wait(ref))
            exposing = nobody.tooling
            if isinstance(exposing, Exposes) and exposing.expose_every is not None:
                calls.append(exposing.exposed())
            for call in calls:
                with anyio.fail_after(subject.glance), pytest.raises(EngineUnavailable) as unavailable:
                    await call
                assert_clean(subject, str(unavailable.value))


def skip_without(capability: str) -> NoReturn:
    """Skip the test of an ability that an adapter lacks."""
    pytest.skip(f"this adapter has no {capability}")


def _nobodys(subject: Subject) -> Ref:
    return Ref(workflow=subject.endless.workflow, handle=subject.unknown_handle, options=subject.endless.options)


async def _swept(
    subject: Subject, adapter: Sweeps, refs: Sequence[Ref], wanted: dict[str, Status]
) -> dict[str, Execution]:
    """Return the sweep that shows these statuses, or the last one."""
    seen: dict[str, Execution] = {}
    with anyio.move_on_after(subject.patience):
        while any(handle not in seen or seen[handle].status is not status for handle, status in wanted.items()):
            seen = dict(await adapter.describe_many(refs))
            await anyio.sleep(0.05)  # a list may lag behind
    return seen
