"""A local Step Functions engine for development: moto's server, with the parts that moto lacks.

`python -m mcp_workflows_stepfunctions_local --port 8083` starts it.
`mcp-workflows docs stepfunctions-local` lists where it differs from AWS.
"""
