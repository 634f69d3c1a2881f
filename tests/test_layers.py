"""Which package may import which: dependencies point one way, also inside functions."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "vspair"

LAYERS = [
    {"errors", "vocabulary"},
    {"data"},
    {"codes"},
    {"mixtures"},
    {"networks"},
    {"config"},
    {"metrics"},
    {"factors"},
    {"posterior"},
    {"model"},
    {"anchors"},
    {"anchored"},
    {"objective"},
    {"runs"},
    {"evaluation"},
    {"training"},
    {"verdict"},
    {"anchored_fit"},
    {"fitting"},
    {"uncertainty"},
]
"""The core from the bottom up: each layer imports those below it and no other."""

CORE = {name for layer in LAYERS for name in layer}
FILES = {"errors", "data", "runs.files", "runs.provenance"}
ALLOWED = {
    "problems": {"errors", "data", "runs.files"},
    "datasets": {"errors", "data", "runs.files", "problems"},
    "methods": CORE | {"problems"},
    "report": FILES,
    "sweeps": CORE | {"report"},
    "studies": CORE | {"problems", "datasets", "methods", "report", "sweeps"},
    "cli": CORE | {"problems", "datasets", "methods", "report", "sweeps", "studies"},
}
"""What each package above the core imports beside itself."""


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name, without ``vspair``."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name not in ("", "__main__"):
            found[name] = path
    return found


def typing_only(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes that are there for type checkers alone."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out, found = typing_only(tree), set()
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vspair"):
            base = node.module.removeprefix("vspair").lstrip(".")
            for alias in node.names:
                name = ".".join(filter(None, (base, alias.name)))
                found.add(name if name in MODULES else base)
        if isinstance(node, ast.Import):
            names = (alias.name for alias in node.names if alias.name.startswith("vspair."))
            found |= {name.removeprefix("vspair.") for name in names}
    return found - {""}


MODULES = modules()
GRAPH = {name: imports(path) for name, path in MODULES.items()}


def head(name: str) -> str:
    return name.partition(".")[0]


def allowed(name: str, other: str) -> bool:
    """Return whether a module may import another."""
    mine, theirs = head(name), head(other)
    if mine == theirs:
        return True
    if mine in CORE:
        below = LAYERS[: next(i for i, layer in enumerate(LAYERS) if mine in layer)]
        return any(theirs in layer for layer in below)
    return theirs in ALLOWED[mine] or other in ALLOWED[mine]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_one_way(name: str) -> None:
    wrong = sorted(other for other in GRAPH[name] if not allowed(name, other))
    assert not wrong, f"vspair.{name} imports {', '.join(wrong)}"


def test_there_is_no_cycle() -> None:
    inner = {name: {other for other in found if other != name} for name, found in GRAPH.items()}
    # A package's own __init__ gathers what its modules offer: it is above them, not beside.
    gathered = {name for name in MODULES if MODULES[name].name == "__init__.py"}
    plain = {name: found - gathered for name, found in inner.items() if name not in gathered}
    try:
        TopologicalSorter(plain).prepare()
    except CycleError as error:
        pytest.fail(f"cycle: {' -> '.join(error.args[1])}")


def test_the_graph_was_read() -> None:
    """The checks above would pass on an empty graph."""
    assert "posterior" in GRAPH["model"]
    assert {"studies", "report", "methods", "training"} <= {head(name) for name in MODULES}
    assert sum(map(len, GRAPH.values())) > 200
