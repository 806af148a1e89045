"""Two toolkits share templates only if the files that compile them are the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.errors import ToolchainError
from codegen.toolchain.compiler_files import digest_of, root_beside, root_in_dry_run, stamp_of
from codegen.toolchain.tools import Toolchain
from farm.store.memory import MemoryStore
from farm.worker.cache_lookup import known_toolchain


def toolkit(root: Path) -> Path:
    """The files of a toolkit, small ones."""
    contents = {
        "bin/nvcc": "#!/bin/sh\necho release 13.0, V13.0.88\n",
        "bin/ptxas": "#!/bin/sh\necho \"release 13.0, V13.0.88 'sm_80'\"\n",
        "nvvm/bin/cicc": "cicc",
        "nvvm/libdevice/libdevice.10.bc": "libdevice",
        "include/cuda_runtime.h": '#include "crt/first.h"\n  # include <math.h>\n',
        "include/crt/first.h": '#include "second.hpp"\n#include "../cuda_runtime.h"\n',
        "include/crt/second.hpp": "int second;",
        "include/cublas.h": "int cublas;",
    }
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    return root


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    "name", ["nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc", "include/cuda_runtime.h", "include/crt/second.hpp"]
)
def test_a_change_of_each_file_that_compiles_changes_the_digest(name: str, tmp_path: Path) -> None:
    first, second = toolkit(tmp_path / "a"), toolkit(tmp_path / "b")
    assert digest_of(first) == digest_of(second)
    rewrite(second / name, lambda text: text + " ")
    assert digest_of(first) != digest_of(second)


def test_a_header_that_no_kernel_includes_does_not_change_the_digest(tmp_path: Path) -> None:
    root = toolkit(tmp_path)
    before = digest_of(root)
    rewrite(root / "include/cublas.h", lambda text: text + " ")
    assert digest_of(root) == before


def test_a_missing_header_is_an_error_in_words(tmp_path: Path) -> None:
    root = toolkit(tmp_path)
    (root / "include/cuda_runtime.h").unlink()
    with pytest.raises(ToolchainError, match=r"cannot be read .*cuda_runtime\.h.*: install it again"):
        digest_of(root)


@pytest.mark.parametrize("name", ["nvvm/bin/cicc", "include/crt/second.hpp"])
def test_facts_of_a_toolkit_hold_until_its_files_change(name: str, tmp_path: Path) -> None:
    root, store = toolkit(tmp_path), MemoryStore()

    def facts() -> Toolchain:
        return known_toolchain(Toolchain(root / "bin/nvcc", root / "bin/ptxas"), store)

    first = facts()
    assert first.cuda_root == root
    rewrite(root / name, lambda text: text[::-1])
    assert facts().compiler_digest != first.compiler_digest
    stamp = stamp_of(root)
    os.utime(root / name, (2, 2))
    assert stamp_of(root) != stamp


def test_the_toolkit_of_a_script_is_the_one_that_its_dry_run_names(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "cuda")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "nvcc"
    script.touch()
    assert root_beside(script) is None
    (tmp_path / "bin" / "linked").symlink_to(root / "bin/nvcc")
    assert root_beside(tmp_path / "bin" / "linked") == root
    assert root_in_dry_run(f"#$ _SPACE_=\n#$ TOP={root}/bin/..\n") == root
    for output in ("", f"#$ TOP={tmp_path}\n"):
        with pytest.raises(ToolchainError, match="names no folder with nvvm/bin/cicc"):
            root_in_dry_run(output)
