"""What is assembled without ptxas by default: what a GPU admitted, with these very sources, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codegen.ir.layer_spec import Conv2d, DataType
from codegen.ir.tiling import Tiling
from codegen.keys import ASSEMBLER_SOURCES, MACHINE_SOURCES, assembler_digest, source_files
from codegen.sass.qualification import Assembler, AssemblerChoice, assembler_for
from codegen.source_digest import code_of
from farm.errors import UsageError
from farm.qualification import files
from farm.qualification.files import document_of, read_records
from farm.qualification.record import LEAST_LAYERS, AdmissionRecord, admissions_of, record_of_json
from tests.admission_samples import admission
from tests.samples import fixed_toolchain

TILING = Tiling("conv2d", 10, 10, 1, 4, 4, 2)
PTXAS = fixed_toolchain().ptxas_version


def who(
    *records: AdmissionRecord,
    choice: AssemblerChoice = "auto",
    arch: str = "sm_90",
    ptxas: str = PTXAS,
    data_type: DataType = "float32",
    optimisation: int = 3,
) -> tuple[Assembler, str]:
    spec = Conv2d(8, 12, 12, 8, 3, 3, data_type=data_type)
    return assembler_for(choice, spec, TILING, arch, ptxas, admissions_of(records), optimisation=optimisation)


def test_what_a_gpu_admitted_is_assembled_without_being_asked_for() -> None:
    assert who(admission()) == ("direct", "")
    assert who(admission(), choice="ptxas") == ("ptxas", "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ptxas": "13.1.2"}, f"not admitted for ptxas {PTXAS}, but for 13.1.2: run farm admit"),
        ({"sources": "0" * 64}, "it was with another version of the assembler, so run farm admit"),
        ({"wrong": 1}, "a GPU found differences"),
        ({"layers": LEAST_LAYERS - 1}, f"float32 of sm_90 is not admitted for ptxas {PTXAS}: run farm admit"),
        ({"arch": "sm_80"}, "run farm admit"),
        ({"data_type": "float16"}, "run farm admit"),
    ],
)
def test_a_record_of_anything_else_admits_nothing_and_the_reason_names_the_way_out(
    changes: dict[str, Any], reason: str
) -> None:
    assembler, found = who(admission(**changes))
    assert assembler == "ptxas"
    assert reason in found


def test_one_gpu_that_found_a_difference_counts_more_than_another_that_found_none() -> None:
    assert who(admission(), admission(gpu="NVIDIA Other", wrong=2))[0] == "ptxas"
    assert who(admission(), admission(gpu="NVIDIA Other", wrong=2, sources="0" * 64))[0] == "direct"


def test_what_the_assembler_does_not_know_no_record_admits() -> None:
    assert who(admission(arch="sm_80"), arch="sm_80") == ("ptxas", "the assembler knows sm_90, not sm_80")


def test_code_is_admitted_at_the_level_at_which_it_was_compared() -> None:
    assert who(admission(), optimisation=1) == ("ptxas", "direct code is admitted at -O3, not at -O1")
    assert who(admission(), optimisation=1, choice="direct") == ("direct", "")


def test_an_admission_is_of_the_assembler_alone() -> None:
    found = {str(path) for path in source_files(ASSEMBLER_SOURCES)}
    assert {"sass/assemble/weight_code.py", "sass/verify/hazards.py", "sass/skeleton/reader.py"} <= found
    assert found < {str(path) for path in source_files(MACHINE_SOURCES)}
    assert all(name.startswith("sass/") for name in found)
    assert len(assembler_digest()) == 64


def test_comments_and_docstrings_do_not_make_an_admission_stale_and_code_does() -> None:
    plain = 'def f(x):\n    return "# no comment" + x\n'
    documented = 'def f(x):  # why\n    """What f is,\n    in two lines."""\n\n    return "# no comment" + x\n'
    assert code_of('"""What it is."""\n' + documented) == code_of(plain)
    assert code_of(plain.replace("+ x", "+ x + x")) != code_of(plain)


@pytest.mark.parametrize(
    "line",
    ["x = '#'", 'x = "it\'s # one"', r"x = '\'# one'", 'x = f"{y:#x}"', "x = '''a\n# b\n'''", r"x = r'\\'", "x = (y)"],
)
def test_what_looks_like_a_comment_within_a_string_is_code(line: str) -> None:
    assert code_of(f"{line}  # why\nz = x  # 'too'\n") == f"{line}\nz = x"


def test_a_record_comes_back_from_its_file() -> None:
    records = (admission(), admission(data_type="float16", gpu="NVIDIA Other"))
    text = json.dumps(document_of(records))
    assert set(read_records(text, "a.json")) == set(records)
    assert document_of(reversed(records)) == document_of(records)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": 3}, "gpu 3 is not a text"),
        ({"layers": "many"}, "layers 'many' is not a number"),
        ({"data_type": "int8"}, "data_type 'int8' is not known"),
        ({"tried_at": "2026-11-22"}, "not a time with its zone"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_record_is_refused_in_words(change: dict[str, Any], reason: str) -> None:
    value = admission().to_json() | change
    with pytest.raises(ValueError, match=reason):
        record_of_json(value)
    document = json.dumps({"schema_version": 1, "records": [value]})
    with pytest.raises(UsageError, match=r"a\.json: a record is bad.*farm admit --output"):
        read_records(document, "a.json")


@pytest.mark.usefixtures("shipped_admissions")
def test_a_shipped_record_admits_this_assembler_or_says_that_it_is_of_another() -> None:
    """Never a failure: whoever changes the assembler has a GPU admit it anew when the change is done."""
    records = files.shipped_records()
    stale = [record for record in records if record.sources != assembler_digest()]
    for record in records:
        made_by, reason = who(*records, arch=record.arch, ptxas=record.ptxas, data_type=record.data_type)
        assert made_by == ("direct" if record.passed and record not in stale else "ptxas")
        assert ("another version of the assembler" in reason) == (record in stale and record.passed)
    if stale:
        pytest.skip(
            f"qualifications.json is of another assembler: farm admit -o farm/qualification/{files.SHIPPED} on a GPU"
        )
