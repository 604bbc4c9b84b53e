"""A process that runs the workflows of a module until it is killed: `python -m adapters.dbos.tests.host MODULE URL`.

Further arguments: `KEY=WORKFLOW` starts a workflow under a key, `version=V` is the version of the code, and with
`until=FILE` the process ends once this file exists.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import anyio
from mcp_workflows_dbos import DbosAdapter, DbosSettings

from mcp_workflows.adapter import Start


async def main(*words: str) -> None:
    """Run the workflows until the process is killed, or the file of `until` exists."""
    module, url, *more = words
    given = dict(word.split("=", 1) for word in more)
    until = given.pop("until", None)
    settings = {"module": module, "database": url, "version": given.pop("version", None)}
    async with DbosAdapter(DbosSettings.model_validate(settings)) as adapter:
        for key, workflow in given.items():
            await adapter.start(Start(workflow=workflow, arguments={}, key=key, created=datetime.now(UTC)))
        print("running", flush=True)  # noqa: T201  # the test waits for it
        while until is None or not await anyio.Path(until).exists():
            await anyio.sleep(0.1)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
