"""The checks whether a workflow could run now: the frontend answers, has the namespace, and somebody polls."""

from __future__ import annotations

from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse

from mcp_workflows.adapter import Finding, rough_duration
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows_temporal.client import REFUSED, Frontend
from mcp_workflows_temporal.codec import RemoteCodec
from mcp_workflows_temporal.task_queues import idle_time, live_pollers


async def check_engine(frontend: Frontend) -> Finding:
    """Check that the frontend answers and has the namespace."""
    place = frontend.place
    try:
        async with frontend.call():
            await frontend.describe_namespace()
            await _try_codec(frontend)
    except EngineError as error:
        running = isinstance(error, EngineUnavailable) and REFUSED in str(error)
        advice = "if it is, check address" if running else "check address, namespace, tls, api_key and codec"
        return Finding(ok=False, text=str(error), hint=f"{advice} of this engine")
    return Finding(ok=True, text=f"Temporal at {place.address} answers, namespace {place.namespace} is there")


async def _try_codec(frontend: Frontend) -> None:
    """Encode and decode a value through the codec server, if there is one."""
    codec = frontend.client.data_converter.payload_codec
    if isinstance(codec, RemoteCodec):
        converter = frontend.client.data_converter
        await converter.decode(await converter.encode(["mcp-workflows check"]))


async def check_queue(frontend: Frontend, workflow: str, task_queue: str | None) -> Finding:
    """Check that somebody polls the task queue of a workflow."""
    if task_queue is None:
        return Finding(ok=False, text=f"{workflow} has no task queue", hint=f"set {TASK_QUEUE_HINT}")
    try:
        async with frontend.call():
            found = await frontend.describe_task_queue(task_queue)
    except EngineError as error:
        return Finding(ok=False, text=str(error), hint="check the engine first")
    return _judge(frontend, found, task_queue)


TASK_QUEUE_HINT = "task_queue, on the engine or on the tool"


def _judge(frontend: Frontend, found: DescribeTaskQueueResponse, queue: str) -> Finding:
    if live := live_pollers(found):
        workers = "1 worker polls" if len(live) == 1 else f"{len(live)} workers poll"
        return Finding(
            ok=True, text=f"{workers} task queue {queue}, last {rough_duration(min(map(idle_time, live)))} ago"
        )
    ages = [idle_time(poller) for poller in found.pollers]
    text = f"nobody polls task queue {queue}" + (f", last {rough_duration(min(ages))} ago" if ages else "")
    if waiting := found.stats.approximate_backlog_count:
        text = f"{text}; {waiting} waiting there"
    return Finding(
        ok=False, text=text, hint=f"start a worker on task queue {queue} in namespace {frontend.place.namespace}"
    )
