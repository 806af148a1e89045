"""Trains, prunes, exports and compiles a network, and lets its generated code read digits.

    python -m tests.digits [FOLDER]

A minute or two on two cores, without a GPU or a network. The farm is the one that `farm config show` prints.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from tests.digits.demonstration import demonstrate
from tests.digits.training import Digits

ARCHS = ("sm_80", "sm_90")
EPOCHS, FINE_EPOCHS = 20, 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.digits", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo/digits"), metavar="FOLDER")
    archs = list(ARCHS)
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        archs = list(dict.fromkeys([*archs, f"sm_{major}{minor}"]))
    folder = parser.parse_args().folder
    answers = demonstrate(folder, Digits.load(), archs=archs, epochs=EPOCHS, fine_epochs=FINE_EPOCHS, images=None)
    return 0 if all(answer.differing == 0 for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
