"""Two releases: one runs through, one waits midway for a signal. Neither knows of MCP, or of approvals."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow

WITHIN = timedelta(minutes=1)


@activity.defn
async def build(version: str) -> str:
    """Build an image."""
    await asyncio.sleep(1)
    return f"registry.example.com/shop:{version}"


@activity.defn
async def canary(image: str) -> str:
    """Roll an image out to a tenth of the machines, and tell the team."""
    await asyncio.sleep(1)
    return f"{image} on 3 of 30 machines, 0 errors"


@activity.defn
async def deploy(image: str) -> str:
    """Roll an image out to all machines."""
    await asyncio.sleep(1)
    return f"{image} on 30 of 30 machines"


@workflow.defn
class Deploy:
    """Build and deploy."""

    @workflow.run
    async def run(self, version: str) -> str:
        """Return where the version runs."""
        image = await workflow.execute_activity(build, version, start_to_close_timeout=WITHIN)
        return await workflow.execute_activity(deploy, image, start_to_close_timeout=WITHIN)


@workflow.defn
class Rollout:
    """Build, try on a few machines, wait for a word, and deploy."""

    def __init__(self) -> None:
        self._released: bool | None = None

    @workflow.run
    async def run(self, version: str) -> str:
        """Return where the version runs."""
        image = await workflow.execute_activity(build, version, start_to_close_timeout=WITHIN)
        await workflow.execute_activity(canary, image, start_to_close_timeout=WITHIN)
        await workflow.wait_condition(lambda: self._released is not None)
        if not self._released:
            return f"{image} was rolled back"
        return await workflow.execute_activity(deploy, image, start_to_close_timeout=WITHIN)

    @workflow.signal
    def release(self, by: str | None, reason: str | None) -> None:
        """Go on."""
        self._released = True

    @workflow.signal
    def stop(self) -> None:
        """Roll back."""
        self._released = False
