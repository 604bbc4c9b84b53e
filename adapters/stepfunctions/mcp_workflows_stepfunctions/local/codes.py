"""Error codes of moto's executor: it raises InvalidDefinition and others so that they reach clients without a code."""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import AWSError
from moto.stepfunctions.parser import api

from mcp_workflows_stepfunctions.local.patching import required


def install() -> None:
    """Give each of its errors its code."""
    required(api, "InvalidDefinition", "ResourceNotFound")
    required(AWSError, "TYPE", "STATUS")
    for error in vars(api).values():
        if isinstance(error, type) and issubclass(error, AWSError):
            named: Any = error
            named.TYPE, named.STATUS = getattr(named, "code", None), getattr(named, "status_code", 400)
