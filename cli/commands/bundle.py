"""`farm bundle`: the contents of a bundle, and its digests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cli.exit_codes import BLOB_LOST, OK
from cli.options.output import AsJson
from cli.output.console import print_error, print_json, stdout
from cli.output.format import magnitude, size
from cli.output.layers import shape_text
from cli.output.table import EXTRA, Column, fitted_table
from farm.config.units import counted
from farm.jobs.model import batches_text

if TYPE_CHECKING:
    from farm.bundle.contents import Contents, LayerContents
    from farm.bundle.reader import Bundle
    from farm.signing import Keyring

app = typer.Typer(help="Bundles that farm fetch wrote.", no_args_is_help=True)

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder or .farm file that farm fetch wrote.")]

COLUMNS = (
    Column("LAYER", least=10),
    Column("SHAPE"),
    Column("NON-ZERO", "right", leaves=EXTRA),
    Column("SPARSITY", "right"),
    Column("MULTIPLY-ADDS", "right", leaves=2),
    Column("SHARE", "right"),
    Column("KERNELS", "right", leaves=1),
    Column("ARCH"),
    Column("SIZE", "right"),
)


@app.command()
def show(bundle: BundlePath, as_json: AsJson = False) -> int:
    """Show a bundle's layers, architectures and bytes, what is compiled and what is left to the framework.

    Shares are of the multiply-adds of all layers with weights, zeros included.
    """
    from farm.bundle.contents import contents_of
    from farm.bundle.reader import Bundle

    opened = Bundle(bundle)
    contents = contents_of(opened)
    if as_json:
        print_json(_document(opened, contents))
        return OK
    console = stdout()
    console.print(_head(opened))
    rows = [row for layer in contents.layers for row in _rows(layer)]
    console.print(fitted_table(COLUMNS, rows, console.width), soft_wrap=True)
    console.print()
    for line in _lines(opened, contents):
        console.print(Text(line), soft_wrap=True)
    return OK


@app.command()
def verify(
    bundle: BundlePath,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Also check the signature, with Ed25519 keys in PEM.")
    ] = None,
) -> int:
    """Check the digest of every file of a bundle; damage, or a wrong signature with --key, exits with 39."""
    from farm.bundle.reader import Bundle
    from farm.signing import read_keyring

    keys = None if key is None else read_keyring(key)
    opened = Bundle(bundle)
    if print_damage(opened, keys):
        return BLOB_LOST
    signed = "" if key is None else ", signed"
    stdout().print(Text(f"{bundle}: {_files(opened)}, all digests match{signed}", style="green"), soft_wrap=True)
    return OK


def print_damage(bundle: Bundle, keys: Keyring | None = None) -> int:
    """Print each missing, damaged or wrongly signed file; return their number."""
    found = bundle.damage(keys)
    for each in found:
        print_error(each)
    return len(found)


def _head(bundle: Bundle) -> Text:
    job = bundle.manifest.job
    return Text(f"{job.name}  job {job.id[:8]}", style="bold")


def _rows(contents: LayerContents) -> list[list[str | Text]]:
    """One row per architecture; only the first has the layer's common facts."""
    layer = contents.layer
    rows: list[list[str | Text]] = []
    for arch, count in contents.bytes_by_arch.items():
        parts = sum(each.arch == arch for each in (*layer.cubins, *layer.ptx))
        common = [
            layer.name,
            shape_text(layer.spec),
            f"{contents.nonzeros:,}",
            f"{contents.sparsity:.1%}",
            magnitude(contents.multiply_adds),
            _share(contents.share),
        ]
        rows.append([*(common if not rows else [""] * len(common)), str(parts), arch, size(count)])
    return rows


def _lines(bundle: Bundle, contents: Contents) -> list[str]:
    """Facts of the bundle below the table of layers."""
    lines = []
    network = bundle.manifest.network
    if network is not None:
        given, made = (
            ", ".join(f"{each.name} {each.dtype} {_shape(each.shape)}" for each in ports)
            for ports in (network.inputs, network.outputs)
        )
        lines.append(f"network      {given} -> {made}")
    else:
        lines.append("network      none, layers only")
    lines.append(f"compiled     {_compiled(contents)}, batch {batches_text(bundle.manifest.batches)}")
    if bundle.has_network:
        operators = ", ".join(f"{name} {count}" for name, count in contents.glue.items()) or "nothing"
        constants = f", with {size(contents.constants_bytes)} of constants" if contents.constants_bytes else ""
        left = _share(contents.left_share)
        lines.append(f"glue         {operators}{constants}: {left} of the multiply-adds, for the framework")
    if bundle.refused:
        lines.append(f"runtime      {bundle.refused}")
    for each in contents.skipped:
        count = "unknown" if each.multiply_adds is None else magnitude(each.multiply_adds)
        share = "" if each.share is None else f", {each.share:.1%}"
        lines.append(f"  skipped    {each.operator} {each.name} ({count} multiply-adds{share}): {each.reason}")
    lines += [f"  missing    {each.name} for {', '.join(each.archs)}: {each.reason}" for each in bundle.missing]
    tools = ", ".join(f"{name} {version}" for name, version in bundle.manifest.toolchain.items())
    lines.append(f"tools        {tools}")
    lines.append(f"size         {size(bundle.file_bytes)} in {_files(bundle)}")
    return lines


def _files(bundle: Bundle) -> str:
    return counted(len(bundle.files()) + 1, "file")  # and the manifest


def _compiled(contents: Contents) -> str:
    layers = counted(len(contents.layers) + len(contents.skipped), "layer")
    share = None if contents.left_share is None else 1 - contents.left_share
    return f"{len(contents.layers)} of {layers} with weights, {_share(share)} of the multiply-adds"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _shape(sizes: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if each is None else str(each) for each in sizes)}]"


def _document(bundle: Bundle, contents: Contents) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "job": manifest.job.model_dump(),
        "archs": list(bundle.archs),
        "batches": list(manifest.batches),
        "network": manifest.network and manifest.network.model_dump(),
        "layers": [
            {
                "name": each.layer.name,
                "shape": shape_text(each.layer.spec),
                "data_type": each.layer.spec.data_type,
                "nonzeros": each.nonzeros,
                "sparsity": each.sparsity,
                "multiply_adds": each.multiply_adds,
                "share": each.share,
                "bytes": dict(each.bytes_by_arch),
            }
            for each in contents.layers
        ],
        "glue": dict(contents.glue),
        "constants_bytes": contents.constants_bytes,
        "skipped": [
            {
                "name": each.name,
                "operator": each.operator,
                "reason": each.reason,
                "multiply_adds": each.multiply_adds,
                "share": each.share,
            }
            for each in contents.skipped
        ],
        "missing": [each.model_dump() for each in bundle.missing],
        "refused": bundle.refused,
        "left_share": contents.left_share,
        "bytes": bundle.file_bytes,
    }
