"""The layer rule of docs: who may import whom, read off the syntax trees and off fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import croma_bundle

PACKAGE = Path(croma_bundle.__file__).parent
LAYERS = (
    {"errors"},
    {"layout", "durable", "progress"},
    {"manifests"},
    {"artifacts", "tilemanifest", "metrics", "probe", "weights"},
    {"tiles", "encoders", "scoring"},
    {"extraction", "report", "verification", "inventory"},
    {"launch"},
    {"cli"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
ONLY_ERRORS = {"metrics", "probe"}
NOT_FOR_SCORING = {"torch", "PIL", "skimage", "sklearn", "scipy", "huggingface_hub", "matplotlib", "pandas", "pyarrow"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in the file, those inside functions too."""
    package = ["croma_bundle", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    for line, module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "croma_bundle" and len(parts) > 1 and parts[1] != "__version__":
            yield line, parts[1]


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_every_room_has_a_layer():
    assert {room_of(path) for path in sources()} - set(LEVEL) == set()


def test_each_room_imports_only_lower_rooms_or_itself():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {room}"
        for path in sources()
        for line, room in imported_rooms(path)
        if room != room_of(path) and LEVEL.get(room, 99) >= LEVEL[room_of(path)]
    ]
    assert wrong == []


def test_metrics_and_probe_import_nothing_of_ours_but_errors():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {room}"
        for path in sources()
        if (own := room_of(path)) in ONLY_ERRORS
        for line, room in imported_rooms(path)
        if room not in (own, "errors")
    ]
    assert wrong == []


def test_only_report_figures_imports_matplotlib():
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources()
        for _, module in imported_modules(path)
        if module.split(".")[0] == "matplotlib"
    }
    assert users <= {"report/figures.py"}


def loaded_after(statement: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter after `statement`."""
    code = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_scoring_loads_no_deep_learning_image_or_hub_library():
    loaded = loaded_after("import croma_bundle.scoring.run")
    assert "numpy" in loaded, "the probe itself works"
    assert loaded & NOT_FOR_SCORING == set()


def test_the_probe_loads_scikit_learn_only_where_it_trains():
    loaded = loaded_after("import croma_bundle.scoring.probe, croma_bundle.probe.sweep")
    assert loaded & NOT_FOR_SCORING == set()
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources()
        for _, module in imported_modules(path)
        if module.split(".")[0] == "sklearn" and room_of(path) in ("metrics", "probe", "scoring", "verification")
    }
    assert users == {"probe/sweep.py", "probe/together.py"}


def test_verification_and_inventory_load_no_deep_learning_image_or_hub_library():
    loaded = loaded_after("import croma_bundle.verification.artifacts, croma_bundle.inventory")
    assert loaded & NOT_FOR_SCORING == set()


@pytest.mark.parametrize("module", ["croma_bundle.cli", "croma_bundle.tilemanifest.table"])
def test_what_parses_a_command_or_a_manifest_does_not_wait_for_numpy(module):
    assert loaded_after(f"import {module}") & {"numpy", *NOT_FOR_SCORING} == set()


def test_the_probe_sees_an_import_inside_a_function():
    """The rule would be empty if lazy imports, which cli is made of, went unseen."""
    rooms = {room for _, room in imported_rooms(PACKAGE / "cli.py")}
    assert {"scoring", "extraction", "tiles"} <= rooms
