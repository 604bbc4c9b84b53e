"""StopExecution, which stops an execution at once in any state.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_StopExecution.html
"""

from __future__ import annotations

from typing import Final

from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.names import KMS_REFUSES

MAX_CAUSE: Final = 32_768  # characters


async def stop_execution(client: Client, arn: str, error: str, cause: str, *, caller: str | None = None) -> None:
    """Stop an execution on behalf of `caller`, with a reason; an ended one stays as it is.

    The reason of an encrypted execution is encrypted, too. Without permission for that, it is stopped without a reason.

    Raises:
        ExecutionNotFound, EngineRefused, EngineUnavailable: see `Adapter.cancel`.
    """
    try:
        reason = {"error": error, "cause": cause[:MAX_CAUSE]}
        await client.call("stop_execution", known=KMS_REFUSES, caller=caller, executionArn=arn, **reason)
    except ExpectedCodeError:
        await client.call("stop_execution", caller=caller, executionArn=arn)
