"""Corrections of moto's Amazon States Language: Choice states, texts in intrinsic functions, timestamps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from moto.stepfunctions.parser.api import HistoryEventType
from moto.stepfunctions.parser.asl.component.common.assign.assign_decl import AssignDecl
from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import FailureEvent, FailureEventException
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import StatesErrorName
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import StatesErrorNameType
from moto.stepfunctions.parser.asl.component.common.string.string_expression import (
    StringContextPath,
    StringIntrinsicFunction,
    StringVariableSample,
)
from moto.stepfunctions.parser.asl.component.intrinsic.argument.argument import ArgumentLiteral
from moto.stepfunctions.parser.asl.component.intrinsic.function.statesfunction.generic.string_format import StringFormat
from moto.stepfunctions.parser.asl.component.state.choice.choice_rule import ChoiceRule
from moto.stepfunctions.parser.asl.component.state.choice.comparison.comparison_operator_type import (
    ComparisonOperatorType,
)
from moto.stepfunctions.parser.asl.component.state.choice.comparison.comparison_variable import ComparisonVariable
from moto.stepfunctions.parser.asl.component.state.choice.comparison.operator.factory import OperatorFactory
from moto.stepfunctions.parser.asl.component.state.choice.comparison.operator.implementations.is_operator import (
    IsTimestamp,
)
from moto.stepfunctions.parser.asl.component.state.choice.comparison.variable import NoSuchVariable
from moto.stepfunctions.parser.asl.component.state.choice.state_choice import StateChoice
from moto.stepfunctions.parser.asl.component.state.wait.wait_function.timestamp import Timestamp
from moto.stepfunctions.parser.asl.parse.intrinsic.intrinsic_parser import IntrinsicParser
from moto.stepfunctions.parser.asl.parse.intrinsic.preprocessor import Preprocessor as IntrinsicPreprocessor
from moto.stepfunctions.parser.asl.parse.preprocessor import Preprocessor

from mcp_workflows_stepfunctions_local.patches import replace, require, wrap

_PLACE_OR_ESCAPE: Final = re.compile(r"\{\}|\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_CONTROLS: Final = {ord(control): f"\\{letter}" for letter, control in _ESCAPES.items()}  # moto's lexer accepts none

_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT(?!24)\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def install() -> None:
    """Apply the corrections to moto."""
    replace(ComparisonVariable, "_eval_body", _compare)
    wrap(StringVariableSample, "_eval_body", _read_variable)
    wrap(Preprocessor, "visitChoice_rule_comparison_variable", _keep_assign)
    replace(ChoiceRule, "_eval_body", _try_rule)
    replace(StateChoice, "_eval_state", _choose)
    replace(StateChoice, "_eval_state_output", _leave_choice)
    replace(Preprocessor, "visitString_intrinsic_function", _read_function)
    replace(IntrinsicPreprocessor, "visitFunc_arg_string", _read_text)
    replace(IntrinsicPreprocessor, "visitFunc_arg_float", _read_float)
    require(StringFormat, "_to_str_repr")
    replace(StringFormat, "_eval_body", _format)
    replace(IsTimestamp, "string_to_timestamp", staticmethod(parse_timestamp))
    require(Timestamp, "_create_failure_event")
    replace(Timestamp, "_from_timestamp_string", staticmethod(parse_timestamp))
    replace(Timestamp, "_get_wait_seconds", _wait_seconds)


def failure(env: Any, error: StatesErrorNameType, cause: str) -> FailureEventException:
    """Return the exception that fails a state with this error; Retry and Catch see its name."""
    details: Any = {"taskFailedEventDetails": {"error": error.to_name(), "cause": cause}}
    return FailureEventException(
        FailureEvent(
            env=env,
            error_name=StatesErrorName(typ=error),
            event_type=HistoryEventType.TaskFailed,
            event_details=details,
        )
    )


def _compare(comparison: Any, env: Any) -> None:
    """Evaluate a comparison. Only IsPresent accepts a missing variable; moto evaluates all others to false.

    Moto swaps the sides if the right one is a variable, and searches a path into the context object in the input.
    """
    function, sampler = comparison.comparison_function, comparison.variable.string_sampler
    comparison.variable.eval(env)
    left, operator = env.stack[-1], function.operator_type
    if isinstance(left, NoSuchVariable) and operator is not ComparisonOperatorType.IsPresent:
        path = getattr(sampler, "context_object_path", sampler.literal_value)
        cause = f"Invalid path '{path}': The choice state's condition path references an invalid value."
        raise failure(env, StatesErrorNameType.StatesRuntime, cause)
    right = getattr(function, "string_variable_sample", None)
    if operator.name.endswith("Path") and str(function.value).startswith("$$"):
        right = StringContextPath(function.value)
    if right is None:
        function.eval(env)
        return
    env.stack.pop()
    right.eval(env)
    env.stack.append(left)
    OperatorFactory.get(operator).eval(env=env, value="$")  # the value below `left`
    del env.stack[-2]


def _read_variable(read: Callable[..., None]) -> Callable[..., None]:
    """Fail for a variable without a value or without the field; moto reads null."""

    def eval_body(sampler: Any, env: Any) -> None:
        read(sampler, env)
        if env.stack[-1] is None:
            StringVariableSample(sampler.query_language_mode, f"$exists({sampler.expression})").eval(env)
            if not env.stack.pop():
                raise failure(env, StatesErrorNameType.StatesRuntime, f"Invalid path '{sampler.expression}'")

    return eval_body


def _keep_assign(visit: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the Assign of a rule in JSONPath, which moto drops."""

    def visit_rule(preprocessor: Any, ctx: Any) -> Any:
        rule = visit(preprocessor, ctx)
        parts = map(preprocessor.visit, ctx.children)
        rule.assign = rule.assign or next((part for part in parts if isinstance(part, AssignDecl)), None)
        return rule

    return visit_rule


