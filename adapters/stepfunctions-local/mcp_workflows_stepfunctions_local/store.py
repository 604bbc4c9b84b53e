"""The state machines, executions, activities and tokens of one account and Region."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from moto.core.base_backend import BackendDict
from moto.stepfunctions.models import StateMachine
from moto.stepfunctions.parser.asl.eval.callback.callback import CallbackOutcome
from moto.stepfunctions.parser.models import StepFunctionsParserBackend

from mcp_workflows_stepfunctions_local.errors import RefusedError
from mcp_workflows_stepfunctions_local.events import EventPublisher
from mcp_workflows_stepfunctions_local.execution import LocalExecution, Target, now
from mcp_workflows_stepfunctions_local.tokens import ActivityQueue, Token, TokenPool
from mcp_workflows_stepfunctions_local.validation import check_express, check_input, check_name
from mcp_workflows_stepfunctions_local.versions import resolve

_PUBLISHER = EventPublisher()


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The addresses of the API, in the form of moto's modules `urls`."""

    url_bases: Sequence[str]
    url_paths: Mapping[str, Any]


class Store(StepFunctionsParserBackend):
    """Moto's store, with executions by ARN, tokens also after their end, and tasks of activities."""

    routes: ClassVar[Routes]

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.activity_queues: dict[str, ActivityQueue] = {}
        self.tokens: dict[str, Token] = {}
        self.standard: dict[str, LocalExecution] = {}
        self._lock = threading.RLock()

    @property
    def _url_module(self) -> Any:
        """The addresses and handlers of the API; moto derives a module from the name of this class's module."""
        return type(self).routes

    def reset(self) -> None:
        """Delete everything and stop all executions; moto deletes executions, but their threads continue."""
        for execution in list(self.standard.values()):
            execution.stop(now(), None, None)
        super().reset()

    def create_state_machine(self, name: str, definition: str, *args: Any, **more: Any) -> StateMachine:
        """Create a state machine with AWS's checks: moto accepts any state in an Express machine, and any redefinition.

        Raises:
            RefusedError: InvalidDefinition, StateMachineAlreadyExists.
        """
        self._validate_definition(definition)
        if more.get("sm_type") == "EXPRESS":
            check_express(definition)
        found = self._revision_by_name(name)
        if found is not None and found.definition != definition:
            raise RefusedError("StateMachineAlreadyExists", f"State Machine Already Exists: '{found.arn}'")
        return super().create_state_machine(name, definition, *args, **more)

    def create_activity(self, name: str, *args: Any, **more: Any) -> Any:
        """Create an activity and a queue for its tasks; moto has no queue, so an activity state fails."""
        created = super().create_activity(name, *args, **more)
        self.activity_queues.setdefault(created.arn, ActivityQueue(created.arn, name))
        return created

    def start_execution(  # type: ignore[override]  # moto's returns what we replace
        self,
        state_machine_arn: str,
        name: str | None = None,
        execution_input: str | None = None,
        trace_header: Any = None,
    ) -> LocalExecution:
        """Start an execution, or return the running one with this name and input; moto's default name is "None".

        Raises:
            RefusedError: StateMachineDoesNotExist, InvalidName, InvalidExecutionInput, ExecutionAlreadyExists.
        """
        name, text = name or str(uuid.uuid4()), execution_input or "{}"
        check_name(name)
        check_input(text)
        with self._lock:
            target = self.target(state_machine_arn)
            arn = self._execution_arn(target, name)
            found = self.standard.get(arn)
            if found is not None:
                return _same(found, text)
            execution = LocalExecution(
                target=target,
                new_pool=lambda: TokenPool(queues=self.activity_queues, register=self.tokens),
                publish=_PUBLISHER.publish,
                name=name,
                exec_arn=arn,
                account_id=self.account_id,
                region_name=self.region_name,
                start_date=now(),
                input_data=text,
                trace_header=trace_header,
            )
            if not execution.is_express:  # AWS describes no Express executions, so they are not kept
                self.standard[arn] = execution
                self.machine(target.machine.arn).executions.append(execution)  # type: ignore[arg-type]
        execution.start()
        return execution

    def _execution_arn(self, target: Target, name: str) -> str:
        """Return the ARN without version or alias, as on AWS; names of Express executions need not be unique."""
        prefix = f"arn:{self.partition}:states:{self.region_name}:{self.account_id}"
        if target.machine.type == "EXPRESS":
            return f"{prefix}:express:{target.machine.name}:{name}:{uuid.uuid4()}"
        return f"{prefix}:execution:{target.machine.name}:{name}"

    def describe_execution(self, execution_arn: str) -> LocalExecution:  # type: ignore[override]  # ours
        """Return the execution of this ARN; moto also returns those of Express machines.

        Raises:
            RefusedError: InvalidArn, ExecutionDoesNotExist.
        """
        if ":express:" in execution_arn:
            raise RefusedError("InvalidArn", "Invalid Arn: 'Resource type not valid in this context: express'")
        self._validate_execution_arn(execution_arn)
        if execution_arn not in self.standard:
            raise RefusedError("ExecutionDoesNotExist", f"Execution Does Not Exist: '{execution_arn}'")
        return self.standard[execution_arn]

    def target(self, arn: str) -> Target:
        """Return the machine that an ARN of a machine, a version or an alias starts.

        Raises:
            RefusedError: InvalidArn, StateMachineDoesNotExist.
        """
        self._validate_machine_arn(arn)
        return resolve(self.machine, arn)

    def machine(self, arn: str) -> StateMachine:
        """Return the machine of this ARN, which contains no version.

        Raises:
            RefusedError: StateMachineDoesNotExist.
        """
        found = next((machine for machine in self.state_machines if machine.arn == arn), None)
        if found is None:
            raise RefusedError("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
        return found

    def delete_state_machine(self, arn: str) -> None:
        """Delete a machine and stop its executions; in moto, their threads continue."""
        for execution in [found for found in self.standard.values() if found.target.machine.arn == arn]:
            execution.stop(now(), None, None)
            del self.standard[execution.exec_arn]
        super().delete_state_machine(arn)

    def executions_of(self, arn: str) -> Sequence[LocalExecution]:
        """Return the executions of a machine, or of one version or alias of it."""
        wanted = self.target(arn)
        qualified: Callable[[Target], str | None] = (
            (lambda one: one.alias) if wanted.alias else (lambda one: one.version if wanted.version else None)
        )
        return [
            execution
            for execution in self.standard.values()
            if execution.target.machine.arn == wanted.machine.arn and qualified(execution.target) == qualified(wanted)
        ]

    def describe_map_run(self, map_run_arn: str) -> dict[str, Any]:
        """Describe a Map Run; moto answers 500 for one that does not exist.

        Raises:
            RefusedError: ResourceNotFound.
        """
        for execution in self.standard.values():
            record: Any = execution.map_run(map_run_arn)
            if record is not None:
                return dict(record.describe())
        raise RefusedError("ResourceNotFound", f"Resource not found: '{map_run_arn}'")

    def token(self, name: str) -> Token:
        """Return a task token that was issued.

        Raises:
            RefusedError: InvalidToken.
        """
        if name not in self.tokens:
            raise RefusedError("InvalidToken", "Invalid Token: 'Invalid token'")
        return self.tokens[name]

    def answer(self, token: str, outcome: CallbackOutcome) -> None:
        """Deliver an answer to the waiting state; moto accepts late answers, and reports ended tokens as InvalidToken.

        Raises:
            RefusedError: InvalidToken, TaskTimedOut.
        """
        if not self.token(token).answer(outcome):
            raise too_late()


def too_late() -> RefusedError:
    """Return the error for a token whose state no longer waits."""
    return RefusedError("TaskTimedOut", "Task Timed Out: 'Provided task does not exist anymore'")


def _same(found: LocalExecution, text: str) -> LocalExecution:
    """Return the existing execution with the name, if it still runs and has the same input.

    Raises:
        RefusedError: ExecutionAlreadyExists.
    """
    if found.is_running and found.execution_input == text:
        return found
    raise RefusedError("ExecutionAlreadyExists", f"Execution Already Exists: '{found.exec_arn}'")


STORES = BackendDict(Store, "stepfunctions")
