"""Made-up results of a benchmark, in the form that a real run writes."""

from __future__ import annotations

from codegen.model_zoo.ten_operators import TEN_OPERATORS
from farm.bench.layers.contenders import GENERATED, PEERS
from farm.bench.layers.results import Measurement, Results
from farm.bench.layers.roof import Peaks, roof_microseconds
from farm.cuda.measure.workload import CaseKey

PEAKS = Peaks(67e12, 4.3e12)
SLOWER = {"cudnn-fp32": 5.0, "cudnn-tf32": 2.6, "cudnn-fp16": 1.3, "cublas-fp32": 9.0, "cusparse": 14.0, "escoin": 11.0}
"""Made up: how many times as long a peer takes at sparsity 0.9."""


def made_up(sparsities: tuple[float, ...] = (0.9,), batches: tuple[int, ...] = (64, 1)) -> Results:
    measurements = []
    for number, (name, spec) in enumerate(TEN_OPERATORS.items()):
        for batch in batches:
            for sparsity in sparsities:
                case = CaseKey(name, batch, sparsity, "float32")
                nonzeros = round(spec.weights_count * (1 - sparsity))
                roof = roof_microseconds(spec, nonzeros, batch, PEAKS)
                own = roof / (0.3 + 0.05 * number) + 1.5
                facts = {"spec": spec.to_json(), "images": batch, "nonzeros": nonzeros}
                measurements.append(
                    Measurement(case, GENERATED, own, "", "", 1e-7, roof, own * 1.1, {**facts, "registers": 64})
                )
                dense = roof_microseconds(spec, round(spec.weights_count * 0.1), batch, PEAKS) / (0.3 + 0.05 * number)
                for peer in PEERS:
                    if peer in SLOWER:
                        time = SLOWER[peer] * (dense + 1.5) * (1 + 0.07 * number)
                        measurements.append(Measurement(case, peer, time, relative_error=1e-6))
                    else:
                        measurements.append(Measurement(case, peer, None, "out of GPU memory"))
    environment = {
        "gpu": "NVIDIA Made-Up",
        "date": "2026-11-21T12:00:00+00:00",
        "peaks": {"flops": PEAKS.flops, "bytes_per_second": PEAKS.bytes_per_second},
    }
    return Results(environment, {"seed": 0}, tuple(measurements))
