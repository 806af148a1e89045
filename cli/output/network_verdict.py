"""Result of `farm verify --network`: the compiled layers, the outputs, and the first tensor that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from cli.exit_codes import JOB_FAILED, OK
from cli.output.console import print_json, stdout
from cli.output.table import EXTRA, Column, fitted_table, without_columns
from farm.config.units import counted

if TYPE_CHECKING:
    from farm.verify.network import NetworkVerification
    from farm.verify.tensor_checks import TensorCheck

COLUMNS = (
    Column("TENSOR", least=10, leaves=EXTRA),
    Column("LAYER", least=8),
    Column("BLOCKS", "right", leaves=1),
    Column("ELEMENTS", "right"),
    Column("WORST ERROR", "right"),
    Column("TOLERANCE", "right"),
    Column("% OF IT", "right"),
    Column("% OF FLOAT64 BOUND", "right"),
    Column("RESULT"),
)


def print_network(found: NetworkVerification, *, as_json: bool) -> int:
    """Print the result and return the exit code."""
    code = OK if found.ok else JOB_FAILED
    if as_json:
        print_json(_document(found))
        return code
    console = stdout()
    unknown = () if found.sampled else ("BLOCKS", "% OF FLOAT64 BOUND")
    console.print(fitted_table(*without_columns(unknown, COLUMNS, _rows(found)), console.width), soft_wrap=True)
    where = "in the emulator" if found.where == "emulator" else f"on {found.where}"
    if found.sampled:
        where += ", sampled blocks of each layer, the rest in onnxruntime"
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
    message = first.emulated.verification.message if first.emulated is not None else ""
    return f"; the first tensor that differs is {first.name}, {of}{f': {message}' if message else ''}"


def _rows(found: NetworkVerification) -> list[list[str | Text]]:
    """A row for each layer, for the first tensor that differs if no layer computes it, and for each output.

    A narrow table has no column of tensors, so that of layers names the others too.
    """
    first = found.first_wrong
    shown = [each for each in found.tensors if each.layer or each is first]
    layers = {each.name for each in shown}
    shown += [each for each in found.outputs if each.name not in layers]
    return [
        [
            each.name,
            each.layer or f"{each.name} ({'output' if each in found.outputs else 'no layer'})",
            _blocks(each),
            f"{each.elements:,}",
            f"{each.error:.1e}",
            f"{each.tolerance:.1e}",
            f"{each.tolerance_share:.1%}",
            "-" if each.emulated is None else f"{each.emulated.verification.bound_share:.1%}",
            Text("PASS", style="green") if each.ok else Text("FAIL", style="red"),
        ]
        for each in shown
    ]


def _blocks(check: TensorCheck) -> str:
    if check.emulated is None:
        return "-"
    return f"{check.emulated.verification.blocks_run:,} of {check.emulated.verification.blocks_total:,}"


def _document(found: NetworkVerification) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "on": found.where,
        "sampled": found.sampled,
        "images": found.images,
        "outputs": [_tensor(each) for each in found.outputs],
        "tensors": [_tensor(each) for each in found.tensors],
        "first_wrong": None if found.first_wrong is None else found.first_wrong.name,
    }


def _tensor(check: TensorCheck) -> dict[str, Any]:
    verification = None if check.emulated is None else check.emulated.verification
    return {
        "name": check.name,
        "layer": check.layer,
        "elements": check.elements,
        "relative_error": check.relative_error,
        "error": check.error,
        "tolerance": check.tolerance,
        "tolerance_share": check.tolerance_share,
        "bound_share": None if verification is None else verification.bound_share,
        "message": "" if verification is None else verification.message,
        "ok": check.ok,
    }
