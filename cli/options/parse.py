"""Parsers of option values; each raises UsageError for a value that it does not accept."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from codegen.ir.layer_spec import DataType
from codegen.target.gpus import arch_named
from farm.config.units import DURATIONS, SIZES, format_bytes, format_seconds, read_bytes, read_seconds
from farm.errors import UsageError

NATIVE = "native"
"""The architecture of this machine's GPU."""


def archs_of(values: Sequence[str]) -> tuple[str, ...]:
    """The architectures of a repeatable option whose values are lists, also as in TORCH_CUDA_ARCH_LIST: 8.0;9.0+PTX.

    `native` is that of this machine's GPU. Raises DeviceError without one.
    """
    names = [name.strip() for value in values for name in re.split("[,;]", value) if name.strip()]
    if NATIVE not in names:
        return tuple(names)
    from farm.cuda.driver import device_arch, device_handle

    return tuple(device_arch(device_handle(0)) if name == NATIVE else name for name in names)


def arch_of(value: str) -> str:
    """An architecture as ptxas spells it: sm_90 for 9.0, sm90 and H100. Raises UsageError."""
    arch = arch_named(value)
    if arch is None:
        raise UsageError(
            f"--arch {value}: expected an architecture or a GPU such as sm_90 or h100. farm doctor --archs lists them."
        )
    return arch


def input_shapes_of(values: Sequence[str]) -> dict[str, tuple[int | None, ...]]:
    """Input shapes by name, from values such as input:N,3,224,224, None for N. Raises UsageError."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for value in values:
        name, _, sizes = value.rpartition(":")
        try:
            shape = tuple(None if part == "N" else int(part) for part in sizes.replace("x", ",").split(","))
        except ValueError:
            shape = ()
        if not name or not shape or any(size is not None and size < 1 for size in shape):
            raise UsageError(f"--input-shape {value}: expected a name and sizes such as input:N,3,224,224")
        shapes[name] = shape
    return shapes


def input_values_of(values: Sequence[str]) -> dict[str, float]:
    """Values of inputs by name, from values such as sr=16000. Raises UsageError."""
    found = {}
    for value in values:
        name, _, number = value.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            name = ""
        if not name or not math.isfinite(found[name]):
            raise UsageError(f"--input-value {value}: expected a name and a number such as sr=16000")
    return found


def share_of(option: str, value: float) -> float:
    """A share of a whole. Raises UsageError."""
    if not 0 <= value <= 1:
        raise UsageError(f"{option} {value:g}: expected a share from 0 to 1, such as 0.6")
    return value


def bytes_of(option: str, value: str, *, least: int = 0) -> int:
    """Bytes from a size such as 10GB, 500MB or 8GiB. Raises UsageError."""
    try:
        count = read_bytes(value)
    except ValueError as error:
        raise UsageError(f"{option} {value}: expected {error}") from None
    if count < least:
        raise UsageError(f"{option} {value}: expected {SIZES}, of at least {format_bytes(least)}")
    return count


def seconds_of(option: str, value: str, *, least: float = 0.0) -> float:
    """Seconds from a duration such as 90d, 12h, 15min or 10s. Raises UsageError."""
    try:
        seconds = read_seconds(value)
    except ValueError as error:
        raise UsageError(f"{option} {value}: expected {error}") from None
    if seconds < least:
        raise UsageError(f"{option} {value}: expected {DURATIONS}, of at least {format_seconds(least)}")
    return seconds


def address_of(option: str, value: str) -> tuple[str, int]:
    """Host and port of an address such as 127.0.0.1:8080 or [::1]:8080. Raises UsageError."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", value)
    if match is None or int(match[2]) > 65535:
        raise UsageError(f"{option} {value}: expected HOST:PORT, as in 127.0.0.1:8080")
    return match[1].strip("[]"), int(match[2])


def names_of(values: Sequence[str]) -> list[str]:
    """The distinct names of a repeatable option whose values are comma-separated lists."""
    return list(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))


def data_types_of(value: str) -> tuple[DataType, ...]:
    """Distinct data types from a list such as float32,float16. Raises UsageError."""
    known: dict[str, DataType] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
    names = names_of([value])
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"--data-type {value}: expected some of {', '.join(known)}")
    return tuple(known[name] for name in names)


def numbers_of(option: str, value: str, least: float, *, most: float = math.inf, whole: bool = False) -> list[float]:
    """Distinct numbers from a list such as 0.5,0.9. Raises UsageError."""
    try:
        numbers = list(dict.fromkeys(int(part) if whole else float(part) for part in value.split(",")))
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number <= most for number in numbers):
        bound = f"{least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
        kind = "whole numbers" if whole else "numbers"
        raise UsageError(f"{option} {value}: expected {kind} ({bound}) with commas between them") from None
    return numbers
