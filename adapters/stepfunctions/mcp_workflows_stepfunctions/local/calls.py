"""What all calls of the API share."""

from __future__ import annotations

from moto.stepfunctions.responses import StepFunctionResponse

from mcp_workflows_stepfunctions.local.store import STORES, Store


class Calls(StepFunctionResponse):
    """Moto's answers to the calls of the API, from our store: whatever we do not write anew stays moto's."""

    @property
    def store(self) -> Store:
        """Of the account and Region that is asked."""
        return STORES[self.current_account][self.region]

    def text(self, name: str) -> str:
        """A parameter that botocore requires."""
        return str(self._get_param(name))
