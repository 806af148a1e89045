"""The C runtime on aarch64: it is built by Debian's cross compiler and run by QEMU, on a driver that is played."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.played_runtimes import FLAGS, C, Played, build_driver
from tests.unit.onnx_models import info, model, node, save, squeeze_and_excitation, tensor, values

COMPILER, READELF = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-readelf"
SYSTEM = Path("/usr/aarch64-linux-gnu")
EMULATOR = ("qemu-aarch64-static", "-L", str(SYSTEM))

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None or not (SYSTEM / "include" / "stdio.h").is_file(),
    reason=f"needs {COMPILER} and its C library: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
)
emulated = pytest.mark.skipif(
    shutil.which(EMULATOR[0]) is None, reason=f"needs {EMULATOR[0]}: apt-get install qemu-user-static"
)


@pytest.fixture(scope="module")
def arm_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arm")
    build_driver(folder, COMPILER)
    return folder


@pytest.fixture
def arm(arm_driver: Path, tmp_path: Path) -> Played:
    (tmp_path / "arm").mkdir()
    return Played(arm_driver, tmp_path / "arm", EMULATOR)


def test_the_runtime_needs_the_driver_and_the_c_library_alone(arm_driver: Path, tmp_path: Path) -> None:
    library = tmp_path / "libfarm.so"
    made = ["-shared", "-fPIC", "-Wl,-z,defs", *sorted(C.glob("*.c")), arm_driver / "libcuda.so.1", "-o", library]
    subprocess.run([COMPILER, *FLAGS, *made], check=True)
    about = subprocess.run([READELF, "-hd", library], check=True, capture_output=True, text=True).stdout
    assert re.search(r"Machine: +AArch64", about)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", about))
    assert needed - {"ld-linux-aarch64.so.1"} == {"libcuda.so.1", "libc.so.6"}


@emulated
@pytest.mark.parametrize("name", ["bundle", "bundle.farm"])
def test_a_network_is_launched_as_on_x86(arm: Played, played: Played, tmp_path: Path, name: str) -> None:
    bundle = played_bundle(tmp_path / name, squeeze_and_excitation(tmp_path))
    assert played.run("c", bundle, 3) == ""
    assert arm.run("c", bundle, 3) == ""
    assert len(arm.launches()) > 1
    assert arm.launches() == played.launches()


@emulated
def test_a_damaged_bundle_is_refused_as_on_x86(arm: Played, played: Played, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "y", "caf\N{LATIN SMALL LETTER E WITH ACUTE}")]
    proto = model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=[info("x", ("N", 3, 2, 2))])
    bundle = played_bundle(tmp_path / "good.farm", save(tmp_path, proto))
    data = bundle.read_bytes()
    for cut in (100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.farm").write_bytes(data[:cut] + data[cut + 1 :])
        said = arm.run("c", tmp_path / "cut.farm", 1)
        assert said == played.run("c", tmp_path / "cut.farm", 1)
        assert "fetch" in said
    assert arm.run("c", bundle, 1) == ""
