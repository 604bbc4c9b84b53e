"""The names both sides agree on: what the workflow writes, and what the adapter reads and sends.

Specified in `mcp-workflows docs temporal-contract`.
"""

from __future__ import annotations

CONTRACT = 1  # said by the specification and by the files for other languages

MEMO_INPUT = "mcp.input"  # {"run": original run id, "requests": {key: {"method", "params", "order"}}}; absent: none
MEMO_STATUS = "mcp.status"  # {"message": str, "progress": number | null, "total": number | null}
MEMO_DIGEST = "mcp.digest"  # SHA-256 of workflow and arguments: what the execution was started with
MEMO_KEY = "mcp.key"  # SHA-256 of the key it was started with
MEMO_CONTEXT = "mcp.context"  # on whose behalf, trace parent

ANSWER_UPDATE = "mcp_answer"  # (key, {"action", "content"}): validated, needs a live worker
ANSWER_SIGNAL = "mcp_answer_signal"  # {"key", "response"}: the same, durable without one; Go reads one argument only

UNKNOWN_QUESTION = "McpUnknownInput"
BAD_ANSWER = "McpBadInput"
BAD_QUESTION = "McpBadQuestion"
PROTOCOL_ERROR = "McpError"  # an ApplicationError of this type, details [code] or [code, data], is a JSON-RPC error
