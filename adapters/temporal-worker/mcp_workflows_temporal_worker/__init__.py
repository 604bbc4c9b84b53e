"""Functions for Temporal workflows: ask the person behind an MCP task, and report progress.

```python
from mcp_workflows_temporal_worker import elicit, progress

await progress("checking stock", 1, 3)
answer = await elicit("Approve this order?", {"type": "object", "properties": {"note": {"type": "string"}}})
if answer.accepted: ...
```

Import the package like any other module: it is safe inside the workflow sandbox.
"""

from __future__ import annotations

from mcp_workflows_temporal_worker.workflow import Answer, elicit, progress

__all__ = ["Answer", "elicit", "progress"]
