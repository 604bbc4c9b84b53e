"""Stop an execution: Step Functions stops it at once, whatever it is doing.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_StopExecution.html
"""

from __future__ import annotations

from typing import Final

from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.names import KMS_REFUSES

MAX_CAUSE: Final = 32_768  # characters


async def stop_execution(client: Client, arn: str, error: str, cause: str, *, caller: str | None = None) -> None:
    """Stop it and say why, on behalf of that caller; on an ended one this changes nothing.

    The reason of an encrypted execution is encrypted too; who may not do that can still stop it without one.

    Raises:
        ExecutionNotFound, EngineRefused, EngineUnavailable: see `Adapter.cancel`.
    """
    try:
        said = {"error": error, "cause": cause[:MAX_CAUSE]}
        await client.call("stop_execution", known=KMS_REFUSES, caller=caller, executionArn=arn, **said)
    except ExpectedCodeError:
        await client.call("stop_execution", caller=caller, executionArn=arn)
