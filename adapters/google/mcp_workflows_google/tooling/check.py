"""Checks of the engine, of a workflow and of its source, and the custom role that tools need.

Sources: https://cloud.google.com/workflows/docs/access-control; Google grants roles on projects, not on workflows, so a
role cannot be limited to some workflows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

from mcp_workflows.adapter import JSON, Finding, closest
from mcp_workflows.errors import EngineError
from mcp_workflows.kit.tooling import Use
from mcp_workflows_google.client import Client
from mcp_workflows_google.errors import PermissionDenied
from mcp_workflows_google.gates import gate_step
from mcp_workflows_google.outcome import RETRY_ROUTINE
from mcp_workflows_google.resources import WorkflowName, WorkflowResource
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.tooling.definition import AWAITS, Definition, Routine, draft, read_definition
from mcp_workflows_google.tooling.discover import ACTIVE

_UNAVAILABLE: Final = 2  # of Workflow.State
_STATES: Final[Mapping[int, str]] = {
    0: "has no visible state",
    _UNAVAILABLE: "is UNAVAILABLE: Google cannot or may not use its encryption key",
}


_CHECK: Final = "check project, location, endpoint and the credentials"
_CHECK_REFUSED: Final = "if it is, check emulator"  # after a message that asks whether the engine runs
_CHECK_LOCAL: Final = "start the local engine (python -m mcp_workflows_google_local), or check emulator and location"


async def check_engine(client: Client, settings: GoogleSettings) -> Finding:
    """Check that Google accepts the credentials; a denied permission to list workflows is enough."""
    try:
        place = await client.place()
        await client.workflows()
    except PermissionDenied as denied:
        if settings.emulator:
            return Finding(ok=False, text=str(denied), hint="a local engine serves one project: correct project here")
        place = await client.place()  # the credentials are valid; each tool's permissions are checked with the tool
    except EngineError as error:
        local = _CHECK_REFUSED if "connection refused" in str(error) else _CHECK_LOCAL
        return Finding(ok=False, text=str(error), hint=local if settings.emulator else _CHECK)
    answers = f"Google Cloud Workflows answers in {place.name}"
    if settings.inbound is None:
        return Finding(ok=True, text=f"{answers}; without inbound no workflow can ask by mcp_elicit")
    accounts = ", ".join(settings.inbound.accounts)
    return Finding(ok=True, text=f"{answers}; questions are accepted from {accounts}")


async def check_workflow(client: Client, workflow: str) -> Finding:
    """Check that the workflow exists, accepts executions, and that they can be listed.

    Without the permission to list, a start with a lost reply cannot be found.
    """
    try:
        name = WorkflowName.parse(workflow, await client.place())
        found = await client.workflow(name)
        await client.executions(name, limit=1)
    except EngineError as error:
        return Finding(ok=False, text=str(error))
    if found.state == ACTIVE:
        return Finding(ok=True, text=f"workflow {name.workflow} is there, revision {found.revision or 'unknown'}")
    state = _STATES.get(found.state, f"has a state that is not known yet ({found.state})")
    why = f": {found.state_error}" if found.state_error else ""
    return Finding(ok=False, text=f"workflow {name.workflow} {state}{why}", hint="see it in the console")


ELICIT: Final = "mcp_elicit"
CLAIM: Final = "mcp_claim"
SHIPPED: Final = frozenset({ELICIT, CLAIM, RETRY_ROUTINE})
URL: Final = "MCP_WORKFLOWS_URL"  # name in `user_env_vars` that both subworkflows read
AUDIENCE: Final = "MCP_WORKFLOWS_AUDIENCE"
"""See `docs/engines/google-contract.md`."""


async def verify(
    client: Client, settings: GoogleSettings, workflow: str, gates: Mapping[str, Mapping[str, JSON]]
) -> list[Finding]:
    """Verify a workflow: each missing part is a problem; an unreadable source is unknown, not a problem."""
    try:
        found = await client.workflow(WorkflowName.parse(workflow, await client.place()))
    except EngineError as error:
        return [Finding(ok=None, text=f"its steps could not be verified: {error}")]
    read = await read_definition(found.source)
    if read is None:
        return [Finding(ok=None, text="its steps could not be verified: its source cannot be read")]
    return [*_gates(read, gates), *_inbound(read, found, settings), *_suggestion(read)]


def _gates(read: Definition, gates: Mapping[str, Mapping[str, JSON]]) -> Iterator[Finding]:
    first: dict[tuple[str | None, ...], str] = {}
    for gate, words in gates.items():
        when = words.get("when")
        step, routine, method = gate_step(when), _word(when, "routine"), _word(when, "method")
        where = f"questions.{gate}.when"
        if first.setdefault((step, routine, method), gate) != gate:
            taken = f"{where}: step {step!r} already belongs to gate {first[step, routine, method]}"
            yield Finding(ok=False, text=taken, hint="remove one of the two")
        elif wrong := place_problem(read, routine, step):
            text, hint = wrong
            yield Finding(ok=False, text=f"{where}: {text}", hint=hint)
        elif method is not None and (wrong := _wrong_method(read, method)):
            text, hint = wrong
            yield Finding(ok=False, text=f"{where}.method: {text}", hint=hint)
        elif said := wait_problem(read, routine, step):
            yield Finding(ok=True, text=f"{where}: {said}")


def place_problem(read: Definition, routine: str | None, step: str) -> tuple[str, str] | None:
    """Return the problem with the place of a gate, and a suggestion, if there is one."""
    if routine is not None and routine not in read.routines:
        return f"there is no routine {routine!r}", _meant(routine, read.routines)
    steps = dict.fromkeys(sorted(each for found in _routines(read, routine) for each in found.steps))
    own = dict.fromkeys(each for each in steps if any(each in found.steps for found in _own(read)))
    inside = f" in {routine}" if routine else ""
    return None if step in steps else (f"there is no step {step!r}{inside}", _meant(step, own or steps))


def wait_problem(read: Definition, routine: str | None, step: str) -> str | None:
    """Return a remark on a step that does not itself wait for a callback."""
    if any(step in each.awaiting for each in _routines(read, routine)):
        return None
    waiting = ", ".join(sorted(frozenset[str]().union(*(each.awaiting for each in _own(read))))) or "none"
    return f"step {step!r} does not call {AWAITS} itself: it may never be asked about (steps that do: {waiting})"


def _wrong_method(read: Definition, method: str) -> tuple[str, str] | None:
    """Return the problem with the method of a gate, and a suggestion; None if an expression may set the method."""
    methods = frozenset[str]().union(*(routine.methods for routine in _own(read)))
    if method in methods or not methods or any("{" in each for each in (method, *methods)):
        return None
    return f"the workflow opens no callback of method {method}", f"it opens: {', '.join(sorted(methods))}"


def _routines(read: Definition, routine: str | None) -> Sequence[Routine]:
    return [read.routines[routine]] if routine else list(read.routines.values())


def _own(read: Definition) -> Sequence[Routine]:
    """Return the author's routines, without ours."""
    return [routine for name, routine in read.routines.items() if name not in SHIPPED]


