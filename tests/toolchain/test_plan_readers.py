"""Plans are hostile input: Python and C refuse the same ones, in the same words."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.bundle.reader import Bundle
from farm.errors import BundleError
from farm.runtime.plan import LayerStep
from farm.runtime.plan_text import plan_of, quote_name, read_plan, with_end
from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.played_runtimes import HERE, LANGUAGES, C, Played
from tests.toolchain.sample_bundles import sample_models
from tests.unit.onnx_models import info, model, node, save, tensor, values

MUTANTS = 3000
HOSTILE = "fc\u2028run 0 1 2 i0 b99999 t%0arun"
REPLACEMENTS = (
    *("", " ", "0", "1", "7", "-1", "-3", "00", "1e3", "0x10", "+1", "99999", "2000000000", "2147483648", "4294967296"),
    *(
        "18446744073709551616",
        "i7",
        "b-3",
        "b99999",
        "o1",
        "c5",
        "c0",
        "n",
        "n1",
        "d2147483648",
        "f0000000",
        "%00",
        "%",
        "%c3%a9",
        "%ff",
        "%c0%80",
        "%e0%9f%80",
        "%ed%a0%80",
        "%f4%90%80%80",
    ),
    *("sm_", "sm_9", "compute_80", "sm_90f", "ion", "ionn", "../x", "/dev/zero", "float64", "\x1b[1m", "\x00", "é"),
)


@pytest.fixture(scope="module")
def read_in_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], str]:
    """The C reader's error for a plan's text; empty if it accepts the text."""
    path = tmp_path_factory.mktemp("reader") / "farm.so"
    # The driver that is played is a part of it: as libcuda.so.1 it would be this process's driver from then on.
    sources = [HERE / "stub_libcuda.c", *sorted(C.glob("*.c"))]
    subprocess.run(["gcc", "-std=gnu11", "-O1", "-shared", "-fPIC", f"-I{C}", *sources, "-o", path], check=True)
    library, libc = ctypes.CDLL(str(path)), ctypes.CDLL(None)
    library.farm_error.restype = ctypes.c_char_p
    libc.malloc.restype = ctypes.c_void_p
    plan = ctypes.create_string_buffer(1024)

    def read(text: bytes) -> str:
        memory = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(len(text) + 1)))
        ctypes.memmove(memory, text + b"\0", len(text) + 1)
        failed = library.farm_read_plan(memory, ctypes.c_size_t(len(text)), plan)
        library.farm_free_plan(plan)
        return library.farm_error().decode() if failed else ""

    return read


def read_in_python(text: bytes) -> str:
    try:
        read_plan(text)
    except BundleError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The lines of two plans, without the first and the last: with gates and a residual, and with constants."""
    made = []
    for folder, path in sample_models(tmp_path_factory.mktemp("plans")):
        text = (played_bundle(folder / "bundle", path, batches=(1, 64)) / "network.plan").read_text()
        made.append(text.splitlines()[1:-1])
    return made


def edited(lines: list[str], start: str, place: int, word: str) -> bytes:
    """A plan with another word in the first line that begins so."""
    number = next(i for i, line in enumerate(lines) if line.startswith(start))
    words = lines[number].split(" ")
    words[place] = word
    return with_end([*lines[:number], " ".join(words), *lines[number + 1 :]])


