"""Names that state machines and the adapter share; see `mcp-workflows docs stepfunctions-contract`."""

from __future__ import annotations

from typing import Final

MCP_INPUT: Final = "mcpInput"  # in the parameters of a `.waitForTaskToken` state: the question, beside the token
TASK_TOKEN: Final = "taskToken"  # noqa: S105  # beside it: the name of a field, no password
CANCELLED: Final = "Mcp.Cancelled"  # the error of an execution that we stopped
PROTOCOL_ERROR: Final = "McpError"  # the error of a Fail state whose Cause is {"code", "message", "data"}

DENIED: Final = "AccessDeniedException"
KMS_REFUSES: Final = frozenset({"KmsAccessDeniedException", "KmsInvalidStateException", "KmsThrottlingException"})
"""Codes for data encrypted with a key that we may not, or cannot, use now."""

MAX_PAYLOAD: Final = 262_144  # bytes (UTF-8) of an input, an output, an answer