def _word(when: JSON, key: str) -> str | None:
    """Return a word of a gate's `when`."""
    word = cast("Mapping[str, JSON]", when).get(key) if isinstance(when, Mapping) else None
    return None if word is None else str(word)


def _meant(name: str, there: Mapping[str, object]) -> str:
    meant = closest(name, there)
    return f"did you mean {meant!r}?" if meant else f"there are: {', '.join(there) or 'none'}"


def _inbound(read: Definition, found: WorkflowResource, settings: GoogleSettings) -> Iterator[Finding]:
    """Yield findings on the settings that a workflow needs to call the MCP server."""
    calling = [name for name in (ELICIT, CLAIM) if read.calls(name)]
    if not calling:
        return
    what = " and ".join(calling)
    if settings.inbound is None:
        text = f"it calls {what}, and the engine has no inbound"
        yield Finding(ok=False, text=text, hint="see: docs/engines/google-access.md")
        return
    if wrong := _wrong_url(found.env.get(URL)):
        hint = f"deploy it with --update-env-vars {URL}=https://THIS-SERVER/engines/ENGINE"
        yield Finding(ok=False, text=f"it calls {what}, and is deployed {wrong}", hint=hint)
    audience = found.env.get(AUDIENCE) or found.env.get(URL)
    if audience and audience != settings.inbound.audience:
        text = f"its tokens are for {audience} ({AUDIENCE}, or {URL}), and inbound.audience is another: all are refused"
        yield Finding(ok=False, text=text, hint=f"deploy it with {AUDIENCE}={settings.inbound.audience}")
    account = service_account_email(found.service_account)
    if account is not None and account not in settings.inbound.accounts:
        text = f"it runs as {account}, which is not among inbound.accounts: its requests are refused"
        yield Finding(ok=False, text=text, hint="add it there, or deploy the workflow with another service account")


