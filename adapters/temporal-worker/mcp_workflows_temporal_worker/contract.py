"""The names shared by workflow and adapter: memo fields, the update and signal of an answer, error types.

Specified in `docs/engines/temporal-contract.md`.
"""

from __future__ import annotations

CONTRACT = 1  # the version in the specification and in the files for other languages

MEMO_INPUT = "mcp.input"  # {"run": original run id, "requests": {key: {"method", "params", "order"}}}; absent: none
MEMO_STATUS = "mcp.status"  # {"message": str, "progress": number | null, "total": number | null}
MEMO_DIGEST = "mcp.digest"  # SHA-256 of the workflow type and the arguments of the start
MEMO_KEY = "mcp.key"  # SHA-256 of the key of the start
MEMO_CONTEXT = "mcp.context"  # owner and trace parent of the start

ANSWER_UPDATE = "mcp_answer"  # (key, {"action", "content"}): validated, needs a live worker
ANSWER_SIGNAL = "mcp_answer_signal"  # {"key", "response"}: the same, durable without one; Go reads one argument only

UNKNOWN_QUESTION = "McpUnknownInput"
BAD_ANSWER = "McpBadInput"
BAD_QUESTION = "McpBadQuestion"
PROTOCOL_ERROR = "McpError"  # an ApplicationError of this type, details [code] or [code, data], is a JSON-RPC error
