"""PublishStateMachineVersion, ListStateMachineVersions, DeleteStateMachineVersion; aliases are moto's own."""

from __future__ import annotations

from moto.core.responses import ActionResult, EmptyResult

from mcp_workflows_stepfunctions.local.calls import Calls
from mcp_workflows_stepfunctions.local.paging import page
from mcp_workflows_stepfunctions.local.versions import publish, unpublish


class VersionCalls(Calls):
    """The calls about versions that moto lacks."""

    def publish_state_machine_version(self) -> ActionResult:
        """Publish the machine as it is."""
        published = publish(self.store.machine(self.text("stateMachineArn")), self._get_param("description"))
        return ActionResult({"creationDate": published.creation_date, "stateMachineVersionArn": published.arn})

    def list_state_machine_versions(self) -> ActionResult:
        """Newest first."""
        machine = self.store.machine(self.text("stateMachineArn"))
        found = [
            {"stateMachineVersionArn": version.arn, "creationDate": version.creation_date}
            for _, version in sorted(machine.versions.items(), reverse=True)
        ]
        shown = page(
            found,
            under="stateMachineVersions",
            key=lambda version: str(version["stateMachineVersionArn"]),
            size=self._get_int_param("maxResults"),
            token=self._get_param("nextToken"),
        )
        return ActionResult(shown)

    def delete_state_machine_version(self) -> EmptyResult:
        """Delete one that no alias has."""
        arn = self.text("stateMachineVersionArn")
        unpublish(self.store.machine(arn.rpartition(":")[0]), arn)
        return EmptyResult()
