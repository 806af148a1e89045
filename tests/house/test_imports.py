"""Layers point down; each library has one door; what is slow to import is imported where it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.house.tree import PACKAGES, ROOT, modules

MAY_IMPORT = {
    "codegen": {"codegen"},
    "farm": {"codegen", "farm"},
    "cli": {"cli", "codegen", "farm"},
    "migrations": {"farm"},
}

FARM_LAYERS = (
    ("errors", "units"),
    ("extras", "setting_table"),
    ("jobs", "settings", "version"),
    ("store", "partial"),
    ("worker", "tuning", "admission"),
    ("ledger", "executors", "kernel_ptx"),
    ("gpu",),
    ("runtime",),
    ("coordination", "torch", "network_reference"),
    ("submission", "bundle", "verification", "bench"),
    ("compiled", "network_verification"),
    ("upkeep", "reports"),
    ("api", "tuner", "trial"),
    ("testing",),
)
"""From the bottom up: a module or package of farm/ imports from lower lines only."""

DOORS = {
    "alembic": {"farm/ledger/", "migrations/"},
    "boto3": {"farm/store/s3.py"},
    "botocore": {"farm/store/s3.py"},
    "gimmik": {"farm/bench/gimmik_kernels.py"},
    "matplotlib": {"farm/bench/plots.py"},
    "prometheus_client": {"farm/reports/metrics.py"},
    "onnx": {"codegen/onnx/", "codegen/networks/"},
    "onnxruntime": {"farm/network_reference.py"},
    "pycuda": {"farm/gpu/device.py"},
    "ray": {"farm/executors/connection.py"},
    "rich": {"cli/"},
    "sqlalchemy": {"farm/ledger/", "migrations/"},
    "subprocess": {"codegen/toolchain.py", "farm/executors/processes.py"},
    "torch": {"farm/bench/torch_gpu.py", "farm/torch/"},
    "typer": {"cli/"},
}
"""The files, or the folders, that may import a library at all."""

SLOW = {
    "alembic",
    "boto3",
    "botocore",
    "gimmik",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "prometheus_client",
    "pycuda",
    "ray",
    "torch",
}
WHOLLY = ("migrations/", "farm/torch/")
"""Folders whose every module is for one of them."""
TEST_ONLY = {"hypothesis", "jsonschema", "kubernetes_validate", "PIL", "playwright", "pytest", "yaml"}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    module: str
    at_start: bool
    """Done when the module is imported."""

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(file: str) -> Iterator[Import]:
    """Every import of a file, but those that only the type checker sees."""

    def walk(node: ast.AST, at_start: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name, at_start) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} is a relative import"
            # `from farm import store` names a module as much as `import farm.store` does.
            yield from (Import(file, node.lineno, f"{node.module}.{alias.name}", at_start) for alias in node.names)
        inside = at_start and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    return walk(ast.parse((ROOT / file).read_text()), True)


ALL_IMPORTS = [found for file in modules(*PACKAGES) for found in imports_of(file)]


def test_layers_point_down() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.top in PACKAGES and found.top not in MAY_IMPORT[found.file.split("/")[0]]
    ]
    assert not wrong


def farm_part(module: str) -> str | None:
    """store for farm.store.disk and for farm/store/disk.py."""
    parts = module.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if parts[0] == "farm" and len(parts) > 1 and parts[1] != "__init__" else None


def test_every_module_of_the_farm_has_a_place_in_its_layers() -> None:
    parts = {part for file in modules("farm") if (part := farm_part(file))}
    assert parts == {part for layer in FARM_LAYERS for part in layer}


def test_the_layers_of_the_farm_point_down() -> None:
    height = {part: level for level, layer in enumerate(FARM_LAYERS) for part in layer}
    wrong = []
    for found in ALL_IMPORTS:
        importer, imported = farm_part(found.file), farm_part(found.module)
        if importer and imported and importer != imported and height[imported] >= height[importer]:
            wrong.append(str(found))
    assert not wrong


@pytest.mark.parametrize("library", DOORS)
def test_a_library_has_one_door(library: str) -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.top == library and not any(found.file.startswith(door) for door in DOORS[library])
    ]
    assert not wrong


def test_what_only_tests_use_is_not_imported_by_the_program() -> None:
    assert not [str(found) for found in ALL_IMPORTS if found.top in TEST_ONLY]


def test_slow_libraries_are_imported_where_they_are_used() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.at_start and found.top in SLOW and not found.file.startswith(WHOLLY)
    ]
    assert not wrong


@pytest.mark.parametrize("module", ["cli.main", "farm.api", "farm.ledger"])
def test_importing_the_program_brings_no_slow_library_with_it(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not SLOW & set(loaded.stdout.split())


def test_the_environment_is_read_in_one_place_and_not_at_import() -> None:
    wrong = []
    for file in modules(*PACKAGES):
        tree = ast.parse((ROOT / file).read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        inside = {child for function in functions for child in ast.walk(function)}
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
            if name in ("environ", "environb", "getenv") and (file != "farm/settings.py" or node not in inside):
                wrong.append(f"{file}:{getattr(node, 'lineno', '?')}")
    assert not wrong
