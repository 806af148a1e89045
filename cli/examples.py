"""Examples of the main commands, shown at the end of their --help."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "farm": (
        "farm demo",
        "farm compile model.onnx --arch h100 -o bundle",
        "farm doctor",
    ),
    "compile": (
        "farm compile model.onnx --arch sm_80,sm_90",
        "farm compile sweep/*.onnx --arch h100,rtx4090 --batch 1 -o bundles",
        "farm compile model.onnx --arch a100 --input-shape input:N,3,224,224",
    ),
    "plan": ("farm plan model.onnx --arch sm_90", "farm plan sweep/*.onnx --arch h100,rtx4090 --json"),
    "submit": (
        "farm submit sweep/*.onnx --arch sm_90",
        "farm submit model.onnx --arch sm_90 --json",
    ),
    "serve": (
        "farm serve",
        "farm serve --drain",
        "FARM_STORE_SIZE=500GiB FARM_LEDGER_AGE=90d farm serve --metrics-port 9400",
    ),
    "status": (
        "farm status --watch",
        "farm status --state FAILED --state CRASHED",
        "farm status --submission c040f5064d89",
        "farm status --arch h100 --json",
    ),
    "inspect": ("farm inspect", "farm inspect 093ec891"),
    "report": (
        "farm report",
        "farm report 093ec891 -o resnet50.html",
        "farm report --sweep c040f5064d89 --csv sweep.csv",
    ),
    "logs": ("farm logs --follow", "farm logs 093ec891"),
    "wait": ("farm wait 093ec891", "farm wait --submission c040f5064d89 --timeout 2h"),
    "explain": ("farm explain 093ec891/conv1", "farm explain latest/conv1/sm_90"),
    "cancel": ("farm cancel 093ec891", "farm cancel --all --yes"),
    "retry": ("farm retry 093ec891", "farm retry --all"),
    "fetch": ("farm fetch 093ec891 -o bundle", "farm fetch --submission c040f5064d89 -o bundles"),
    "verify": ("farm verify", "farm verify 093ec891 --gpu"),
    "export": ("farm export bundle -o model.pt2", "farm export bundle --triton models/resnet18"),
    "run": ("farm run bundle --input x.npy -o y.npy",),
    "tune": (
        "farm tune model.onnx --batch 1,64",
        "farm tune model.onnx --layer conv1 --budget 5min --force",
        "farm tune --op all",
    ),
    "qualify": ("farm qualify", "farm qualify --layers 10000 --budget 5min"),
    "doctor": ("farm doctor", "farm doctor --archs"),
}
"""Command lines by command; `farm` is the program itself."""


def examples_text(command: str) -> str | None:
    """The examples of a command as text; None if it has none."""
    lines = EXAMPLES.get(command)
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None
