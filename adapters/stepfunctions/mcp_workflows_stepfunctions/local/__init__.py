"""A Step Functions engine of your own, for development: moto's server, with what it lacks added.

`python -m mcp_workflows_stepfunctions.local --port 8083`.
`mcp-workflows docs stepfunctions-local` says where it is not AWS.
"""