@pytest.mark.parametrize(
    ("start", "place", "word", "reason"),
    [
        ("file", 1, "0", "a number out of range"),
        ("file", 1, "4294967297", "a number out of range"),
        ("file", 2, "AB" * 32, "an invalid hexadecimal number"),
        ("file", 3, "/dev/zero", "a path that leaves the bundle"),
        ("file", 3, "../../etc/passwd", "a path that leaves the bundle"),
        ("file", 3, "a/../b", "a path that leaves the bundle"),
        ("file", 3, "a//b", "a path that leaves the bundle"),
        ("file", 3, "a" * 512, "a path that leaves the bundle"),
        ("file", 3, "a b", "too many words"),
        ("layer", 3, "2", "a number out of range"),
        ("layer", 5, "%00", "a zero in a name"),
        ("layer", 5, "%ff", "a name that is not UTF-8"),
        ("layer", 5, "%c3", "a name that is not UTF-8"),
        ("layer", 5, "%c0%80", "a name that is not UTF-8"),
        ("layer", 5, "%ed%a0%80", "a name that is not UTF-8"),
        ("layer", 5, "%f4%90%80%80", "a name that is not UTF-8"),
        ("kernel", 1, "1", "a number out of range"),
        ("kernel", 2, "sm_", "an invalid architecture"),
        ("kernel", 2, "", "two spaces"),
        ("kernel", 3, "99", "a number out of range"),
        ("kernel", 4, "0", "a number out of range"),
        ("kernel", 4, "1073741825", "a number out of range"),
        ("kernel", 5, "conv2d;", "an invalid name of a kernel"),
        ("kernel", 6, "0", "a number out of range"),
        ("kernel", 12, "1025", "a number out of range"),
        ("kernel", 15, "4294967296", "a number out of range"),
        ("kernel", 16, "2", "a number out of range"),
        ("kernel", 17, "7", "a step that is not the layer's"),
        ("kernel", 19, "on", "other arguments than the layer's"),
        ("kernel", 19, "iir", "other arguments than the layer's"),
        ("images", 1, "-1", "an invalid number"),
        ("images", 1, "2147483648", "a number out of range"),
        ("images", 1, "0 0", "too many words"),
        ("constants", 1, "31", "another size than that of network.constants"),
        ("input", 2, "float64", "an unknown data type"),
        ("input", 3, "0", "a number out of range"),
        ("input", 4, "2000000000", "a number out of range"),
        ("input", 5, "2147483647", "a size that is not the shape's"),
        ("buffer", 1, "0", "a number out of range"),
        ("buffer", 1, "18446744073709551616", "an invalid number"),
        ("buffer", 1, "8", "a place that a tensor of the layer cannot have"),
        ("run", 1, "1", "a number out of range"),
        ("run", 2, "0", "a number out of range"),
        ("run", 2, "2", "a place that a tensor of the layer cannot have"),
        ("run", 3, "3", "a number out of range"),
        ("run", 4, "b99999", "a number out of range"),
        ("run", 4, "i7", "a number out of range"),
        ("run", 4, "b-3", "an invalid number"),
        ("run", 4, "d1", "a place that a tensor of the layer cannot have"),
        ("run", 4, "c0", "a place that a tensor of the layer cannot have"),
        ("run", 5, "i0", "a place that a tensor of the layer cannot have"),
        ("run", 6, "a\tb", "a byte that is not printable ASCII"),
        ("run", 6, "a\x00b", ""),
        ("run", 0, "jump", "an unknown word"),
        ("launch", 2, "0", "a number out of range"),
        ("launch", 2, "2000000000", "a number out of range"),
        ("launch", 9, "0", "a number out of range"),
        ("launch", 10, "i0", "an output that is not among the arguments"),
        ("launch", 11, "33", "a number out of range"),
        ("launch", 11, "18", "too many words"),
        ("launch", 13, "c32", "a number out of range"),
        ("launch", 15, "d2147483648", "a number out of range"),
        ("launch", 15, "d-0", "an invalid number"),
        ("launch", 15, "f1234567g", "an invalid hexadecimal number"),
        ("launch", 15, "x", "an unknown argument"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_in_python_and_c(
    plans: list[list[str]], read_in_c: Callable[[bytes], str], start: str, place: int, word: str, reason: str
) -> None:
    _, lines = plans
    assert read_in_python(with_end(lines)) == read_in_c(with_end(lines)) == ""
    text = edited(lines, start, place, word)
    said = read_in_python(text)
    assert reason in said
    assert said.startswith("network.plan is damaged")
    assert read_in_c(text) == said or "\0" in word


@pytest.mark.parametrize("place", range(7))
def test_lines_in_another_order_are_refused_in_python_and_c(
    plans: list[list[str]], read_in_c: Callable[[bytes], str], place: int
) -> None:
    _, lines = plans
    start = ["file", "layer", "kernel", "images", "constants", "input", "buffer"][place]
    moved = [line for line in lines if line.startswith(start)]
    text = with_end([*(line for line in lines if line not in moved), *moved])
    assert "is damaged in line" in read_in_python(text)
    assert "is damaged in line" in read_in_c(text)


def test_a_file_that_would_be_read_twice_is_refused_in_python_and_c(
    plans: list[list[str]], read_in_c: Callable[[bytes], str]
) -> None:
    lines = plans[1]
    kernels = [i for i, line in enumerate(lines) if line.startswith("kernel")]
    shared = lines[kernels[1]].split(" ")
    shared[3] = lines[kernels[0]].split(" ")[3]
    again = [lines[0], *lines]
    for made, reason in (
        ([*lines[: kernels[1]], " ".join(shared), *lines[kernels[1] + 1 :]], "a number out of range"),
        (again, "two of its files have the same path"),
    ):
        said = read_in_python(with_end(made))
        assert reason in said
        assert read_in_c(with_end(made)) == said


def test_a_plan_without_its_end_or_with_a_flipped_bit_is_refused_in_python_and_c(
    plans: list[list[str]], read_in_c: Callable[[bytes], str]
) -> None:
    text = with_end(plans[0])
    for cut in (0, 5, 12, len(text) // 2, len(text) - 70, len(text) - 1):
        assert read_in_python(text[:cut])
        assert read_in_c(text[:cut])
    flipped = bytearray(text)
    flipped[text.index(b" ions") - 1] ^= 1
    for read in (read_in_python, read_in_c):
        assert read(bytes(flipped)).startswith("network.plan is damaged: its digest differs from the one in it")
    assert "another version" in read_in_python(text.replace(b"farm-plan 4", b"farm-plan 3"))
    assert "another version" in read_in_c(text.replace(b"farm-plan 4", b"farm-plan 3"))


def mutant(rng: random.Random, lines: list[str]) -> bytes:
    """A plan with one or two drawn faults in its words or lines."""
    made = [line.split(" ") for line in lines]
    for _ in range(rng.randint(1, 2)):
        words = rng.choice(made)
        place = rng.randrange(len(words))
        match rng.randrange(9):
            case 0 | 1:
                words[place] = rng.choice(REPLACEMENTS)
            case 2:
                words[place] = rng.choice(rng.choice(made))
            case 3:
                words.insert(place, rng.choice(words))
            case 4 if len(words) > 1:
                del words[place]
            case 5 if len(made) > 1:
                made.remove(words)
            case 6:
                made.insert(rng.randrange(len(made)), list(words))
            case 7 if digits := re.search("[0-9]{1,9}$", words[place]):
                near = int(digits[0]) * rng.choice((1, 2)) + rng.choice((-1, 0, 1, 16))
                words[place] = words[place][: digits.start()] + str(near)
            case _:
                made.insert(rng.randrange(len(made)), made.pop(rng.randrange(len(made))))
    return with_end([" ".join(words) for words in made])


def test_python_and_c_agree_on_mutated_plans(plans: list[list[str]], read_in_c: Callable[[bytes], str]) -> None:
    rng = random.Random(31)
    accepted = 0
    for _ in range(MUTANTS):
        text = mutant(rng, rng.choice(plans))
        python, c = read_in_python(text), read_in_c(text)
        assert bool(python) == bool(c), (text, python, c)
        accepted += not python
    assert MUTANTS // 50 < accepted < MUTANTS // 2


def test_a_launch_of_a_fixed_number_of_blocks_is_read_in_python_and_c(
    plans: list[list[str]], read_in_c: Callable[[bytes], str]
) -> None:
    _, lines = plans
    [number] = [i for i, line in enumerate(lines) if line.startswith("launch softmax")]
    words = lines[number].split(" ")
    words[3:9] = ["1", "0"] * 3
    text = with_end([*lines[:number], " ".join(words), *lines[number + 1 :]])
    assert read_in_python(text) == read_in_c(text) == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_write_no_lines_into_a_plan(played: Played, tmp_path: Path, language: str) -> None:
    name, tensor_name = HOSTILE, "a\u2029buffer 1\u202e %é"
    assert quote_name("a\nrun\x1b\x85") == "a%0arun%1b%c2%85"  # the ONNX reader refuses these
    nodes = [node("Conv", "x w", "t", name), node("Softmax", "t", "y", axis=1)]
    nodes[0].output[:] = nodes[1].input[:] = [tensor_name]
    proto = model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=[info("x", ("N", 3, 2, 2))])
    bundle = Bundle(played_bundle(tmp_path / "bundle", save(tmp_path, proto)))
    [layer, softmax] = plan_of(bundle).steps
    assert isinstance(layer, LayerStep)
    assert (layer.layer, layer.tensor, softmax.tensor) == (name, tensor_name, "y")
    assert all(b" " <= bytes([byte]) <= b"~" or byte == 10 for byte in bundle.plan)
    assert bundle.plan.count(b"\nrun ") == bundle.plan.count(b"\nbuffer ") == 1
    assert played.run(language, bundle.path, 3) == ""
    assert len(played.launches()) == 2
    if language == "c":
        assert played.run("c", bundle.path, 3, name) == ""
