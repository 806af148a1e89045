"""The process under ncu: runs each operator's generated kernels, then cuDNN's, then im2col and cuSPARSE's.

ncu --profile-from-start off ... python -m farm.bench.layers.profiled BATCH SPARSITY OPERATOR...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from codegen.toolchain.tools import find_toolchain
from farm.bench.layers.index_kernels import index_cubins
from farm.bench.layers.peers import Layer, PeerKernels, Peers
from farm.bench.layers.torch_gpu import TorchGpu
from farm.config.settings import load_settings
from farm.cuda.device import Device
from farm.cuda.measure.kernels import KernelPool
from farm.cuda.measure.layer_data import LayerData, Shape
from farm.cuda.measure.workload import Case, Choice, operator_cases
from farm.store import open_store
from farm.tuning.book import TuningBook
from farm.tuning.files import shipped_records
from farm.worker.cache_lookup import known_toolchain

PEERS = ("cudnn-fp32", "cusparse")


def main(arguments: Sequence[str]) -> None:
    """Runs each contender once to warm up, then once inside the profile."""
    batch, sparsity, *names = arguments
    settings = load_settings()
    store = open_store(settings)
    toolchain = known_toolchain(find_toolchain(settings.nvcc, settings.ptxas), store)
    with Device() as device:
        book = TuningBook.of([], shipped_records())  # a cluster's machine has no ledger
        with KernelPool(settings, store, toolchain, device.arch, gpu=device.facts.name, book=book) as pool:
            gpu = TorchGpu((stream := device.new_stream()).handle)
            for case in operator_cases(names, Choice((int(batch),), (float(sparsity),))):
                _profile(case, device, pool, gpu, stream)
                gpu.release()


def _profile(case: Case, device: Device, pool: KernelPool, gpu: TorchGpu, stream: object) -> None:
    built = pool.submit(case).result()
    index = pool.begin(partial(index_cubins, case.spec)).result()
    loaded = [device.load(cubin, launch) for cubin, launch in built.kernels]
    with LayerData(device, Shape(case.spec, case.images, 0, sets=1), device.facts.l2_bytes) as stage:
        layer = Layer(case.spec, case.weights, case.images, stage.inputs, stage.outputs)

        def generated(_: int) -> None:
            for kernel in loaded:
                kernel(stage.inputs[0], stage.outputs[0], case.images, stream)

        with gpu.on_stream():
            peers = Peers(gpu, device, stream, layer, PeerKernels(index))
            launches = [generated, *(peers.prepare(name).variants[0].launch for name in PEERS)]
            for launch in launches:
                launch(0)
                with gpu.profiled():
                    launch(0)


if __name__ == "__main__":
    main(sys.argv[1:])
