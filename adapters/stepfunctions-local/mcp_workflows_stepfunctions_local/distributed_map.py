"""AWS's distributed Map: Express children, batches of items, and tolerated failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from moto.stepfunctions.parser.asl.antlr.runtime.ASLLexer import ASLLexer
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import StatesErrorNameType
from moto.stepfunctions.parser.asl.component.state.exec.state_map.item_selector import ItemSelector
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration import (
    distributed_iteration_component as iteration,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.itemprocessor import (
    distributed_item_processor_worker as item_processor,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.iterator import (
    distributed_iterator_worker as iterator,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.state_map import StateMap
from moto.stepfunctions.parser.asl.component.state.exec.state_map.tolerated_failure import (
    ToleratedFailureCountStringJSONata,
)
from moto.stepfunctions.parser.asl.eval.program_state import ProgramEnded
from moto.stepfunctions.parser.asl.parse.preprocessor import Preprocessor
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.parser.asl.utils.json_path import extract_json

from mcp_workflows_stepfunctions_local.execution import COMPACT
from mcp_workflows_stepfunctions_local.language import failure
from mcp_workflows_stepfunctions_local.patches import require, wrap
from mcp_workflows_stepfunctions_local.validation import MAX_BYTES

_BATCHER: Final = '"ItemBatcher"'
_WORDS: Final[Mapping[str, int]] = {'"EXPRESS"': ASLLexer.STANDARD, _BATCHER: ASLLexer.ITEMSELECTOR}


class ItemBatcher(ItemSelector):
    """The ItemBatcher of a Map state: a template like ItemSelector."""


class Batch(dict[str, Any]):
    """The input of a child execution with several items."""


def install() -> None:
    """Add the fields of a distributed Map that moto lacks."""
    wrap(ASLLexer, "nextToken", _read_token)
    wrap(Preprocessor, "visitItem_selector_decl", _read_batcher)
    wrap(Preprocessor, "visitTolerated_failure_count_string_jsonata", _read_count)
    wrap(StateMap, "from_state_props", _keep_batcher)
    require(iteration.DistributedIterationComponent, "_create_worker")
    wrap(iteration.DistributedIterationComponent, "_map_run", _run_batches)
    for worker in (item_processor.DistributedItemProcessorWorker, iterator.DistributedIteratorWorker):
        require(worker, "_eval_input")
        wrap(worker, "_eval_job", _run_child)


def _read_token(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Read words that moto's grammar lacks as words with the same syntax; their text is unchanged."""

    def next_token(lexer: Any) -> Any:
        token = read(lexer)
        if token.type == ASLLexer.STRING:
            token.type = _WORDS.get(token.text, ASLLexer.STRING)
        elif token.type == ASLLexer.INT and lexer.key == ASLLexer.TOLERATEDFAILUREPERCENTAGE:
            token.type = ASLLexer.NUMBER
        elif token.type == ASLLexer.COLON:
            return token
        lexer.key = token.type
        return token

    return next_token


def _read_batcher(visit: Callable[..., Any]) -> Callable[..., Any]:
    """Distinguish an ItemBatcher from an ItemSelector."""

    def visit_selector(preprocessor: Any, ctx: Any) -> Any:
        selector = visit(preprocessor, ctx)
        is_batcher = ctx.children[0].getText() == _BATCHER
        return ItemBatcher(selector.template_value_object) if is_batcher else selector

    return visit_selector


def _read_count(visit: Callable[..., Any]) -> Callable[..., Any]:
    """Read a ToleratedFailureCount in JSONata, which moto mistakes for the percentage."""

    def visit_count(preprocessor: Any, ctx: Any) -> ToleratedFailureCountStringJSONata:
        return ToleratedFailureCountStringJSONata(visit(preprocessor, ctx).string_jsonata)

    return visit_count


def _keep_batcher(read: Callable[..., None]) -> Callable[..., None]:
    def from_state_props(state: Any, props: Any) -> None:
        read(state, props)
        state.iteration_component.batcher = props.get(ItemBatcher)

    return from_state_props


def _run_batches(run: Callable[..., None]) -> Callable[..., None]:
    """Run a child per batch, and fail the Map Run if more items failed than are tolerated."""

    def map_run(component: Any, env: Any, eval_input: Any) -> None:
        if component.batcher:
            items = _select_items(component, env, eval_input, env.stack.pop())
            component.batcher.eval(env)
            env.stack.append(_make_batches(items, env.stack.pop(), env.stack[-1]))
        run(component, env=env, eval_input=eval_input)
        record = eval_input.map_run_record
        items = record.item_counter
        failed = items.failed.get() + items.timed_out.get()
        limits = 100 * record.tolerated_failure_count, record.tolerated_failure_percentage * items.total.get()
        if 100 * failed > min([limit for limit in limits if limit], default=0):  # 0 is no limit if there is another
            cause = "The specified tolerated failure threshold was exceeded"
            raise failure(env, StatesErrorNameType.StatesExceedToleratedFailureThreshold, cause)

    return map_run


def _select_items(component: Any, env: Any, eval_input: Any, items: Sequence[Any]) -> list[Any]:
    """Apply ItemSelector before the items are batched; moto applies it in the child."""
    worker = component._create_worker(env, eval_input, None)  # noqa: SLF001 moto's own
    selected: list[Any] = []
    for index, item in enumerate(items):
        frame = env.open_inner_frame()
        frame.states.context_object.context_object_data["Map"] = {"Item": {"Index": index, "Value": item}}
        frame.states.reset(item)
        worker._eval_input(frame)  # noqa: SLF001 moto's own
        env.delete_frame(frame)
        selected.append(frame.states.get_input())
    eval_input.item_selector = eval_input.parameters = None
    return selected


def _make_batches(items: Sequence[Any], config: Mapping[str, Any], given: Any) -> list[Batch]:
    """Fill batches up to the limits of an ItemBatcher; a batch has at least one item."""
    most, most_bytes = (
        extract_json(config[f"{name}Path"], given) if f"{name}Path" in config else config.get(name, default)
        for name, default in (("MaxItemsPerBatch", len(items)), ("MaxInputBytesPerBatch", MAX_BYTES))
    )
    common = {"BatchInput": config["BatchInput"]} if "BatchInput" in config else {}
    batches: list[Batch] = []
    size = 0
    for item in items:
        more = _size(item) + 1  # and a comma
        if not batches or len(batches[-1]["Items"]) >= most or size + more > most_bytes:
            batches.append(Batch(Items=[], **common))
            size = _size(batches[-1]) - 1
        batches[-1]["Items"].append(item)
        size += more
    return batches


def _size(value: Any) -> int:
    return len(to_json_str(value, separators=COMPACT).encode())


def _run_child(run: Callable[..., None]) -> Callable[..., None]:
    """Count the items of a batch; moto counts the batch as one."""

    def run_child(worker: Any, **given: Any) -> None:
        run(worker, **given)
        batch = given["job"].job_input
        if isinstance(batch, Batch):
            items = worker._map_run_record.item_counter  # noqa: SLF001 moto's own
            is_success = isinstance(given["env"].program_state(), ProgramEnded)
            ended = (items.succeeded, items.results_written) if is_success else (items.failed,)
            for counter in (items.total, *ended):
                counter.count(len(batch["Items"]) - 1)

    return run_child
