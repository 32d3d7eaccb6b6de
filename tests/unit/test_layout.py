"""The layout of the project: rooms, imports, names, docstrings."""

from __future__ import annotations

import ast
import gc
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "src/ccagent"

OPENINGS = re.compile(r"(Give|Tell|Say|Judge|Let)s?\b|Whether\b")
"""Words that no docstring begins with: a docstring says what a function returns or does."""

ARROWS = {
    "commands": "agents config controls daemon doctor ground machine machines queue records "
    "service transports views",
    "daemon": "agents config exporter ground machine queue records service transports",
    "doctor": "agents config controls exporter ground machine machines queue records service "
    "transports",
    "views": "agents config ground machine net queue records service stores transports",
    "stores": "agents config ground machine net queue records service",
    "exporter": "agents config ground machine net records service transports",
    "controls": "config ground machine net records service",
    "machines": "agents config ground machine net queue records service transports",
    "agents": "config ground machine net queue records service transports",
    "queue": "config ground machine records service transports",
    "transports": "config ground machine net records service",
    "net": "config ground machine",
    "config": "ground machine records service",
    "machine": "ground records",
    "records": "ground",
    "service": "ground",
    "ground": "",
}
"""The rooms whose modules each room may import: at once, later, or for types.

A room is a folder of the package. The ground is the modules beside the rooms: version, errors, log,
counters, the registry of names. Rooms that a room must not import give it what it needs: as an
argument, or as a class that the registry has by name.
"""


@cache
def modules() -> dict[str, list[ast.AST]]:
    """Return the nodes of the syntax trees of all modules of the package, by module name."""
    found: dict[str, list[ast.AST]] = {}
    gc.disable()  # it would search the first nodes for each thousand of the others
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
                module = ".".join(parts).removesuffix(".__init__")
                found[module] = [*ast.walk(ast.parse(path.read_bytes()))]
    gc.enable()
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_tree_is_left() -> Iterator[None]:
    """Forget a million nodes: the garbage collector would search them in all later tests."""
    yield
    modules.cache_clear()


def imports(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the modules of the package that a module imports: at once, later, or for types."""
    for statement in nodes:
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            for each in statement.names:
                full = f"{statement.module}.{each.name}"
                yield full if full in modules() else statement.module


def test_no_module_imports_itself_by_way_of_others() -> None:
    wanted = {name: {*imports(nodes)} & modules().keys() for name, nodes in modules().items()}
    try:
        TopologicalSorter(wanted).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def room_of(module: str) -> str:
    """Return the room of a module. The program itself is the first of the commands."""
    _, *parts = module.split(".")
    if parts == ["__main__"]:
        return "commands"
    return parts[0] if parts and (PACKAGE / parts[0]).is_dir() else "ground"


def test_a_room_imports_only_rooms_below_it() -> None:
    assert [
        f"{name} imports {imported}"
        for name, nodes in modules().items()
        for imported in {*imports(nodes)}
        if imported.partition(".")[0] == "ccagent"
        and room_of(imported) not in {room_of(name), *ARROWS[room_of(name)].split()}
    ] == []


def test_no_two_rooms_may_import_each_other() -> None:
    TopologicalSorter({room: below.split() for room, below in ARROWS.items()}).prepare()


@pytest.mark.parametrize(
    ("library", "user"),
    [("nats", "ccagent.net.nats_session"), ("paho", "ccagent.net.mqtt_client")],
)
def test_one_file_imports_the_library_of_a_protocol(library: str, user: str) -> None:
    users = [
        name
        for name, nodes in modules().items()
        if any(each.partition(".")[0] == library for each in imports(nodes))
    ]
    assert users == [user]


def can_send_requests(statement: ast.AST) -> bool:
    """Return whether a statement imports a client of HTTP, not only names of statuses or errors."""
    if isinstance(statement, ast.Import):
        names = [each.name for each in statement.names]
    elif isinstance(statement, ast.ImportFrom):
        names = [f"{statement.module}.{each.name}" for each in statement.names]
    else:
        return False
    return any(
        re.match(r"(http\.client|urllib\.request|urllib3|requests|httpx|aiohttp)\b", name)
        and name not in {"http.client.HTTPException", "http.client.responses"}
        for name in names
    )


def test_one_file_sends_http_requests() -> None:
    users = [name for name, nodes in modules().items() if any(map(can_send_requests, nodes))]
    assert users == ["ccagent.net.http_client"]


def test_a_class_name_means_one_thing() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, nodes in modules().items():
        for statement in nodes:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                places[statement.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_docstrings_say_what_is_returned_or_done() -> None:
    found = [
        f"{name}: {text.splitlines()[0]}"
        for name, nodes in modules().items()
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and OPENINGS.match(text)
    ]
    assert found == []


def test_pyright_checks_every_package() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["include"]
    links = [path for path in PACKAGE.iterdir() if path.is_symlink()]
    rooms = [
        path.parent for path in PACKAGE.glob("*/__init__.py") if not path.parent.is_symlink()
    ]  # fmt: skip
    wanted = [path.resolve() for path in links] + rooms
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= set(include)


def test_unit_tests_mirror_the_tree() -> None:
    unit = ROOT / "tests/unit"
    places = {file.parent.relative_to(unit).as_posix() for file in unit.rglob("test_*.py")}
    assert not [
        place
        for place in places
        if not (ROOT / place).is_dir() and not (ROOT / "src/ccagent" / place).is_dir()
    ]
