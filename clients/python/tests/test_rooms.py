"""Which module may import which. Imports within functions, and those that only types need, count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import anabranch

PACKAGE = Path(anabranch.__file__).parent
#: A folder or a public module imports from its own row and from those before it.
ROOMS = [
    ("_wire", "errors"),
    ("_reading", "arrow", "episodes", "tokens"),
    ("_recording", "receipt", "trajectory"),
    ("_training", "groups", "rollouts", "runs", "tasks"),
    ("client", "gym"),
    ("__init__", "__main__", "_sessions", "aio", "claude_agent_sdk", "compat", "langgraph", "openai_agents"),
]
LEVELS = {name: level for level, names in enumerate(ROOMS) for name in names}
#: `Trajectory.client` is a public attribute, so its type is imported.
ALLOWED = ("trajectory", "client")


def name_of(path: Path) -> str:
    """Returns the name of a module within the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


#: The source of each module that is not generated.
SOURCES = {
    name_of(path): path.read_text() for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "v1"
}


def imports_of(source: str, modules: set[str]) -> Iterator[str]:
    """Yields the modules of the package that a module imports, without the generated ones."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            # What is imported is a module, or a name of the module before it.
            known = (".".join(parts[1:end]) for end in range(len(parts), 1, -1))
            if parts[0] == "anabranch" and parts[1:2] != ["v1"]:
                yield next((each for each in known if each in modules), "__init__")


def graph_of(sources: dict[str, str]) -> dict[str, set[str]]:
    """Returns what each module imports, without what is allowed."""
    graph = {name: set(imports_of(source, set(sources))) - {name} for name, source in sources.items()}
    name, imported = ALLOWED
    graph[name].remove(imported)
    return graph


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a circle. Empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def backward(graph: dict[str, set[str]]) -> list[str]:
    """Returns the imports against the order of the rooms."""
    return [
        f"{name} imports {each}"
        for name, imported in sorted(graph.items())
        for each in sorted(imported)
        if LEVELS[each.partition(".")[0]] > LEVELS[name.partition(".")[0]]
    ]


def test_each_module_has_a_room() -> None:
    assert {name.partition(".")[0] for name in SOURCES} == set(LEVELS)


def test_modules_import_from_their_room_and_those_before_it() -> None:
    assert backward(graph_of(SOURCES)) == []


def test_imports_form_no_circle() -> None:
    assert circle_in(graph_of(SOURCES)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import anabranch.client",
        "from anabranch import client",
        "from anabranch.client import Client",
        "def connect():\n    from anabranch.client import connect",
        "if TYPE_CHECKING:\n    from anabranch.client import Client",
    ],
)
def test_no_form_of_an_import_is_overlooked(source: str) -> None:
    graph = graph_of({**SOURCES, "_wire.scope": source})
    assert backward(graph)[0] == "_wire.scope imports client"
    assert {"_wire.scope", "client"} <= set(circle_in(graph))
