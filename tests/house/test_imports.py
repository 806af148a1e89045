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
    ("errors", "config.units", "config.price"),
    ("extras", "signing", "config.settings_table", "http_server"),
    ("jobs.model", "config"),
    ("store", "jobs.completeness"),
    ("worker", "tuning", "qualification.record"),
    ("qualification.files",),
    ("ledger", "executors", "bundle.ptx"),
    ("cuda",),
    ("bundle.members", "bundle.row_groups"),
    ("bundle.manifest", "bundle.provenance"),
    ("bundle.reader",),
    ("bundle.contents",),
    ("runtime",),
    ("scheduler", "torch", "verify.onnxruntime_reference"),
    ("jobs", "bundle"),
    ("verify",),
    ("bench", "qualification"),
    ("maintenance", "reports"),
    ("api", "tuning.search"),
    ("torch.compilation",),
    ("torch.__init__",),
    ("testing",),
)
"""From the bottom up: a module or package of farm/ imports from lower lines only. A module's own line counts before its
package's, and so does that of a package's __init__, which may gather modules of several lines."""

DOORS = {
    "alembic": {"farm/ledger/", "migrations/"},
    "boto3": {"farm/store/s3.py"},
    "cryptography": {"farm/signing.py"},
    "botocore": {"farm/store/s3.py"},
    "gimmik": {"farm/bench/layers/gimmik_kernels.py"},
    "jinja2": {"cli/report/template.py"},
    "matplotlib": {"farm/bench/layers/plots.py"},
    "opentelemetry": {"farm/scheduler/traces.py"},
    "prometheus_client": {"farm/reports/metrics.py"},
    "onnx": {"codegen/frontend/onnx/", "codegen/model_zoo/"},
    "onnxruntime": {"farm/runtime/onnxruntime_session.py"},
    "pycuda": {"farm/cuda/device.py"},
    "pydantic": {"farm/bundle/manifest.py"},
    "ray": {"farm/executors/ray/connection.py", "farm/executors/ray/private.py"},
    "rich": {"cli/"},
    "sqlalchemy": {"farm/ledger/", "migrations/"},
    "subprocess": {"codegen/toolchain/tools.py", "farm/executors/processes.py"},
    "torch": {
        "farm/bench/graphchallenge/torch_",
        "farm/bench/layers/torch_gpu.py",
        "farm/bench/networks/torch_",
        "farm/torch/",
    },
    "typer": {"cli/"},
}
"""The files, or the folders, that may import a library at all."""

SLOW = {
    "alembic",
    "boto3",
    "botocore",
    "cryptography",
    "gimmik",
    "jinja2",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "opentelemetry",
    "prometheus_client",
    "pycuda",
    "pydantic",
    "ray",
    "torch",
}
WHOLLY = (
    "farm/bundle/manifest.py",
    "farm/bench/graphchallenge/torch_",
    "farm/bench/networks/torch_",
    "farm/torch/",
    "migrations/",
)
"""Modules that are of no use without one of them, by the start of their path."""
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


PLACES = [part for layer in FARM_LAYERS for part in layer]
HEIGHTS = {part: level for level, layer in enumerate(FARM_LAYERS) for part in layer}


def farm_place(module: str) -> str | None:
    """The longest entry of FARM_LAYERS that names a module or its package: store for farm/store/disk.py."""
    parts = module.removesuffix(".py").replace("/", ".").split(".")
    names = [".".join(parts[1:end]) for end in range(len(parts), 1, -1)] if parts[0] == "farm" else []
    return next((name for name in names if name in HEIGHTS), None)


def test_every_module_of_the_farm_has_a_place_in_its_layers() -> None:
    files = [file for file in modules("farm") if file != "farm/__init__.py"]
    assert not [file for file in files if farm_place(file) is None]
    assert {farm_place(file) for file in files} == set(PLACES)
    assert len(PLACES) == len(set(PLACES))


def test_the_layers_of_the_farm_point_down() -> None:
    wrong = []
    for found in ALL_IMPORTS:
        importer, imported = farm_place(found.file), farm_place(found.module)
        if importer and imported and importer != imported and HEIGHTS[imported] >= HEIGHTS[importer]:
            wrong.append(f"{found} ({importer} -> {imported})")
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
            if name in ("environ", "environb", "getenv") and (file != "farm/config/settings.py" or node not in inside):
                wrong.append(f"{file}:{getattr(node, 'lineno', '?')}")
    assert not wrong
