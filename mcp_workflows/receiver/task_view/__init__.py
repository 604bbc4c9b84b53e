"""The run card: a page of MCP Apps that shows one task, answers its questions and cancels it."""
