"""A local Step Functions engine for development: moto's server, with the parts that moto lacks.

`python -m mcp_workflows_stepfunctions_local --port 8083` starts it.
`docs/engines/stepfunctions-local.md` lists where it differs from AWS.
"""
