"""Messages about mistakes in workflows.yaml and the files it includes: errors.txt has files, and what is said of them.

`python -m tests.sidecar.config.test_config_errors` writes the messages anew; read the difference.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config
from tests.support.config_files import ENGINES, problems

GOLDEN = Path(__file__).parent / "errors.txt"
SECRET = "hunter2-and-much-more"
_LISTS = re.compile(r"(\((?:known|installed|engines): )[^)]{60,}\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Files by name, and the messages about them."""

    name: str
    files: Mapping[str, str]
    says: str


def cases() -> Iterator[Case]:
    """Read the cases: `=== name`, the text of workflows.yaml, `--- file` and its text, `--- says` and the messages."""
    for block in re.split(r"^=== ", GOLDEN.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition("\n")
        first, *others = re.split(r"^--- (.*)\n", rest, flags=re.MULTILINE)
        files = {"workflows.yaml": first, **dict(zip(others[::2], others[1::2], strict=True))}
        yield Case(name=name, says=files.pop("says"), files=files)


def messages(folder: Path, files: Mapping[str, str]) -> str:
    """Return all that is wrong with these files, without the folder and without long lists of names."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "workflows.yaml", {"SECRET": SECRET, "LONG_SECRET": SECRET * 20})
    return _LISTS.sub(r"\1...)", str(caught.value).replace(f"{folder}/", "")) + "\n"


@pytest.mark.parametrize("case", [*cases()], ids=lambda case: case.name)
def test_a_mistake_is_said_with_its_place_and_without_secrets(tmp_path: Path, case: Case) -> None:
    found = messages(tmp_path, case.files)
    assert found == case.says
    assert not any(SECRET[start : start + 6] in found for start in range(len(SECRET) - 5))


UNREADABLE: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", ":1: the file is empty"),
    "only a comment": (b"# soon\n", ":1: the file is empty"),
    "a list": (b"\n- engines\n", ":2: this must be a mapping"),
    "a word": (b"engines", ":1: this must be a mapping"),
    "not UTF-8": (b"server:\n  name: caf\xe9\n", ":2: not UTF-8"),
    "not closed": (b"server:\n  name: [a, b\n", ":3:1: not YAML: "),
    "a tab": (b"server:\n\tname: x\n", ":2:1: not YAML: "),
    "two colons": (b"server: name: x\n", ":1:13: not YAML: "),
    "two documents": (b"server: {}\n---\nserver: {}\n", ":2:1: not YAML: "),
    "an unknown alias": (b"server: {}\nstore: *nothing\n", ":2:8: not YAML: "),
    "nested too deeply": (b"server: " + b"[" * 5000 + b"]" * 5000, ":1: not YAML that can be read: nested"),
    "a control character": (b"server:\n  name: \x01\n", ":2: not YAML: a control character"),
}


@pytest.mark.parametrize(("content", "essence"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_parsed_says_where(tmp_path: Path, content: bytes, essence: str) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert str(caught.value).startswith(f"{path}{essence}")


def test_an_unquoted_placeholder_in_braces_is_explained(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "engines:\n  orders: {adapter: memory, name: ${NAME}}\n", NAME="x")
    assert problem.startswith("2:")
    assert 'it needs quotes: "${NAME}"' in problem


def test_a_missing_file_a_folder_and_a_forbidden_file_say_so(tmp_path: Path) -> None:
    for path, essence in [(tmp_path / "none.yaml", "no such file"), (tmp_path, "this is a folder")]:
        with pytest.raises(ConfigError, match=essence):
            load_config(path, {})


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that can be opened but not read")
def test_a_file_that_cannot_be_read_says_why() -> None:
    with pytest.raises(ConfigError, match="/proc/self/mem: Input/output error"):
        load_config(Path("/proc/self/mem"), {})


def test_mappings_that_are_merged_over_and_over_are_bounded(tmp_path: Path) -> None:
    names = [f"  t{index}: &a{index} {{<<: *a{index - 1}}}\n" for index in range(1, 200)]
    text = f"{ENGINES}tools:\n  t0: &a0 {{engine: orders, workflow: echo}}\n{''.join(names)}"
    (problem,) = problems(tmp_path, text)
    assert problem == "105: << brings in more than 100 mappings"


def write(found: Sequence[Case]) -> None:
    """Write the cases with the messages of now."""
    blocks: list[str] = []
    for case in found:
        with tempfile.TemporaryDirectory() as folder:
            said = messages(Path(folder), case.files)
        files = {**case.files, "says": said}
        first = files.pop("workflows.yaml")
        blocks.append(f"=== {case.name}\n{first}" + "".join(f"--- {name}\n{text}" for name, text in files.items()))
    GOLDEN.write_text("".join(blocks), "utf-8")


if __name__ == "__main__":
    write([*cases()])