def _try_rule(rule: Any, env: Any) -> None:
    """Evaluate a rule, and after a match its Assign and Output, which moto evaluates with `true` as the input."""
    rule.comparison.eval(env)
    if env.stack[-1]:
        matched = env.stack.pop()
        _apply(env, rule.assign, rule.output)
        env.stack.append(matched)


def _choose(state: Any, env: Any) -> None:
    """Leave the name of the next state on the stack; Assign and Output of the state belong only to its Default."""
    for rule in state.choices_decl.rules:
        rule.eval(env)
        if env.stack.pop():
            env.stack.append(rule.next_stmt.name)
            return
    if state.default_state is None:
        cause = f"No rule of the Choice state '{state.name}' matches, and it has no Default."
        raise failure(env, StatesErrorNameType.StatesNoChoiceMatched, cause)
    _apply(env, state.assign_decl, state.output)
    env.stack.append(state.default_state.state_name)


def _apply(env: Any, *parts: Any) -> None:
    for part in parts:
        if part:
            part.eval(env)


def _leave_choice(state: Any, env: Any) -> None:
    """Go to the chosen state; moto derives from its name whether the Default was taken."""
    chosen = env.stack.pop()
    if state.output_path:
        state.output_path.eval(env=env)
    env.next_state_name = chosen


def _read_function(_preprocessor: Any, ctx: Any) -> StringIntrinsicFunction:
    """Read an intrinsic function from its decoded JSON text; moto mistakes JSON's escapes for the function's."""
    text = json.loads(ctx.getText()).translate(_CONTROLS)
    function, _ = IntrinsicParser.parse(text)
    return StringIntrinsicFunction(intrinsic_function_derivation=text, function=function)


def _read_text(_preprocessor: Any, ctx: Any) -> Any:
    """Read a text in single quotes, and keep its source for States.Format."""
    source: str = ctx.getText()[1:-1]
    literal: Any = ArgumentLiteral(definition_value=_PLACE_OR_ESCAPE.sub(_unescape, source))
    literal.source = source
    return literal


def _read_float(_preprocessor: Any, ctx: Any) -> ArgumentLiteral:
    """Read a number with a fraction; moto fails."""
    return ArgumentLiteral(definition_value=float(ctx.getText()))


def _unescape(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else _ESCAPES.get(found[1], found[1])


def _format(function: Any, env: Any) -> None:
    """Evaluate States.Format; moto passes the template to Python's str.format, which fails at escapes and braces."""
    function.argument_list.eval(env=env)
    template, *values = env.stack.pop()
    source: str = getattr(function.argument_list.arguments[0], "source", None) or template.replace("\\", "\\\\")
    texts = [function._to_str_repr(value) for value in values]  # noqa: SLF001 moto's own
    places = sum(found[1] is None for found in _PLACE_OR_ESCAPE.finditer(source))
    if places != len(texts):
        cause = f"States.Format has {places} places {{}} and {len(texts)} values"
        raise failure(env, StatesErrorNameType.StatesIntrinsicFailure, cause)
    rest = iter(texts)
    env.stack.append(_PLACE_OR_ESCAPE.sub(lambda found: next(rest) if found[1] is None else _unescape(found), source))


def parse_timestamp(text: Any) -> datetime | None:
    """Return the time of a timestamp in the Amazon States Language's profile of RFC 3339, or None."""
    try:
        return datetime.fromisoformat(text) if _TIMESTAMP.fullmatch(text) else None
    except (TypeError, ValueError):  # not a text, or no such day
        return None


def _wait_seconds(wait: Any, env: Any) -> int:
    """Return the seconds until a timestamp, rounded up; moto reads it as local time."""
    wait.string.eval(env=env)
    text = env.stack.pop()
    until = parse_timestamp(text)
    if until is None:
        raise FailureEventException(wait._create_failure_event(env, text))  # noqa: SLF001 moto's own
    return math.ceil((until - datetime.now(tz=UTC)).total_seconds())
