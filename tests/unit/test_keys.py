"""Keys: every ingredient changes the digest, and the digest function is fixed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import codegen
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    LeakyRelu,
    Linear,
    Mish,
    Quantize,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)
from codegen.ir.tiling import Part, Tiling
from codegen.keys import (
    GENERATOR_SOURCES,
    MACHINE_SOURCES,
    PATCH_SOURCES,
    RANKING_SOURCES,
    REWRITER_SOURCES,
    CubinKey,
    TemplateKey,
    cubin_key,
    digest_fields,
    patch_template_key,
    ranking_key,
    skeleton_key,
    source_files,
    template_key,
)
from codegen.sass.qualification import Assembler
from codegen.selection.question import RankingQuestion
from codegen.source_digest import cuda_code, python_code
from codegen.target.device_model import typical_device
from tests.samples import clear_code_digests

TEMPLATE = TemplateKey(
    spec=Conv2d(64, 56, 48, 32, 3, 5, stride=(1, 2), padding=(1, 2, 1, 2)),
    tiling=Tiling("conv2d", 32, 4, 1, 16, 8, 2),
    generator_digest="a" * 64,
    compiler="13.0.88",
    compiler_digest="e" * 64,
    flags=("-ptx", "-O3"),
    virtual_arch="compute_80",
)
CUBIN = CubinKey(
    template="b" * 64,
    weights="c" * 64,
    part=Part(0, 4),
    rewriter_digest="d" * 64,
    assembler="13.0.88",
    arch="sm_90",
    options=("-O3",),
)

TEMPLATE_CHANGES: dict[str, Any] = {
    "generator_digest": "f" * 64,
    "compiler": "13.0.89",
    "compiler_digest": "f" * 64,
    "flags": ("-O3", "-ptx"),
    "virtual_arch": "compute_75",
}
CUBIN_CHANGES: dict[str, Any] = {
    "template": "f" * 64,
    "weights": "f" * 64,
    "part": Part(0, 3),
    "rewriter_digest": "f" * 64,
    "assembler": "13.0.89",
    "arch": "sm_80",
    "options": ("-O1",),
    "machine_digest": "e" * 64,
}
SPEC_CHANGES: dict[str, Any] = {
    "channels": 65,
    "height": 57,
    "width": 49,
    "output_channels": 33,
    "kernel_height": 4,
    "kernel_width": 4,
    "stride": (2, 1),
    "padding": (2, 1, 2, 1),
    "dilation": (1, 2),
    "groups": 2,
    "output_padding": (0, 1),
    "epilogue": (Clip(low=0.0),),
    "data_type": "float16",
    "bounded": True,
    "gated": True,
    "inputs": 65,
    "outputs": 33,
}
SPECS = (TEMPLATE.spec, ConvTranspose2d(64, 56, 48, 32, 3, 5, stride=(2, 2), padding=(1, 2, 1, 2)), Linear(64, 32))
TILING_CHANGES: dict[str, Any] = {
    "kernel": "cluster_conv2d",
    "tile_width": 16,
    "tile_height": 8,
    "rows": 2,
    "group_outputs": 8,
    "chunk_channels": 4,
    "stages": 3,
    "accumulate": "float16",
    "form": "full",
    "images": 2,
    "listed": True,
    "cluster": 2,
    "groups": 2,
    "order": "place",
    "waits": True,
}


def test_the_digests_of_known_keys_are_these() -> None:
    # A change here is a change of every key in every store: raise codegen.keys.SCHEMA with it, on purpose.
    assert TEMPLATE.digest == "c66a30b0142283c8a2d4a20b00ccd78fe4fc33f529119d420f73b23484293628"
    assert CUBIN.digest == "a3906761c8bfbb9208f40ca401d1afa7b2be60163e0c2dcad08b3e076775a039"


@pytest.mark.parametrize("name", [field.name for field in fields(TemplateKey) if field.name not in ("spec", "tiling")])
def test_each_ingredient_of_a_template_changes_its_key(name: str) -> None:
    assert replace(TEMPLATE, **{name: TEMPLATE_CHANGES[name]}).digest != TEMPLATE.digest


@pytest.mark.parametrize(("spec", "name"), [(spec, field.name) for spec in SPECS for field in fields(spec)])
def test_each_part_of_the_layer_spec_changes_the_template_key(spec: LayerSpec, name: str) -> None:
    key = replace(TEMPLATE, spec=spec)
    assert replace(key, spec=replace(spec, **{name: SPEC_CHANGES[name]})).digest != key.digest


def test_operators_with_equal_fields_have_different_template_keys() -> None:
    keys = [replace(TEMPLATE, spec=spec(8, 8, 8, 8, 3, 3)) for spec in (Conv2d, ConvTranspose2d)]
    assert keys[0].digest != keys[1].digest


def test_every_epilogue_has_a_template_key_of_its_own() -> None:
    epilogues: list[tuple[Step, ...]] = [
        (),
        (Clip(low=0.0),),
        (Clip(low=0.0, high=6.0),),
        (LeakyRelu(0.1),),
        (LeakyRelu(0.2),),
        (AddResidual(),),
        (AddResidual(), Clip(low=0.0)),
        (Clip(low=0.0), AddResidual()),
        (Sigmoid(),),
        (Tanh(),),
        (HardSigmoid(0.2, 0.5),),
        (HardSigmoid(0.25, 0.5),),
        (HardSwish(0.25, 0.5),),
        (Scale(0.25, 0.5),),
        (Scale(0.5, 0.5),),
        (Quantize(0.25, -128, 127),),
        (Quantize(0.25, 0, 255),),
        (Swish(),),
        (Swish(2.0),),
        (Gelu(),),
        (Gelu("tanh"),),
        (Mish(),),
    ]
    keys = {replace(TEMPLATE, spec=replace(TEMPLATE.spec, epilogue=epilogue)).digest for epilogue in epilogues}
    assert len(keys) == len(epilogues)


def test_every_part_of_a_layer_has_a_key_of_its_own() -> None:
    parts = [Part(first, end) for first in range(12) for end in range(first + 1, 13)]
    assert len({replace(CUBIN, part=part).digest for part in parts}) == len(parts)
    assert CUBIN.fields()["part"] == "0:4"


@pytest.mark.parametrize("name", [field.name for field in fields(Tiling)])
def test_each_part_of_the_tiling_changes_the_template_key(name: str) -> None:
    changed = replace(TEMPLATE, tiling=replace(TEMPLATE.tiling, **{name: TILING_CHANGES[name]}))
    assert changed.digest != TEMPLATE.digest


@pytest.mark.parametrize("name", [field.name for field in fields(CubinKey)])
def test_each_ingredient_of_a_cubin_changes_its_key(name: str) -> None:
    assert replace(CUBIN, **{name: CUBIN_CHANGES[name]}).digest != CUBIN.digest


def test_the_schema_number_is_part_of_both_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TEMPLATE.digest, CUBIN.digest
    monkeypatch.setattr("codegen.keys.SCHEMA", 10**6)
    assert TEMPLATE.digest != before[0]
    assert CUBIN.digest != before[1]


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.dictionaries(st.text(max_size=5), st.text(max_size=5))
)
def test_two_field_lists_have_one_digest_only_if_they_are_equal(a: dict[str, str], b: dict[str, str]) -> None:
    assert (digest_fields(a) == digest_fields(b)) == (a == b)


def test_moving_a_character_between_neighbouring_fields_changes_the_digest() -> None:
    assert digest_fields({"a": "bc", "d": ""}) != digest_fields({"a": "b", "d": "c"})


CODEGEN = Path(codegen.__file__).parent
SHAPES_NO_BYTES = {
    "errors.py": "says what went wrong",
    "sass/qualification.py": "who assembles, which the key says",
    "toolchain/compiler_files.py": "digests of the compiler's files, which the key has",
    "toolchain/cpu_slots.py": "which core a tool runs on",
    "toolchain/temp_folders.py": "temporary folders; what is in them the tools' callers decide",
    "toolchain/tools.py": "runs what it is given, in an environment without anything that a tool reads",
}
"""Modules that the stages import and no key covers, with the reason."""


def imported(module: Path) -> Iterator[Path]:
    """The modules of codegen/ that a module imports anywhere, and their packages."""
    for node in ast.walk(ast.parse((CODEGEN / module).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            top, _, inner = name.partition(".")
            assert top not in ("farm", "cli"), f"{module} imports {name}"
            if top == "codegen":
                path = Path(*inner.split("."))
                found = (path.with_suffix(".py") if inner else None, path / "__init__.py")
                yield from (each for each in found if each is not None and (CODEGEN / each).is_file())


def closure(*modules: str) -> set[Path]:
    """Modules with all their direct and indirect imports."""
    found: set[Path] = set()
    left = [Path(module) for module in modules]
    while left:
        if (module := left.pop()) not in found:
            found.add(module)
            left += imported(module)
    return found


@pytest.mark.parametrize(
    ("stage", "sources"),
    [
        (("ptx/template.py",), GENERATOR_SOURCES),
        (("ptx/rewrite.py", "toolchain/ptxas.py"), REWRITER_SOURCES),
        (("ptx/rewrite.py", "sass/assemble/assembler.py"), MACHINE_SOURCES),
        (("ptx/rewrite.py", "sass/value_patch.py"), PATCH_SOURCES),
        (("selection/ranking.py",), RANKING_SOURCES),
    ],
    ids=["template", "cubin", "direct cubin", "patch", "ranking"],
)
def test_the_key_of_a_stage_has_exactly_the_sources_it_imports(
    stage: tuple[str, ...], sources: tuple[str, ...]
) -> None:
    shaping = {path for path in closure(*stage) if str(path) not in SHAPES_NO_BYTES and path.name != "__init__.py"}
    cuda = {path.relative_to(CODEGEN) for path in CODEGEN.rglob("*.cu*")}
    assert {path for path in source_files(sources) if path.name != "__init__.py"} == shaping | cuda
    assert Path("kernels/cuda/conv2d.cu") in cuda


def test_who_makes_the_machine_code_is_part_of_a_cubins_key() -> None:
    by_ptxas, direct, patched = (
        cubin_key("b" * 64, "c" * 64, Part(0, 4), "sm_90", ("-O3",), "13.0.88", made_by=assembler)
        for assembler in get_args(Assembler)
    )
    assert len({by_ptxas.digest, direct.digest, patched.digest}) == 3
    assert "machine" not in by_ptxas.fields()


@pytest.mark.parametrize("change", [{"template": "f" * 64}, {"arch": "sm_80"}, {"options": ()}, {"assembler": "13.1"}])
def test_each_ingredient_of_a_skeleton_changes_its_key(change: dict[str, Any]) -> None:
    key = skeleton_key("b" * 64, "sm_90", ("-O3",), "13.0.88")
    assert replace(key, **change).digest != key.digest


@pytest.mark.parametrize(
    "change", [{"template": "f" * 64}, {"mask": "e" * 64}, {"part": Part(0, 3)}, {"arch": "sm_80"}, {"options": ()}]
)
def test_each_ingredient_of_a_patch_template_changes_its_key(change: dict[str, Any]) -> None:
    key = patch_template_key("b" * 64, "c" * 64, Part(0, 4), "sm_90", ("-O3",), "13.0.88")
    assert replace(key, **change).digest != key.digest


@pytest.mark.parametrize(
    "change",
    [
        {"spec": replace(TEMPLATE.spec, epilogue=(Clip(low=0.0),))},
        {"batch": 1},
        {"density": 0.2},
        {"accumulate": "float16"},
        {"clusters": False},
        {"tables": False},
        {"device": typical_device("sm_80")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_part_of_a_ranking_question_changes_its_key(change: dict[str, Any]) -> None:
    question = RankingQuestion(TEMPLATE.spec, 64, 0.1, "float32", clusters=True, tables=True)
    key = ranking_key(question)
    assert ranking_key(replace(question, **change)).digest != key.digest
    assert replace(key, model_digest="f" * 64).digest != key.digest


def test_modules_that_only_run_tools_are_listed_here() -> None:
    stages = closure("ptx/template.py", "ptx/rewrite.py", "toolchain/ptxas.py", "sass/assemble/assembler.py")
    assert {Path(name) for name in SHAPES_NO_BYTES} <= stages


ALL_SOURCES = tuple(str(path.relative_to(CODEGEN)) for path in sorted(CODEGEN.rglob("*.py")))


def keys_with(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[str], str]) -> tuple[str, str]:
    """The keys of a template and a cubin after a change of one source."""
    read_text = Path.read_text
    clear_code_digests()
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "read_text", lambda path: change(read_text(path)) if path == CODEGEN / name else read_text(path)
        )
        template = template_key(TEMPLATE.spec, TEMPLATE.tiling, "compute_80", "13.0.88", "e" * 64).digest
        found = template, cubin_key("b" * 64, "c" * 64, Part(0, 4), "sm_90", ("-O3",), "13.0.88").digest
    clear_code_digests()
    return found


@pytest.mark.parametrize("name", [str(path) for path in source_files(REWRITER_SOURCES)])
def test_a_change_of_any_source_changes_the_keys_of_its_stage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys_with(monkeypatch, name, lambda text: text)
    after = keys_with(monkeypatch, name, lambda text: text + "x")
    of_template = Path(name) in source_files(GENERATOR_SOURCES)
    assert [a == b for a, b in zip(before, after, strict=True)] == [not of_template, False]


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("kernels/conv2d.py", '# why\n"""A string\nof its own."""\n'),
        ("ptx/rewrite.py", '\n"""Another docstring."""  # noqa\n'),
        ("kernels/cuda/conv2d.cu", "// why\n/* in two\nlines */\n"),
    ],
)
def test_comments_and_docstrings_change_no_key(name: str, comment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys_with(monkeypatch, name, lambda text: text)
    assert keys_with(monkeypatch, name, lambda text: comment + text + "\n" + comment) == before


def parsed_code(source: str) -> str:
    """The lines of a source that are neither comments nor statements that are strings, by Python's own parsers."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


@pytest.mark.parametrize("name", ALL_SOURCES)
def test_the_code_of_every_source_is_what_pythons_parser_finds(name: str) -> None:
    source = (CODEGEN / name).read_text()
    assert python_code(source) == parsed_code(source)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('asm("// farm.group %0"); // why', 'asm("// farm.group %0");'),
        ("int a; /* b\nc */ int d;\n\n", "int a;  int d;"),
        ("char a = '\"'; // \"", "char a = '\"';"),
        ("// a \\\n still a comment\nint b;", "int b;"),
    ],
)
def test_cuda_code_keeps_strings_and_drops_comments(source: str, code: str) -> None:
    assert cuda_code(source) == code


def test_the_kernels_include_no_cuda_header_of_their_own() -> None:
    # codegen.toolchain.compiler_files follows the one that nvcc includes into every source.
    included = {
        name
        for path in CODEGEN.rglob("*.cu*")
        for name in re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', path.read_text())
    }
    own = {path.name for path in CODEGEN.rglob("*.cuh")}
    assert included - own == {"accumulate.h", "body.h", "copies.h", "epilogue.h", "parameters.h"}
