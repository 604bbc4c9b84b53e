"""The state machines, executions, activities and tokens of one account and Region."""

from __future__ import annotations

import importlib
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import moto.stepfunctions as moto_stepfunctions
from moto.core.base_backend import BackendDict
from moto.stepfunctions import models, responses
from moto.stepfunctions.models import StateMachine
from moto.stepfunctions.parser import models as parser_models
from moto.stepfunctions.parser.asl.eval.callback.callback import CallbackOutcome
from moto.stepfunctions.parser.models import StepFunctionsParserBackend

from mcp_workflows_stepfunctions.local.announcing import Announcer
from mcp_workflows_stepfunctions.local.asked import check_express, check_input, check_name
from mcp_workflows_stepfunctions.local.execution import LocalExecution, Target, now
from mcp_workflows_stepfunctions.local.patching import replace
from mcp_workflows_stepfunctions.local.refusing import RefusedError
from mcp_workflows_stepfunctions.local.tokens import Mailbox, Pool, Token
from mcp_workflows_stepfunctions.local.versions import target

announce = Announcer()


class Store(StepFunctionsParserBackend):
    """What moto keeps, and what it does not: executions by their ARN, tokens after their end, waiting activities."""

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.mailboxes: dict[str, Mailbox] = {}
        self.tokens: dict[str, Token] = {}
        self.standard: dict[str, LocalExecution] = {}
        self._turn = threading.RLock()

    @property
    def _url_module(self) -> Any:
        """Our answers; moto guesses the module from the name of the one this class is in."""
        return importlib.import_module("mcp_workflows_stepfunctions.local.urls")  # which imports this one

    def reset(self) -> None:
        """Forget everything; moto forgets executions and lets their threads run on."""
        for execution in list(self.standard.values()):
            execution.stop(now(), None, None)
        super().reset()

    def create_state_machine(self, name: str, definition: str, *args: Any, **more: Any) -> StateMachine:
        """As moto does it, which takes in Express machines what AWS does not, and another definition as the same.

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
        """As moto does it, with somewhere to put the tasks: moto has no store of them, so an activity state fails."""
        created = super().create_activity(name, *args, **more)
        self.mailboxes.setdefault(created.arn, Mailbox(created.arn, name))
        return created

    def start_execution(  # type: ignore[override]  # moto's returns what we replace
        self,
        state_machine_arn: str,
        name: str | None = None,
        execution_input: str | None = None,
        trace_header: Any = None,
    ) -> LocalExecution:
        """Start, or find the running execution of this name and input; moto calls one without a name "None".

        Raises:
            RefusedError: StateMachineDoesNotExist, InvalidName, InvalidExecutionInput, ExecutionAlreadyExists.
        """
        name, text = name or str(uuid.uuid4()), execution_input or "{}"
        check_name(name)
        check_input(text)
        with self._turn:
            wanted = self.target(state_machine_arn)
            arn = self._execution_arn(wanted, name)
            found = self.standard.get(arn)
            if found is not None:
                return same(found, text)
            execution = LocalExecution(
                target=wanted,
                pool=lambda: Pool(mailboxes=self.mailboxes, register=self.tokens),
                announce=announce,
                name=name,
                exec_arn=arn,
                account_id=self.account_id,
                region_name=self.region_name,
                start_date=now(),
                input_data=text,
                trace_header=trace_header,
            )
            if not execution.express:  # of Express executions AWS tells nothing, so they are not kept
                self.standard[arn] = execution
                self.machine(wanted.machine.arn).executions.append(execution)  # type: ignore[arg-type]
        execution.start()
        return execution

    def _execution_arn(self, wanted: Target, name: str) -> str:
        """Without version or alias, as AWS has it; names of Express executions need not be unique."""
        place = f"arn:{self.partition}:states:{self.region_name}:{self.account_id}"
        if wanted.machine.type == "EXPRESS":
            return f"{place}:express:{wanted.machine.name}:{name}:{uuid.uuid4()}"
        return f"{place}:execution:{wanted.machine.name}:{name}"

    def describe_execution(self, execution_arn: str) -> LocalExecution:  # type: ignore[override]  # ours
        """The execution of this ARN; moto shows those of Express machines as well.

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
        """What an ARN of a machine, a version or an alias starts.

        Raises:
            RefusedError: InvalidArn, StateMachineDoesNotExist.
        """
        self._validate_machine_arn(arn)
        return target(self.machine, arn)

    def machine(self, arn: str) -> StateMachine:
        """The machine of this ARN, which names no version.

        Raises:
            RefusedError: StateMachineDoesNotExist.
        """
        found = next((machine for machine in self.state_machines if machine.arn == arn), None)
        if found is None:
            raise RefusedError("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
        return found

    def delete_state_machine(self, arn: str) -> None:
        """Delete it and its executions; moto lets their threads run on."""
        for execution in [found for found in self.standard.values() if found.target.machine.arn == arn]:
            execution.stop(now(), None, None)
            del self.standard[execution.exec_arn]
        super().delete_state_machine(arn)

    def of_machine(self, arn: str) -> Sequence[LocalExecution]:
        """The executions of a machine, or of one version or alias of it."""
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
        """As moto does it, but for one that does not exist, of which moto says 500.

        Raises:
            RefusedError: ResourceNotFound.
        """
        for execution in self.standard.values():
            record: Any = execution.map_run(map_run_arn)
            if record is not None:
                return dict(record.describe())
        raise RefusedError("ResourceNotFound", f"Resource not found: '{map_run_arn}'")

    def token(self, name: str) -> Token:
        """A task token that was given out once.

        Raises:
            RefusedError: InvalidToken.
        """
        if name not in self.tokens:
            raise RefusedError("InvalidToken", "Invalid Token: 'Invalid token'")
        return self.tokens[name]

    def answer(self, token: str, outcome: CallbackOutcome) -> None:
        """Hand an answer to the state that waits for it; moto takes late ones, and says InvalidToken of ended ones.

        Raises:
            RefusedError: InvalidToken, TaskTimedOut.
        """
        if not self.token(token).answer(outcome):
            raise too_late()


def too_late() -> RefusedError:
    """The error of a token whose state does not wait any more."""
    return RefusedError("TaskTimedOut", "Task Timed Out: 'Provided task does not exist anymore'")


def same(found: LocalExecution, text: str) -> LocalExecution:
    """The execution that has the name already, if it still runs and has the same input.

    Raises:
        RefusedError: ExecutionAlreadyExists.
    """
    if found.running and found.execution_input == text:
        return found
    raise RefusedError("ExecutionAlreadyExists", f"Execution Already Exists: '{found.exec_arn}'")


STORES = BackendDict(Store, "stepfunctions")


def install() -> None:
    """Have everything in moto that asks for state machines ask here, also the tagging API."""
    replace(parser_models, "stepfunctions_parser_backends", STORES)
    for module in (models, responses, moto_stepfunctions):
        replace(module, "stepfunctions_backends", STORES)
