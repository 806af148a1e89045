"""Result of `farm verify --network`: the outputs, and the first tensor that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.output.console import print_json, stdout
from cli.output.format import counted
from cli.output.table import Column, fitted_table

if TYPE_CHECKING:
    from farm.verify.network import NetworkVerification, TensorCheck

COLUMNS = (
    Column("TENSOR", least=10),
    Column("LAYER", least=8),
    Column("ELEMENTS", "right"),
    Column("REL. ERROR", "right"),
    Column("% OF TOLERANCE", "right"),
    Column("RESULT"),
)


def print_network(found: NetworkVerification, *, as_json: bool) -> int:
    """Print the result and return the exit code."""
    code = OK if found.ok else JOB_FAILED
    if as_json:
        print_json(_document(found))
        return code
    console = stdout()
    console.print(fitted_table(COLUMNS, _rows(found), console.width), soft_wrap=True)
    where = "in the emulator" if found.where == "emulator" else f"on {found.where}"
    on = f"{counted(found.images, 'image')} {where}"
    if found.ok:
        elements = sum(each.elements for each in found.outputs)
        said = f"PASS: the network computes what onnxruntime does: {elements:,} outputs compared, {on}"
    else:
        said = f"FAIL: the network differs from onnxruntime, {on}{_where(found.first_wrong)}"
    console.print(Text(said, style="green" if found.ok else "red"), soft_wrap=True)
    return code


def _where(first: TensorCheck | None) -> str:
    if first is None:
        return ""
    of = f"of the compiled layer {first.layer}" if first.layer else "which no compiled layer computes"
    return f"; the first tensor that differs is {first.name}, {of}"


def _rows(found: NetworkVerification) -> Sequence[Sequence[str | Text]]:
    """A row for the first tensor that differs, then one for each output."""
    first = found.first_wrong
    shown = [*([first] if first is not None and first not in found.outputs else []), *found.outputs]
    return [
        [
            each.name,
            each.layer or "-",
            f"{each.elements:,}",
            f"{each.relative_error:.1e}",
            f"{each.tolerance_share:.1%}",
            Text("PASS", style="green") if each.ok else Text("FAIL", style="red"),
        ]
        for each in shown
    ]


def _document(found: NetworkVerification) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "on": found.where,
        "images": found.images,
        "outputs": [_tensor(each) for each in found.outputs],
        "tensors": [_tensor(each) for each in found.tensors],
        "first_wrong": None if found.first_wrong is None else found.first_wrong.name,
    }


def _tensor(check: TensorCheck) -> dict[str, Any]:
    return {
        "name": check.name,
        "layer": check.layer,
        "elements": check.elements,
        "relative_error": check.relative_error,
        "tolerance_share": check.tolerance_share,
        "ok": check.ok,
    }
