"""`farm verify`: compare kernels, or the whole network, with a reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from cli.commands.run import read_arrays
from cli.exit_codes import JOB_FAILED, OK
from cli.options.build import InputValues
from cli.options.gpu import Local
from cli.options.jobs import OneJob
from cli.options.output import AsJson
from cli.options.parse import input_values_of
from cli.output.console import print_json, stderr, stdout
from cli.output.network_verdict import print_network
from cli.output.table import Column, fitted_table, without_columns
from codegen.errors import without_places
from farm.config.units import counted
from farm.errors import UsageError
from farm.jobs.model import batches_text

COLUMNS = (
    Column("LAYER", least=12),
    Column("ARCHS", least=7, cut_end=True),
    Column("BATCH"),
    Column("ON", least=8, cut_end=True),
    Column("PARTS", "right"),
    Column("BLOCKS", "right"),
    Column("OUTPUTS", "right"),
    Column("REL. ERROR", "right"),
    Column("% OF TOLERANCE", "right"),
    Column("RESULT"),
)


def verify(
    job: OneJob = "latest",
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the cubins on a GPU instead of the emulator.")] = False,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=1, help="Number of input images. Default: 2.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random input.")] = 0,
    local: Local = False,
    network: Annotated[
        bool, typer.Option("--network", help="Compare the whole network with onnxruntime instead.")
    ] = False,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", metavar="X.npy", help="With --network: an array for each input, or one .npz; random by default."
        ),
    ] = None,
    input_value: InputValues = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE", help="With --network: the ONNX file, if it was moved.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check every layer's kernel against a float64 reference.

    Runs the cubins in an emulator, and the PTX of cubins that it does not know; with --gpu all run on a GPU, of the Ray
    cluster if one is configured. % OF TOLERANCE is the largest error as a share of the tolerance, which follows from
    the number of terms and the data type; up to 100 % passes.

    With --network every tensor that the ONNX model has too is compared with onnxruntime (extra `reference`). The
    tolerance is a share of the tensor's largest element: 1e-4 in float32, 0.02 in float16, 0.1 in bfloat16. In the
    emulator a large network runs on sampled blocks of each layer, given the reference's tensors, also compared with
    float64; what is between the layers runs in onnxruntime.
    """
    from farm.api import Farm
    from farm.config.settings import load_settings
    from farm.verify.network import NetworkQuestion

    if local and not gpu:
        raise UsageError("--local selects a GPU: add --gpu")
    if network:
        if inputs and batch is not None:
            raise UsageError("--batch is for random inputs: leave it out with --input")
        values = input_values_of(input_value or [])
        question = NetworkQuestion(read_arrays(inputs or ()), model, gpu, local, batch, seed, values)
        with Farm.open(load_settings()) as farm, stderr().status("verifying the network") as spinner:
            found = farm.verify_network(job, question, notice=spinner.update)
        return print_network(found, as_json=as_json)
    if inputs or input_value or model is not None:
        raise UsageError("--input, --input-value and --model are for the whole network: add --network")
    rows: list[dict[str, Any]] = []
    with Farm.open(load_settings()) as farm, stderr().status("verifying") as spinner:
        for layer in farm.verify(job, gpu=gpu, batch=batch or 2, seed=seed, local=local, notice=spinner.update):
            verification = layer.verification
            spinner.update(f"verified {layer.layer}")
            rows.append(
                {
                    "layer": layer.layer,
                    "parts": layer.parts,
                    "archs": list(layer.archs),
                    "batches": list(layer.batches),
                    "on": layer.where,
                    "ptx_because": layer.ptx_because,
                    "blocks": verification.blocks_run,
                    "blocks_total": verification.blocks_total,
                    "outputs": verification.outputs_checked,
                    "relative_error": verification.relative_error,
                    "bound_share": verification.bound_share,
                    "ok": verification.ok,
                    "message": verification.message,
                }
            )
    wrong = sum(not row["ok"] for row in rows)
    if as_json:
        print_json({"ok": not wrong, "layers": rows})
    else:
        console = stdout()
        for shown in (verdict_table(rows, console.width), *ptx_lines(rows), *wrong_lines(rows)):
            console.print(shown, soft_wrap=True)
        outputs = sum(row["outputs"] for row in rows)
        layers = len({row["layer"] for row in rows})  # one with several tilings has several rows
        within = "the layer is within tolerance" if layers == 1 else f"all {layers} layers are within tolerance"
        verdict = f"FAIL: {wrong} of {counted(len(rows), 'check')} failed" if wrong else f"PASS: {within}"
        console.print(Text(f"{verdict}: {outputs:,} outputs compared", style="red" if wrong else "green"))
    return JOB_FAILED if wrong else OK


def verdict_table(rows: Sequence[Mapping[str, Any]], width: int) -> Group:
    """One row per layer and tiling, with all parts together."""
    cells = [
        [
            row["layer"],
            ",".join(arch.removeprefix("sm_") for arch in row["archs"]),
            batches_text(row["batches"]),
            row["on"],
            str(row["parts"]),
            f"{row['blocks']:,} of {row['blocks_total']:,}",
            f"{row['outputs']:,}",
            f"{row['relative_error']:.1e}",
            f"{row['bound_share']:.1%}",
            Text("PASS", style="green") if row["ok"] else Text("FAIL", style="red"),
        ]
        for row in rows
    ]
    told = {"PARTS": any(row["parts"] > 1 for row in rows), "BATCH": any(row["batches"] for row in rows)}
    return fitted_table(*without_columns([name for name in told if not told[name]], COLUMNS, cells), width)


def ptx_lines(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """The checks that ran PTX in the place of cubins, one line for each reason."""
    counts = Counter(without_places(row["ptx_because"]) for row in rows if row["ptx_because"])
    return [
        Text(f"{counted(count, 'check')} of PTX only: {reason}. farm verify --gpu runs the cubins")
        for reason, count in counts.items()
    ]


def wrong_lines(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """The failed checks in full, for below the table."""
    return [Text(f"{_checked(row)}: {row['message']}", style="red") for row in rows if not row["ok"]]


def _checked(row: Mapping[str, Any]) -> str:
    """A check's name, as in `conv1 sm_80,sm_90 batch 1,8`."""
    batches = f" batch {batches_text(row['batches'])}" if row["batches"] else ""
    return f"{row['layer']} {','.join(row['archs'])}{batches}"
