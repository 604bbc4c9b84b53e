"""A process that runs the workflows of a module until it is killed: `python -m adapters.dbos.tests.host MODULE URL`.

Further arguments are keys with workflows, `KEY=WORKFLOW`, to be started at once; `version=V` is that of the code.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import anyio
from mcp_workflows_dbos import DbosAdapter, DbosSettings

from mcp_workflows.adapter import Start


async def main(*words: str) -> None:
    """Run them for ever."""
    module, url, *more = words
    given = dict(word.split("=", 1) for word in more)
    settings = {"module": module, "database": url, "version": given.pop("version", None)}
    async with DbosAdapter(DbosSettings.model_validate(settings)) as adapter:
        for key, workflow in given.items():
            await adapter.start(Start(workflow=workflow, arguments={}, key=key, created=datetime.now(UTC)))
        print("running", flush=True)  # noqa: T201  # the test waits for it
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
