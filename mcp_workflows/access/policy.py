"""The access rules of a tool by verb, and the check of a principal against them; pure.

Without rules, every caller may call a tool, and a task is accessible to its owner alone. A tool with rules denies
everything else, even to the owner of a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mcp_workflows.access.principal import Principal, claim_name, claim_value, person_of


class Verb(StrEnum):
    """An action of a principal on a tool or on its tasks."""

    CALL = "call"
    SEE = "see"
    ANSWER = "answer"
    CANCEL = "cancel"
    ACT = "act"


Scalar: TypeAlias = str | int | float | bool
_CLAIMS: Final = "principal.claims."
CallerValue: TypeAlias = Annotated[str, Field(pattern=r"^principal\.(subject|client|claims\..+)$")]
"""A value of the caller, in the syntax of templates."""


class PrincipalMatch(BaseModel):
    """A match of principals: all given fields must be equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str | None = Field(default=None, description="The issuer of the token, exactly.")
    subject: str | None = Field(default=None, description="The subject of the token. It is unique only per issuer.")
    client: str | None = Field(default=None, description="The OAuth client of the request.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.subject is None and self.client is None:
            raise ValueError("name a subject or a client; to name a whole issuer, use `issuer:` beside `scopes:`")
        return self

    def fits(self, principal: Principal) -> bool:
        """True if the principal matches."""
        given = {"issuer": self.issuer, "subject": self.subject, "client": self.client}
        return principal.identified and all(
            getattr(principal, name) == value for name, value in given.items() if value is not None
        )


class Rule(BaseModel):
    """A rule that allows a verb to a principal: all given conditions must match.

    It gives access to the principal's own tasks, unless it sets `not_owner` or `any_owner`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scopes: list[str] = Field(
        default_factory=list, min_length=1, description="Scopes that the token must have, all of them."
    )
    claims: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict,
        min_length=1,
        description="Claims that the token must have. Each must equal the value or one of the values, or be a "
        "list that contains one. A nested claim has a path: `realm_access.roles`.",
    )
    principals: list[PrincipalMatch] = Field(
        default_factory=list[PrincipalMatch], min_length=1, description="Principals, one of which must match."
    )
    issuer: str | None = Field(default=None, description="The issuer that the token must have.")
    not_owner: bool = Field(default=False, description="Require a subject other than the task's owner, in any client.")
    any_owner: bool = Field(default=False, description="Apply to tasks of every owner.")
    arguments: dict[str, CallerValue] = Field(
        default_factory=dict,
        min_length=1,
        description="With `act`, on a tool that addresses executions by id: arguments that must equal a value of "
        "the caller, such as `{user: principal.subject}`.",
    )

    @field_validator("claims", mode="before")
    @classmethod
    def _by_paths(cls, value: object) -> object:
        for name, wanted in _entries(value).items():
            claim_name(str(name))
            for inside in _entries(wanted):
                part = str(inside).replace(".", r"\.")
                raise ValueError(f"a nested claim needs a path: write {name}.{part}: and its value")
        return value

    @model_validator(mode="after")
    def _of_one_mind(self) -> Self:
        if self.not_owner and self.any_owner:
            raise ValueError("not_owner and any_owner: remove one of the two")
        return self

    def fits(self, principal: Principal) -> bool:
        """True if the principal matches the rule, regardless of the task's owner."""
        return (
            principal.scopes.issuperset(self.scopes)
            and (self.issuer is None or self.issuer == principal.issuer)
            and (not self.principals or any(whom.fits(principal) for whom in self.principals))
            and all(_claims(principal, name, value) for name, value in self.claims.items())
        )

    def binds(self, named: Set[str]) -> bool:
        """True if the rule restricts the execution that these arguments name: to the caller's own, or to any."""
        return self.any_owner or self.arguments.keys() >= named

    def fits_arguments(self, principal: Principal, arguments: Mapping[str, Any]) -> bool:  # Any: JSON
        """True if the principal matches, and each argument that the rule binds is the principal's own value."""
        own = all(_is_callers(principal, path, arguments.get(name)) for name, path in self.arguments.items())
        return self.fits(principal) and own

    def fits_owner(self, principal: Principal, owner: str) -> bool:
        """True if the rule applies to tasks of this owner."""
        if self.any_owner:
            return principal.identified
        if self.not_owner:
            return principal.identified and principal.person != person_of(owner)
        return principal.id == owner


def _is_callers(principal: Principal, path: str, value: object) -> bool:
    """True if an argument equals the caller's value at this path: a text or an integer, of the same type."""
    _, _, name = path.partition(".")
    claim = name.removeprefix("claims.")
    found = claim_value(principal.claims, claim) if claim != name else getattr(principal, name)
    return type(found) in {str, int} and found != "" and type(found) is type(value) and found == value


def _entries(value: object) -> Mapping[str, object]:
    """Return the entries of a mapping; none of any other value, which pydantic refuses."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _claims(principal: Principal, name: str, wanted: Scalar | list[Scalar]) -> bool:
    """True if the claim has a wanted value. One match is enough for a list such as `groups`; `true` is not 1."""
    found = claim_value(principal.claims, name)
    words = cast("list[object]", found) if isinstance(found, list) else [found]
    asked = wanted if isinstance(wanted, list) else [wanted]
    return any(type(one) is type(other) and one == other for one in words for other in asked)


def one_or_more(value: Any) -> Any:  # Any: pydantic refuses other values
    """Wrap a single rule in a list."""
    return [value] if isinstance(value, Mapping | Rule) else value


_OF_TASKS: Final = "The callers who may see, answer, cancel or act on the tool's tasks. `{}`: the owner."


class Allow(BaseModel):
    """The rules of a tool: who may call it, and see, answer, cancel and act on its tasks. An absent verb is denied."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call: list[Rule] = Field(
        default_factory=list[Rule], description="The callers who may call the tool. `{}`: every admitted caller."
    )
    see: list[Rule] = Field(default_factory=list[Rule], description=_OF_TASKS)
    answer: list[Rule] = Field(default_factory=list[Rule], description=_OF_TASKS)
    cancel: list[Rule] = Field(default_factory=list[Rule], description=_OF_TASKS)
    act: list[Rule] = Field(default_factory=list[Rule], description=_OF_TASKS)

    @field_validator("call", "see", "answer", "cancel", "act", mode="before", json_schema_input_type=Rule | list[Rule])
    @classmethod
    def _rule_alone(cls, value: Any) -> Any:  # Any: see above
        return one_or_more(value)

    @model_validator(mode="after")
    def _calls_have_no_owner(self) -> Self:
        if any(rule.not_owner or rule.any_owner for rule in self.call):
            raise ValueError("call: not_owner and any_owner are about tasks, and a call has none yet")
        if any(rule.arguments for verb in Verb if verb is not Verb.ACT for rule in self.rules(verb)):
            raise ValueError("`arguments` of a rule works with `act` only")
        return self

    @property
    def asks_others(self) -> bool:
        """True if a principal other than the owner may answer the questions of the tool's tasks."""
        return any(rule.not_owner or rule.any_owner for rule in self.answer)

    @property
    def loose(self) -> Iterator[str]:
        """The verbs with rules that name a principal without its issuer: the same name can exist at several issuers."""
        for verb in Verb:
            for rule in self.rules(verb):
                if rule.issuer is None and (rule.arguments or any(whom.issuer is None for whom in rule.principals)):
                    yield verb.value

    @property
    def claiming(self) -> Iterator[str]:
        """The verbs with rules that trust claims of any issuer, even of the least trusted one."""
        for verb in Verb:
            if any(rule.claims and rule.issuer is None and not _issuers(rule) for rule in self.rules(verb)):
                yield verb.value

    @property
    def claims(self) -> frozenset[str]:
        """The claims, or paths of claims, that the rules use."""
        rules = [rule for verb in Verb for rule in self.rules(verb)]
        bound = {path.removeprefix(_CLAIMS) for rule in rules for path in rule.arguments.values() if _CLAIMS in path}
        return frozenset(name for rule in rules for name in rule.claims) | bound

    def rules(self, verb: Verb) -> Sequence[Rule]:
        """Return the rules of one verb; a single match is enough."""
        found: Sequence[Rule] = getattr(self, verb.value)
        return found