def _wrong_url(url: str | None) -> str | None:
    """Return the problem with the URL of the MCP server in a workflow, if there is a visible one."""
    if not url:
        return f"without {URL}"
    if not url.startswith(("https://", "http://")):
        return f"with {URL}={url}, which is not a URL"
    if url.endswith("/"):
        return f"with {URL}={url}, which must not end in a slash"
    return None if re.search(r"/engines/[^/?#]+$", url) else f"with {URL}={url}, which is not the URL of an engine"


def service_account_email(written: str) -> str | None:
    """Return the email of a service account from Google's notation; None if it is missing or a number."""
    account = written.rpartition("/")[2]  # projects/P/serviceAccounts/EMAIL
    return account if "@" in account else None


def _suggestion(read: Definition) -> Iterator[Finding]:
    drafted = draft(read)
    if drafted is not None:
        fields = ", ".join(drafted["properties"])
        schema = "{type: object, properties: {" + ", ".join(f"{name}: {{}}" for name in drafted["properties"]) + "}}"
        yield Finding(ok=True, text=f"it reads {fields}", hint=f"its input may be (please correct it): {schema}")


def _starts(use: Use) -> bool:
    return not use.watches


_log = logging.getLogger(__name__)
GRANTS: Final[Mapping[str, Callable[[Use], bool]]] = {  # by permission: a test for the uses that need it
    "workflows.callbacks.list": lambda use: use.answers,
    "workflows.callbacks.send": lambda use: use.answers,
    "workflows.executions.cancel": lambda use: use.cancels or _starts(use),  # cancels duplicates
    "workflows.executions.create": _starts,
    "workflows.executions.get": lambda _: True,
    "workflows.executions.list": lambda _: True,  # finds lost starts; bulk status; ended executions
    "workflows.workflows.get": lambda _: True,  # `check`
}
ANYTHING: Final = Use(tool="", workflow="")  # the needs of a labelled workflow are unknown
LISTS: Final = "workflows.workflows.list"


def permissions(settings: GoogleSettings, uses: Sequence[Use]) -> Mapping[str, JSON]:
    """Return a custom role for these uses, and for `discover` if it is set, for `gcloud iam roles create --file`.

    With `impersonate` the role is for that account; the permission that its caller needs is logged.
    """
    found = settings.discover is not None
    all_uses = [*uses, ANYTHING] if found else uses
    needed = [permission for permission, is_needed in GRANTS.items() if any(map(is_needed, all_uses))]
    if settings.impersonate is not None:
        _log.warning(
            "this role is for %s; impersonators need roles/iam.serviceAccountTokenCreator on that account",
            settings.impersonate,
        )
    return {
        "title": "mcp-workflows",
        "description": "What mcp-workflows needs of Google Cloud Workflows for the tools of one workflows.yaml.",
        "stage": "GA",
        "includedPermissions": sorted([*needed, LISTS] if found else needed),
    }
