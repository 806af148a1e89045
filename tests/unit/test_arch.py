"""Architectures: spellings, duplicates and unknown names; virtual architectures."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.errors import ArchError
from codegen.target.arch import (
    check_archs,
    check_shared,
    has_clusters,
    runs_on,
    served_archs,
    shared_device,
    virtual_arch,
)
from codegen.target.device_model import gpu_key, typical_device
from codegen.target.gpus import GPUS, arch_named, arch_of_gpu, minimum_driver
from codegen.toolchain.tools import Toolchain
from farm.jobs.model import BuildOptions
from farm.reports.architectures import architectures

HELP = """--gpu-name <gpu name>                               (-arch)
        Allowed values for this option:  'compute_100','compute_75','lto_75','sm_100',
        'sm_100a','sm_70','sm_75','sm_80','sm_86','sm_90','sm_90a'.
        Default value:  'sm_75'.
"""


def stub(tmp_path: Path, text: str) -> Toolchain:
    """A ptxas that only reports its version and architectures."""
    ptxas = tmp_path / "ptxas"
    ptxas.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "release 12.9, V12.9.86" && exit\ncat <<"END"\n{text}\nEND\n'
    )
    ptxas.chmod(0o755)
    return Toolchain(nvcc=tmp_path / "nvcc", ptxas=ptxas)


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    """Volta included."""
    return stub(tmp_path, HELP)


def test_archs_are_the_real_ones_of_ptxas_help_oldest_first(toolchain: Toolchain) -> None:
    assert toolchain.archs == ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100a")


@pytest.mark.parametrize("name", ["sm_90", "sm90", "90", "9.0", "SM_90", " sm_90 ", "9.0+PTX"])
def test_an_architecture_may_be_spelt_as_people_do(name: str, toolchain: Toolchain) -> None:
    assert check_archs([name], toolchain) == ("sm_90",)


@pytest.mark.parametrize(("name", "arch"), [("10.0", "sm_100"), ("100a", "sm_100a"), ("sm_90A", "sm_90a")])
def test_suffixes_and_two_digit_versions_are_kept(name: str, arch: str, toolchain: Toolchain) -> None:
    assert check_archs([name], toolchain) == (arch,)


def test_all_means_every_architecture_that_has_templates(toolchain: Toolchain) -> None:
    assert check_archs(["all"], toolchain) == ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100")
    assert check_archs(["sm_90", "all"], toolchain)[:2] == ("sm_90", "sm_75")


def test_a_plus_asks_for_cubins_that_every_gpu_that_runs_them_shares(toolchain: Toolchain) -> None:
    names = ["sm_90", "8.0+", "9.0+PTX"]
    assert check_archs(names, toolchain) == ("sm_90", "sm_80")
    assert check_shared(names, toolchain) == ("sm_80",)
    assert check_shared(["sm_80"], toolchain) == ()
    assert check_shared(["a100+"], toolchain) == ("sm_80",)
    with pytest.raises(ArchError, match="unknown architecture 'sm_99'"):
        check_shared(["sm_99+"], toolchain)


@pytest.mark.parametrize(
    ("arch", "served"),
    [
        ("sm_80", ("sm_80", "sm_86", "sm_89")),
        ("sm_86", ("sm_86", "sm_89")),
        ("sm_87", ("sm_87",)),
        ("sm_90", ("sm_90",)),
    ],
)
def test_an_architecture_serves_the_later_ones_of_its_major_version(arch: str, served: tuple[str, ...]) -> None:
    assert served_archs(arch) == served


def test_shared_cubins_have_no_more_shared_memory_than_any_gpu_that_runs_them() -> None:
    a100, shared = typical_device("sm_80"), shared_device(typical_device("sm_80"))
    assert shared.multiprocessor.block_shared_bytes == typical_device("sm_86").multiprocessor.block_shared_bytes
    assert shared.multiprocessor.block_shared_bytes < a100.multiprocessor.block_shared_bytes
    options = BuildOptions(("sm_80",), shared=("sm_80",))
    assert options.device("sm_80") == shared
    assert BuildOptions.from_json(options.to_json()) == options
    assert shared_device(typical_device("sm_90")) == typical_device("sm_90")


def test_thor_is_named_as_the_tools_name_it(tmp_path: Path) -> None:
    for names, arch in (("sm_110", "sm_110"), ("sm_101", "sm_101"), ("sm_101 sm_110", "sm_101")):
        tools = stub(tmp_path, "'" + "', '".join(names.split()) + "'")
        assert check_archs(["sm_101"], tools) == (arch,)


def test_an_architecture_named_twice_counts_once_and_the_order_stays(toolchain: Toolchain) -> None:
    assert check_archs(["sm_90", "8.0", "90", "sm_75"], toolchain) == ("sm_90", "sm_80", "sm_75")


@pytest.mark.parametrize("name", ["sm_99", "9", "hopper", "", "compute_90", "sm_90b", "9.0.1"])
def test_an_unknown_architecture_is_an_error_that_names_the_known_ones(name: str, toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match=f"'{name}'.*ptxas 12.9.86.*sm_75, sm_80, sm_86, sm_90, sm_90a, sm_100"):
        check_archs(["sm_80", name], toolchain)


def test_an_architecture_older_than_every_template_is_unknown_though_ptxas_has_it(toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match=r"'sm_70'.*supports sm_75"):
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


def test_kernels_with_clusters_have_ptx_of_their_own_from_hopper_on() -> None:
    assert {virtual_arch(arch, clusters=True) for arch in ("sm_90", "sm_90a", "sm_103", "sm_120")} == {"compute_90"}
    for arch in ("sm_80", "sm_89"):
        assert not has_clusters(arch)
        with pytest.raises(ArchError, match=f"{arch} has no clusters of blocks: sm_90 or newer has"):
            virtual_arch(arch, clusters=True)


@pytest.mark.parametrize("arch", ["sm_70", "turing"])
def test_there_is_no_ptx_for_what_is_older_or_no_architecture(arch: str) -> None:
    with pytest.raises(ArchError, match=arch):
        virtual_arch(arch)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("h100", "sm_90"),
        ("H200", "sm_90"),
        ("a100", "sm_80"),
        ("t4", "sm_75"),
        ("rtx4090", "sm_89"),
        ("5090", "sm_120"),
        ("3080 Ti", "sm_86"),
        ("GeForce 4070", "sm_89"),
        ("6000", None),
        ("RTX-4090", "sm_89"),
        ("rtx_3090 ti", "sm_86"),
        ("GeForce RTX 4090", "sm_89"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "sm_89"),
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA H100 PCIe", "sm_90"),
        ("NVIDIA GH200 480GB", "sm_90"),
        ("Tesla T4", "sm_75"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
        ("Quadro RTX 6000", "sm_75"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "sm_120"),
        ("v100", "sm_70"),
        ("sm_99", "sm_99"),
        ("hopper", None),
        ("nvidia", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_its_name_in_any_spelling(name: str, arch: str | None) -> None:
    assert arch_named(name) == arch


def test_a_gpu_stands_for_its_architecture(toolchain: Toolchain) -> None:
    assert check_archs(["h100", "sm_90", "A100"], toolchain) == ("sm_90", "sm_80")


def test_every_gpu_of_the_table_has_one_architecture() -> None:
    keys = [gpu_key(gpu) for gpus in GPUS.values() for gpu in gpus]
    assert len(keys) == len(set(keys))
    assert all(arch_of_gpu(gpu) == arch for arch, gpus in GPUS.items() for gpu in gpus)


@pytest.mark.parametrize(
    ("name", "nearest"), [("h1000", "H100"), ("rtx4095", "RTX 4090"), ("a3000", "RTX A3000"), ("sm_85", "sm_8")]
)
def test_a_wrong_name_gives_the_nearest_ones(name: str, nearest: str, toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match=rf"unknown architecture '{name}' \(nearest: .*{nearest}"):
        check_archs([name], toolchain)


def test_a_gpu_that_ptxas_does_not_know_is_named_with_its_architecture(toolchain: Toolchain) -> None:
    with pytest.raises(ArchError, match=r"'V100' has the unsupported architecture sm_70"):
        check_archs(["V100"], toolchain)
    with pytest.raises(ArchError, match=r"'rtx5090' has the unsupported architecture sm_120.*supports sm_75"):
        check_archs(["rtx5090"], toolchain)


@pytest.mark.parametrize(
    ("arch", "ptxas", "driver"),
    [("sm_90", "13.0.88", 580), ("sm_75", "12.9.86", 525), ("sm_120", "12.9.86", 570), ("sm_103a", "12.9.86", 575)],
)
def test_the_driver_satisfies_both_toolkit_and_architecture(arch: str, ptxas: str, driver: int) -> None:
    assert minimum_driver(arch, ptxas) == driver


def test_the_table_says_which_architectures_can_be_compiled_for(toolchain: Toolchain) -> None:
    table = {each.name: each for each in architectures(toolchain)}
    assert [name for name, each in table.items() if each.supported] == ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100"]
    assert (table["sm_90"].variants, table["sm_90"].minimum_driver) == (("sm_90a",), 525)
    assert "H100" in table["sm_90"].gpus
    assert (table["sm_70"].supported, table["sm_70"].minimum_driver) == (False, None)
    assert not table["sm_120"].supported


@pytest.mark.parametrize(
    ("cubin", "gpus"),
    [
        ("sm_75", {"sm_75"}),
        ("sm_80", {"sm_80", "sm_86", "sm_89"}),
        ("sm_86", {"sm_86", "sm_89"}),
        ("sm_87", {"sm_87"}),
        ("sm_89", {"sm_89"}),
        ("sm_90", {"sm_90"}),
        ("sm_90a", {"sm_90"}),
        ("sm_100", {"sm_100", "sm_103"}),
        ("sm_100a", {"sm_100"}),
        ("sm_100f", {"sm_100", "sm_103"}),
        ("sm_101", {"sm_101"}),
        ("sm_103", {"sm_103"}),
        ("sm_103f", {"sm_103"}),
        ("sm_110", {"sm_110"}),
        ("sm_110f", {"sm_110"}),
        ("sm_120", {"sm_120", "sm_121"}),
        ("sm_120a", {"sm_120"}),
        ("sm_120f", {"sm_120", "sm_121"}),
        ("sm_121f", {"sm_121"}),
    ],
)
def test_cubins_run_on_gpus_of_the_same_family_that_are_not_older(cubin: str, gpus: set[str]) -> None:
    """Tegra's GPUs (sm_72, sm_87, sm_101, sm_110) run only what was made for them, and nobody else runs that."""
    known = ("sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_100", "sm_101", "sm_103")
    every = (*known, "sm_110", "sm_120", "sm_121")
    assert {gpu for gpu in every if runs_on(cubin, gpu)} == gpus
