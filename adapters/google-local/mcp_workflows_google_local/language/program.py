"""A deployed workflow, ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.errors import Raised, Tag, WorkflowError, failure
from mcp_workflows_google_local.language.frames import Execution, Lane, run_routine
from mcp_workflows_google_local.language.host import Host
from mcp_workflows_google_local.language.interpreter import run_body
from mcp_workflows_google_local.language.values import has_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A checked workflow."""

    source: str
    routines: Mapping[str, steps.Routine]

    async def run(self, argument: JSON, host: Host) -> JSON:
        """Run the workflow to its end; cancelling the asyncio task ends it at any point.

        Raises:
            Raised: an uncaught error.
        """
        main = self.routines["main"]
        lane = Lane(execution=Execution(routines=self.routines, host=host, run=run_body))
        arguments = {parameter.name: argument for parameter in main.parameters}
        try:
            return _returnable(await run_routine(lane, "main", arguments))
        except WorkflowError as error:
            raise _raised(error, main) from None
        except RecursionError:
            raise _raised(failure(Tag.RECURSION, "steps are nested too deeply"), main) from None


def _returnable(result: JSON) -> JSON:
    if has_bytes(result):
        raise failure(Tag.TYPE, "bytes cannot be returned by a workflow: use base64.encode")
    return result


def _raised(error: WorkflowError, main: steps.Routine) -> Raised:
    routine, step, line = error.origin or (main.name, main.body[-1].name, main.at.line)
    return Raised(error.payload, routine, step, line)
