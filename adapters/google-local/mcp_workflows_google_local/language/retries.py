"""try: retry and except.

Source: https://cloud.google.com/workflows/docs/reference/syntax/retrying and .../catching-errors
"""

from __future__ import annotations

from mcp_workflows_google_local.language import operators, steps
from mcp_workflows_google_local.language.errors import Exhausted, Tag, WorkflowError, failure
from mcp_workflows_google_local.language.evaluator import Template, filled
from mcp_workflows_google_local.language.frames import Frame, Outcome
from mcp_workflows_google_local.language.library_retry import PREDICATES, Backoff, Policy
from mcp_workflows_google_local.language.values import copied, is_int, is_number


async def run_try(action: steps.Try, frame: Frame) -> Outcome:
    try:
        return await _attempts(action, frame)
    except Exhausted:
        raise
    except WorkflowError as error:
        if action.caught is None:
            raise
        payload = copied(error.payload)
    inner = frame.inner()
    try:
        if action.caught.name:
            inner.scope.declare(action.caught.name, payload)
        return await inner.run(action.caught.body)
    finally:
        inner.scope.close()


async def _attempts(action: steps.Try, frame: Frame) -> Outcome:
    policy: Policy | None = None
    retries = 0
    while True:
        try:
            return await frame.run(action.body)
        except Exhausted:
            raise
        except WorkflowError as error:
            policy = policy or await _policy(action.retry, frame)
            if policy is None or retries >= policy.max_retries or not await _retries(policy, error, frame):
                raise
        await frame.lane.effect("sys.sleep", {"seconds": _delay(policy.backoff, retries)})
        retries += 1


async def _policy(retry: steps.Retry | Policy | None, frame: Frame) -> Policy | None:
    if not isinstance(retry, steps.Retry):
        return retry
    most = await filled(retry.max_retries, frame)
    if not is_int(most) or most < 0:
        raise failure(Tag.TYPE, "max_retries must be an integer, 0 or more")
    if isinstance(retry.backoff, Backoff):
        return Policy(predicate=retry.predicate, max_retries=most, backoff=retry.backoff)
    delays = {name: await _number(name, value, frame) for name, value in retry.backoff.items()}
    return Policy(predicate=retry.predicate, max_retries=most, backoff=Backoff(**delays))


async def _number(name: str, template: Template, frame: Frame) -> float:
    value = await filled(template, frame)
    if not is_number(value) or value < 0:
        raise failure(Tag.TYPE, f"{name} must be a number, 0 or more")
    return value


def _delay(backoff: Backoff, retries: int) -> float:
    """Return the seconds before the next attempt, which increase up to the maximum."""
    try:
        return min(backoff.initial_delay * float(backoff.multiplier) ** retries, backoff.max_delay)
    except OverflowError:
        return backoff.max_delay


async def _retries(policy: Policy, error: WorkflowError, frame: Frame) -> bool:
    if policy.predicate in PREDICATES:
        return PREDICATES[policy.predicate](error)
    answer = await frame.call(policy.predicate, [error.payload])
    return operators.truth(answer, f"what {policy.predicate} returns")
