"""The workflows of an API as drafts of tools, with the inputs that the API lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineError
from mcp_workflows.kit.definition import Inputs
from mcp_workflows.kit.expressions import Scope, as_list, as_object, lenient
from mcp_workflows.kit.reply_reader import form_of
from mcp_workflows.kit.tooling import Discovered
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import Detail, Workflows
from mcp_workflows_http.reply import Reply
from mcp_workflows_http.settings import HttpSettings

_MOST: Final = 200  # workflows
_MOST_VALUES: Final = 100_000  # in a file


async def discover(
    client: ApiClient, settings: HttpSettings, how: Workflows, named: Collection[str] = ()
) -> Sequence[Discovered]:
    """Return the workflows in the order of the API.

    Raises:
        EngineRefused, EngineUnavailable: the workflows cannot be listed.
    """
    scope, found = Scope(names={"vars": settings.vars}), list[Discovered]()
    async for item in client.items(how, scope):
        each = await _with_details(client, how, scope | {"item": item})
        if how.when is not None and not lenient(partial(each.is_true, how.when)):
            continue
        if workflow := _text(how.workflow, each):
            found.append(_discovered(how, workflow, each))
        if len(found) == _MOST:
            break
    return found


def _discovered(how: Workflows, workflow: str, scope: Scope) -> Discovered:
    options = None if how.options is None else as_object(lenient(partial(scope.value, how.options)))
    return Discovered(
        workflow=workflow,
        title=_text(how.title, scope),
        description=_text(how.description, scope),
        input=_input(how.input, scope),
        options={} if options is None else {"options": options},
    )


async def _with_details(client: ApiClient, how: Workflows, scope: Scope) -> Scope:
    more: dict[str, JSON] = {}
    for name, detail in how.more.items():
        try:
            reply = await client.send(detail.request, scope)
        except EngineError:  # its other details are enough for a draft
            continue
        more = {**more, name: {**reply.as_json(), "body": _body(detail, reply)}}
        scope |= {"more": more}
    return scope


def _body(detail: Detail, reply: Reply) -> JSON:
    if not reply.ok:
        return None
    if not detail.yaml:
        return reply.body
    try:
        found: JSON = next(iter(YAML(typ="safe").load_all(reply.text)), None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    except (YAMLError, ValueError, RecursionError):
        return None
    return found if sum(1 for _ in islice(_values(found), _MOST_VALUES)) < _MOST_VALUES else None


def _values(value: JSON) -> Iterator[JSON]:
    """Yield all values in it; a YAML alias can stand for very many."""
    yield value
    for each in as_list(value) or (as_object(value) or {}).values():
        yield from _values(each)


def _input(how: Inputs | str | None, scope: Scope) -> Mapping[str, JSON] | None:
    """Return the JSON Schema of the inputs, or None if the API does not list them."""
    if how is None or isinstance(how, Inputs):
        return None if how is None else form_of(how, scope)
    return as_object(lenient(partial(scope.value, how)))


def _text(source: str | None, scope: Scope) -> str | None:
    return None if source is None else lenient(partial(scope.text, source)) or None
