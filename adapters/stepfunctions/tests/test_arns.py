"""State machines and executions by their names."""

from __future__ import annotations

import pytest
from mcp_workflows_stepfunctions.arns import ExecutionArn, Place, machine_by_name, parse_machine
from mcp_workflows_stepfunctions.describe import Console
from mcp_workflows_stepfunctions.tooling.discover import same_workflow

from mcp_workflows.errors import EngineRefused

HERE = Place(partition="aws", region="eu-west-1", account="111122223333")
MACHINE = "arn:aws:states:eu-west-1:111122223333:stateMachine:orders"
EXECUTION = "arn:aws:states:eu-west-1:111122223333:execution:orders:mcp-1"


@pytest.mark.parametrize("qualifier", ["", ":3", ":PROD", ":blue-green_1.2"])
def test_a_machine_is_known_by_its_arn_and_by_its_name(qualifier: str) -> None:
    by_arn = parse_machine(f"{MACHINE}{qualifier}")
    assert by_arn == machine_by_name(f"orders{qualifier}", HERE)
    assert by_arn.arn == f"{MACHINE}{qualifier}"
    assert (by_arn.unqualified, by_arn.execution("mcp-1")) == (MACHINE, EXECUTION)


@pytest.mark.parametrize(
    "wrong",
    [
        "arn:aws:states:eu-west-1:111122223333:execution:orders:mcp-1",
        "arn:aws:lambda:eu-west-1:111122223333:function:orders",
        "arn:aws:states:eu-west-1:1111:stateMachine:orders",
        "arn:aws:states::111122223333:stateMachine:orders",
        f"{MACHINE} ",
        f"{MACHINE}\x1b[31m",
        MACHINE.replace("111122223333", "١١١١٢٢٢٢٣٣٣٣"),
        f"{MACHINE}:a:b",
    ],
)
def test_what_is_no_arn_of_a_machine_is_refused_with_how_one_is_written(wrong: str) -> None:
    with pytest.raises(EngineRefused, match="arn:aws:states:REGION:ACCOUNT:stateMachine:NAME") as refused:
        parse_machine(wrong)
    assert refused.value.final


@pytest.mark.parametrize("wrong", ["", "or ders", "orders*", "a/b", "x" * 81, "orders:", "a:b:c", "<orders>"])
def test_what_can_be_no_name_is_refused(wrong: str) -> None:
    with pytest.raises(EngineRefused, match="cannot be the name"):
        machine_by_name(wrong, HERE)


def test_an_execution_is_taken_apart() -> None:
    found = ExecutionArn.parse(EXECUTION)
    assert (found.place, found.machine, found.name, found.express) == (HERE, "orders", "mcp-1", False)
    assert ExecutionArn.parse(EXECUTION.replace(":execution:", ":express:") + ":run").express
    child = ExecutionArn.parse(EXECUTION.replace(":orders:", ":orders/EachOrder:"))
    assert (child.machine, child.label, child.name) == ("orders", "EachOrder", "mcp-1")


@pytest.mark.parametrize(
    "wrong", ["mcp-1", MACHINE, f"{EXECUTION}\n", f"{EXECUTION}\x1b[31m", "https://console.aws.amazon.com/states"]
)
def test_what_is_no_execution_arn_is_refused(wrong: str) -> None:
    with pytest.raises(EngineRefused, match="no execution ARN"):
        ExecutionArn.parse(wrong)


@pytest.mark.parametrize(
    ("written", "found", "same"),
    [
        ("orders", MACHINE, True),
        (MACHINE, f"{MACHINE}:3", True),
        ("orders:PROD", f"{MACHINE}:PROD", True),
        ("orders:PROD", MACHINE, False),
        (f"{MACHINE}:PROD", f"{MACHINE}:3", False),
        (MACHINE, "orders:PROD", True),
        ("orders:3", "orders:PROD", False),
        (MACHINE.replace("111122223333", "444455556666"), MACHINE, False),
        (MACHINE.replace("eu-west-1", "us-east-1"), MACHINE, False),
        ("arn:nonsense", MACHINE, False),
    ],
)
def test_a_tool_watches_the_machine_it_names(written: str, found: str, same: bool) -> None:
    assert same_workflow(written, found) is same


def test_the_page_of_an_execution_is_in_the_console_of_its_partition() -> None:
    page = Console.of_region("aws", "eu-west-1", url=None, custom=False).page(EXECUTION)
    assert page == (
        f"https://eu-west-1.console.aws.amazon.com/states/home?region=eu-west-1#/v2/executions/details/{EXECUTION}"
    )
    for partition, region, domain in (
        ("aws-cn", "cn-north-1", "console.amazonaws.cn"),
        ("aws-us-gov", "us-gov-west-1", "console.amazonaws-us-gov.com"),
        ("aws-eusc", "eusc-de-east-1", "console.amazonaws-eusc.eu"),
    ):
        page = Console.of_region(partition, region, url=None, custom=False).page(EXECUTION)
        assert page is not None
        assert page.startswith(f"https://{region}.{domain}/")
    assert Console.of_region("aws", "eu-west-1", url=None, custom=True).page(EXECUTION) is None
    own = Console.of_region("aws", "eu-west-1", url="https://console.example.com/", custom=True).page(EXECUTION)
    assert own is not None
    assert own.startswith("https://console.example.com/states/")