def _issuers(rule: Rule) -> bool:
    """True if all principals of the rule have an issuer."""
    return bool(rule.principals) and all(whom.issuer is not None for whom in rule.principals)


def permits(allow: Allow | None, verb: Verb, principal: Principal, owner: str | None) -> bool:
    """True if the rules allow the verb; `owner` is the owner of the task, None before it exists."""
    if allow is None:
        return owner is None or principal.id == owner
    fitting = [rule for rule in allow.rules(verb) if rule.fits(principal)]
    return any(owner is None or rule.fits_owner(principal, owner) for rule in fitting)


def permits_message(
    allow: Allow | None,
    principal: Principal,
    arguments: Mapping[str, Any],  # Any: JSON
    named: Set[str],
) -> bool:
    """True if a rule of `act` lets the principal send a message to the execution that the arguments `named`
    identify."""
    rules = [] if allow is None else allow.act
    return any(rule.binds(named) and rule.fits_arguments(principal, arguments) for rule in rules)


def reaches_others(allow: Allow | None, principal: Principal) -> bool:
    """True if this principal may have access to tasks of other owners."""
    rules = [] if allow is None else [*allow.see, *allow.answer, *allow.cancel, *allow.act]
    return any((rule.not_owner or rule.any_owner) and rule.fits(principal) for rule in rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRequest:
    """A question to an `Authorizer`: may this principal use this verb?"""

    principal: Principal
    verb: Verb
    tool: str
    owner: str | None = None  # of the task; None for a call
    task_id: str | None = None
    arguments: Mapping[str, Any] | None = None  # Any: JSON; of a call; None if the tool is only listed


Authorizer: TypeAlias = Callable[[AccessRequest], Awaitable[bool]]
"""Custom rules (OPA, Cedar), checked after the rules of the tool; both must allow. An error counts as a denial."""
