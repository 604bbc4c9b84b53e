"""The state machines of one engine, by the workflows that tools name, and their types."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_stepfunctions.arns import Machine, Place, is_machine_arn, machine_by_name, parse_machine
from mcp_workflows_stepfunctions.client import Client

EXPRESS: Final = "EXPRESS"
_UNKNOWN_ACCOUNT: Final = "ACCOUNT"


class Machines:
    """Machines by workflow. The type of each is asked for once: it cannot change unless the machine is replaced."""

    def __init__(self, client: Client, account: str | None) -> None:
        self._client = client
        self._account = account
        self._types: dict[str, str] = {}  # by unqualified ARN
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def find(self, workflow: str) -> Machine:
        """Return the machine that a tool names by ARN, or by its name in the engine's account and Region.

        Raises:
            EngineRefused: the name is not valid, or the machine is in another Region or account.
            EngineUnavailable: the account cannot be found out now.
        """
        if is_machine_arn(workflow):
            return self._by_arn(workflow)
        return machine_by_name(workflow, await self._client.place())

    def find_offline(self, workflow: str) -> Machine:
        """Return the machine without any call; the account of a name may stay open.

        Raises:
            EngineRefused: see `find`.
        """
        if is_machine_arn(workflow):
            return self._by_arn(workflow)
        place = Place(
            partition=self._client.partition, region=self._client.region, account=self._account or _UNKNOWN_ACCOUNT
        )
        return machine_by_name(workflow, place)

    async def find_startable(self, workflow: str, *, express: bool) -> Machine:
        """Return the machine that a tool names, after a check of its type.

        Raises:
            EngineRefused: it does not exist, is elsewhere, or has the other type.
            EngineUnavailable: it cannot be looked up now; nothing was started.
        """
        try:
            machine = await self.find(workflow)
            await self.check_type(machine, express=express)
        except EngineUnavailable as error:
            raise EngineUnavailable(str(error), sent=False, throttled=error.throttled) from None
        return machine

    async def check_type(self, machine: Machine, *, express: bool) -> None:
        """Check that the machine has the type that its tool says.

        Raises:
            EngineRefused: it has the other type, or does not exist.
            EngineUnavailable: no answer.
        """
        found = await self.machine_type(machine)
        if (found == EXPRESS) is express:
            return
        if express:
            raise EngineRefused(f"{machine.name} is a Standard state machine: leave out express: true", final=True)
        raise EngineRefused(
            f"{machine.name} is an Express state machine, whose executions can be no tasks: set express: true, "
            "or start it from a Standard one (see: mcp-workflows docs stepfunctions#express)",
            final=True,
        )

    async def machine_type(self, machine: Machine) -> str:
        """Return STANDARD or EXPRESS, by one DescribeStateMachine per process."""
        arn = machine.unqualified
        async with self._locks.setdefault(arn, anyio.Lock()):
            if arn not in self._types:
                found = await self._client.call(
                    "describe_state_machine", stateMachineArn=arn, includedData="METADATA_ONLY"
                )
                self._types[arn] = str(found["type"])
        return self._types[arn]

    def forget(self, machine: Machine) -> None:
        """Ask for the type again next time: the machine may have been replaced."""
        self._types.pop(machine.unqualified, None)

    def _by_arn(self, arn: str) -> Machine:
        machine = parse_machine(arn)
        self._refuse_foreign(machine.place)
        return machine

    def _refuse_foreign(self, place: Place) -> None:
        client = self._client
        if (place.region, place.partition) != (client.region, client.partition):
            raise EngineRefused(
                f"the state machine is in {place.region}, this engine is set up for {client.region}: "
                "give the other Region an engine of its own",
                final=True,
            )
        if self._account not in (None, place.account):
            raise EngineRefused(
                f"the state machine is in account {place.account}, this engine is set up for {self._account}: "
                "give the other account an engine of its own, with assume_role",
                final=True,
            )
