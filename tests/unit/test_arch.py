"""Names of architectures: spellings, duplicates, unknown ones; and which PTX serves which."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.arch import check_archs, virtual_arch
from codegen.errors import ArchError
from codegen.toolchain import Toolchain

HELP = """--gpu-name <gpu name>                               (-arch)
        Allowed values for this option:  'compute_100','compute_75','lto_75','sm_100',
        'sm_100a','sm_70','sm_75','sm_80','sm_86','sm_90','sm_90a'.
        Default value:  'sm_75'.
"""


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    """A ptxas that can speak of itself, and no more: one that still knows Volta."""
    ptxas = tmp_path / "ptxas"
    ptxas.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "release 12.9, V12.9.86" && exit\ncat <<"END"\n{HELP}END\n'
    )
    ptxas.chmod(0o755)
    return Toolchain(nvcc=tmp_path / "nvcc", ptxas=ptxas)


def test_archs_are_the_real_ones_of_ptxas_help_oldest_first(toolchain: Toolchain) -> None:
    assert toolchain.archs == ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100a")


@pytest.mark.parametrize("name", ["sm_90", "sm90", "90", "9.0", "SM_90", " sm_90 "])
def test_an_architecture_may_be_spelt_as_people_do(name: str, toolchain: Toolchain) -> None:
    assert check_archs([name], toolchain) == ("sm_90",)


@pytest.mark.parametrize(("name", "arch"), [("10.0", "sm_100"), ("100a", "sm_100a"), ("sm_90A", "sm_90a")])
def test_suffixes_and_two_digit_versions_are_kept(name: str, arch: str, toolchain: Toolchain) -> None:
    assert check_archs([name], toolchain) == (arch,)


def test_an_architecture_named_twice_counts_once_and_the_order_stays(toolchain: Toolchain) -> None:
    assert check_archs(["sm_90", "8.0", "90", "sm_75"], toolchain) == ("sm_90", "sm_80", "sm_75")


@pytest.mark.parametrize("name", ["sm_99", "9", "hopper", "", "compute_90", "sm_90b", "9.0.1"])
def test_an_unknown_architecture_is_an_error_that_names_the_known_ones(name: str, toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match=f"'{name}'.*ptxas 12.9.86.*sm_75, sm_80, sm_86, sm_90, sm_90a, sm_100"):
        check_archs(["sm_80", name], toolchain)


def test_an_architecture_older_than_every_template_is_unknown_though_ptxas_has_it(toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match=r"'sm_70'.*there are sm_75"):
        check_archs(["sm_70"], toolchain)


def test_no_architecture_at_all_is_an_error(toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match="no architecture given: name some of sm_75"):
        check_archs([], toolchain)


@pytest.mark.parametrize(
    ("arch", "virtual"),
    [
        ("sm_75", "compute_75"),
        ("sm_80", "compute_80"),
        ("sm_86", "compute_80"),
        ("sm_90a", "compute_80"),
        ("sm_100f", "compute_80"),
        ("sm_121", "compute_80"),
    ],
)
def test_turing_has_ptx_of_its_own_and_all_later_share_one(arch: str, virtual: str) -> None:
    assert virtual_arch(arch) == virtual


@pytest.mark.parametrize("arch", ["sm_70", "turing"])
def test_there_is_no_ptx_for_what_is_older_or_no_architecture(arch: str) -> None:
    with pytest.raises(ArchError, match=arch):
        virtual_arch(arch)
