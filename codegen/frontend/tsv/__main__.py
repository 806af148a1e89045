"""`python -m codegen.frontend.tsv FOLDER` writes a RadiX-Net or a random sparse network as TSV files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from codegen.frontend.tsv.manifest import BIASES, CLIP
from codegen.frontend.tsv.network import write_tsv_network
from codegen.model_zoo.radixnet import radix_net, random_layers

MOST_RANDOM = 120
"""Most distinct random layers; a deeper network repeats them."""


def main() -> None:
    """Writes a TSV network for `farm compile` from the command line."""
    parser = argparse.ArgumentParser(prog="python -m codegen.frontend.tsv", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--neurons", type=int, default=1024, help="16 times a power of two (default: 1024)")
    parser.add_argument("--layers", type=int, default=120, help="default: 120")
    parser.add_argument("--random", action="store_true", help="random pattern and values, 32 edges per neuron")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    neurons, layers = asked.neurons, asked.layers
    try:
        if layers < 1:
            raise ValueError(f"invalid number of layers {layers}: give 1 or more")
        if asked.random:
            made, bias = random_layers(neurons, min(layers, MOST_RANDOM), asked.seed), 0.0
        else:
            made, bias = radix_net(neurons, asked.seed)[:layers], BIASES.get(neurons, BIASES[1024])
        path = write_tsv_network(asked.folder, made, neurons, layers, bias, CLIP)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{asked.folder} cannot be written ({error.strerror}): name another folder")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
