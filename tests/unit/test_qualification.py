"""Only what a GPU has qualified, with exactly these assembler sources, is assembled directly by default."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from codegen.ir.layer_spec import Conv2d, DataType
from codegen.ir.tiling import Tiling
from codegen.keys import ASSEMBLER_SOURCES, MACHINE_SOURCES, assembler_digest, source_files
from codegen.sass.qualification import (
    CHECKED,
    SUPPORTED_ARCHS,
    Assembler,
    AssemblerChoice,
    Trust,
    assembler_for,
    unsupported_reason,
)
from codegen.source_digest import python_code
from farm.errors import UsageError
from farm.qualification import files
from farm.qualification.files import document_of, read_records
from farm.qualification.record import MIN_LAYERS, QualificationRecord, qualifications_of, record_of_json
from tests.qualification_samples import qualified
from tests.samples import fixed_toolchain

TILING = Tiling("conv2d", 10, 10, 1, 4, 4, 2)
PTXAS = fixed_toolchain().ptxas_version


def assembler_with(
    *records: QualificationRecord,
    choice: AssemblerChoice = "auto",
    arch: str = "sm_90",
    ptxas: str = PTXAS,
    data_type: DataType = "float32",
    optimisation: int = 3,
    trust: Trust = "qualified",
) -> tuple[Assembler, str]:
    spec, known = Conv2d(8, 12, 12, 8, 3, 3, data_type=data_type), qualifications_of(records)
    return assembler_for(choice, spec, TILING, arch, ptxas, known, optimisation=optimisation, trust=trust)


def test_qualified_code_is_assembled_directly_by_default() -> None:
    assert assembler_with(qualified()) == ("direct", "")
    assert assembler_with(qualified(), choice="ptxas") == ("ptxas", "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ptxas": "13.1.2"}, f"not qualified for ptxas {PTXAS}, only for 13.1.2; run farm qualify"),
        ({"sources": "0" * 64}, "the assembler has changed since; run farm qualify"),
        ({"wrong": 1}, "a GPU found wrong outputs"),
        ({"layers": MIN_LAYERS - 1}, f"float32 on sm_90 is not qualified for ptxas {PTXAS}; run farm qualify"),
        ({"arch": "sm_80"}, "run farm qualify"),
        ({"data_type": "float16"}, "run farm qualify"),
    ],
)
def test_any_other_record_qualifies_nothing_and_the_reason_names_the_way_out(
    changes: dict[str, Any], reason: str
) -> None:
    assembler, found = assembler_with(qualified(**changes))
    assert assembler == "patch"
    assert reason in found


@pytest.mark.parametrize("changes", [{"sources": "0" * 64}, {"ptxas": "13.1.2"}, {"arch": "sm_80"}, {"layers": 10}])
def test_code_that_no_gpu_has_run_as_it_is_now_is_checked_and_taken_on_request(changes: dict[str, Any]) -> None:
    old = qualified(**changes)
    assert assembler_with(old)[0] == "patch"
    assert assembler_with(old, trust="checked") == ("direct", "")
    assert qualifications_of([old]).evidence("sm_90", PTXAS, "float32") == CHECKED
    current = qualifications_of([old, qualified()])
    assert current.evidence("sm_90", PTXAS, "float32") == "qualified on NVIDIA Made-Up"


def test_code_that_a_gpu_found_wrong_is_taken_with_no_trust() -> None:
    wrong = qualified(gpu="NVIDIA Other", wrong=2)
    assert "a GPU found wrong outputs" in assembler_with(qualified(), wrong, trust="checked")[1]
    assert qualifications_of([qualified(), wrong]).evidence("sm_90", PTXAS, "float32") == "wrong on NVIDIA Other"


def test_an_unsupported_architecture_and_another_level_are_not_direct_with_any_trust() -> None:
    assert assembler_with(arch="sm_88", trust="checked")[0] == "patch"
    assert assembler_with(optimisation=1, trust="checked")[0] == "patch"


def test_one_failure_outweighs_a_pass_on_another_gpu() -> None:
    assert assembler_with(qualified(), qualified(gpu="NVIDIA Other", wrong=2))[0] == "patch"
    assert assembler_with(qualified(), qualified(gpu="NVIDIA Other", wrong=2, sources="0" * 64))[0] == "direct"


def test_no_record_qualifies_an_unsupported_architecture() -> None:
    assert assembler_with(qualified(arch="sm_88"), arch="sm_88") == (
        "patch",
        f"the direct assembler supports {', '.join(SUPPORTED_ARCHS)}, not sm_88",
    )


@pytest.mark.parametrize(
    ("dilation", "chunk", "takes_longer"), [(64, 4, False), (512, 2, False), (1024, 1, True), (2048, 1, True)]
)
def test_a_skeleton_that_takes_ptxas_longer_than_its_layer_is_not_made(
    dilation: int, chunk: int, takes_longer: bool
) -> None:
    spec = Conv2d(128, 1, 7500 + 2 * dilation, 128, 1, 3, dilation=(1, dilation))
    reason = unsupported_reason(spec, Tiling("conv2d", 64, 1, 1, 64, chunk, 2), "sm_90")
    assert ("takes ptxas longer than the layer" in reason) is takes_longer


def test_code_is_qualified_only_at_the_compared_optimisation_level() -> None:
    assert assembler_with(qualified(), optimisation=1) == ("patch", "direct code is qualified at -O3, not at -O1")
    assert assembler_with(qualified(), optimisation=1, choice="direct") == ("direct", "")


def test_the_digest_covers_the_assembler_alone() -> None:
    found = {str(path) for path in source_files(ASSEMBLER_SOURCES)}
    assert {"sass/assemble/weight_code.py", "sass/verify/hazards.py", "sass/skeleton/reader.py"} <= found
    assert found < {str(path) for path in source_files(MACHINE_SOURCES)}
    assert all(name.startswith("sass/") for name in found)
    assert len(assembler_digest()) == 64


def test_code_makes_a_record_stale_and_comments_do_not() -> None:
    plain = 'def f(x):\n    return "# no comment" + x\n'
    documented = 'def f(x):  # why\n    """What f is,\n    in two lines."""\n\n    return "# no comment" + x\n'
    assert python_code('"""What it is."""\n' + documented) == python_code(plain)
    assert python_code(plain.replace("+ x", "+ x + x")) != python_code(plain)


@pytest.mark.parametrize(
    "line",
    ["x = '#'", 'x = "it\'s # one"', r"x = '\'# one'", 'x = f"{y:#x}"', "x = '''a\n# b\n'''", r"x = r'\\'", "x = (y)"],
)
def test_what_looks_like_a_comment_within_a_string_is_code(line: str) -> None:
    assert python_code(f"{line}  # why\nz = x  # 'too'\n") == f"{line}\nz = x"


def test_a_record_comes_back_from_its_file() -> None:
    records = (qualified(), qualified(data_type="float16", gpu="NVIDIA Other"))
    text = json.dumps(document_of(records))
    assert set(read_records(text, "a.json")) == set(records)
    assert document_of(reversed(records)) == document_of(records)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": 3}, "gpu 3 is not a string"),
        ({"layers": "many"}, "layers 'many' is not an integer"),
        ({"first": -1}, "first -1 is below 0"),
        ({"data_type": "int8"}, "unknown data_type 'int8'"),
        ({"finished_at": "2026-11-22"}, "not a time with a time zone"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_invalid_record_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    value = qualified().to_json() | change
    with pytest.raises(ValueError, match=reason):
        record_of_json(value)
    document = json.dumps({"schema_version": 1, "records": [value]})
    with pytest.raises(UsageError, match=r"a\.json: invalid record.*farm qualify --output"):
        read_records(document, "a.json")


def test_a_record_counts_for_later_sources_that_make_the_same_code_as_far_as_that_was_compared() -> None:
    measured = replace(qualified(), sources="0" * 64)
    claim = {"arch": measured.arch, "ptxas": measured.ptxas, "data_type": "float32", "measured": measured.sources}
    claim |= {"sources": assembler_digest(), "layers": 1500}
    document = document_of([measured, replace(measured, data_type="float16")])
    found = read_records(json.dumps({**document, "same_code": [claim]}), "a.json")
    carried = [each for each in found if each.sources == assembler_digest()]
    assert carried == [replace(measured, sources=assembler_digest(), layers=1500)]
    assert assembler_with(*found)[0] == "direct"
    few = read_records(json.dumps({**document, "same_code": [{**claim, "layers": 999}]}), "a.json")
    assert assembler_with(*few)[0] != "direct"
    wrong = document_of([replace(measured, wrong=1)])
    assert assembler_with(*read_records(json.dumps({**wrong, "same_code": [claim]}), "a.json"))[0] != "direct"


@pytest.mark.parametrize("text", ['{"schema_version": 1, "records": 5}', 100_000 * "["])
def test_a_file_that_is_no_list_of_records_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"a\.json.*farm qualify --output"):
        read_records(text, "a.json")


@pytest.mark.parametrize("change", [{"layers": "all"}, {"arch": 90}, {"colour": "red"}])
def test_a_claim_of_the_same_code_that_cannot_be_read_is_refused(change: dict[str, Any]) -> None:
    claim = {"arch": "sm_90", "ptxas": "1", "data_type": "float32", "measured": "a", "sources": "b", "layers": 1}
    with pytest.raises(UsageError, match="invalid record, same_code"):
        read_records(json.dumps({**document_of([]), "same_code": [claim | change]}), "a.json")


@pytest.mark.usefixtures("shipped_qualifications")
def test_a_shipped_record_qualifies_this_assembler_or_is_stale() -> None:
    """Stale records never fail: a changed assembler is qualified anew on a GPU when the change is done."""
    records = files.shipped_records()
    kinds = {(each.arch, each.ptxas, each.data_type): each.passed for each in records}
    current = {(each.arch, each.ptxas, each.data_type) for each in records if each.sources == assembler_digest()}
    stale = kinds.keys() - current
    for (arch, ptxas, data_type), passed in kinds.items():
        made_by, reason = assembler_with(*records, arch=arch, ptxas=ptxas, data_type=data_type)
        is_current = (arch, ptxas, data_type) in current
        assert made_by == ("direct" if passed and is_current else "patch")
        assert ("the assembler has changed" in reason) == (passed and not is_current)
    if stale:
        pytest.skip(
            f"qualifications.json is of another assembler: farm qualify -o farm/qualification/{files.SHIPPED} on a GPU"
        )
