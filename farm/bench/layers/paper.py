"""The paper's figures and tables beside the measured ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from farm.bench.layers.contenders import GENERATED, title_of
from farm.bench.layers.counters import DRAM, FETCH_STALLS, GLOBAL_LOADS
from farm.bench.layers.results import Results
from farm.bench.layers.summary import geometric_mean, speedups
from farm.cuda.measure.workload import CaseKey

PEERS = ("cudnn-fp32", "cublas-fp32", "cusparse", "escoin")
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MAIN = 0.9
STRUCTURES = {"PC": 0.5, "PF": 0.5, "Both": 0.8}
"""Structured pruning: half the input channels, half the output channels, both; and the sparsity compared with each."""
UNKNOWN = "not in our notes"
Counters = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class PaperRow:
    """A number of the paper and the measured one."""

    figure: str
    what: str
    paper: str
    ours: str


def paper_numbers() -> dict[str, Any]:
    """Numbers noted from the paper."""
    numbers: dict[str, Any] = json.loads(files("farm.bench.layers").joinpath("paper_numbers.json").read_text())
    return numbers


def rows(results: Results, counters: Counters | str) -> list[PaperRow]:
    """Every comparison that the results allow; `counters` is a text if there are none."""
    numbers = paper_numbers()
    return [
        *_speedup_rows(results, numbers),
        *_structured_rows(results, numbers),
        *_deleted_rows(results, numbers),
        *_machine_rows(results, numbers),
        *_sweep_rows(results, numbers),
        *_size_rows(results, numbers),
        *_counter_rows(counters, numbers),
    ]


def structured_name(operator: str, structure: str) -> str:
    """Name of a structurally pruned operator in the results."""
    return f"{operator}, {structure}"


def _span(values: Sequence[float], unit: str = "x") -> str:
    return f"{min(values):.1f}-{max(values):.1f}{unit}"


def _spread(ratios: Mapping[CaseKey, float]) -> str:
    if not ratios:
        return "no time"
    return f"{_span(list(ratios.values()))}, mean {geometric_mean(ratios.values()):.1f}x"


def _ratios(results: Results, peer: str, batch: int, sparsity: float | None) -> dict[CaseKey, float]:
    return {
        case: ratio
        for case, ratio in speedups(results, peer).items()
        if case.batch == batch and (case.sparsity == sparsity if sparsity is not None else case.sparsity > 0)
    }


def _batches(results: Results) -> list[int]:
    return list(dict.fromkeys(each.case.batch for each in results.measurements))


def _speedup_rows(results: Results, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    for batch in _batches(results):
        theirs = numbers["speedups"].get(str(batch), {})
        for peer in PEERS:
            paper = _span(theirs[peer]) if peer in theirs else UNKNOWN
            what = f"over {title_of(peer)}, batch {batch}, sparsity {MAIN:g}"
            yield PaperRow(theirs.get("figure", "-"), what, paper, _spread(_ratios(results, peer, batch, MAIN)))


def _structured_rows(results: Results, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    own, dense = results.of(GENERATED), results.of("cudnn-fp32")
    for batch in _batches(results):
        for structure, sparsity in STRUCTURES.items():
            found = []
            for case, measurement in own.items():
                name = structured_name(case.operator, structure)
                other = next((each for key, each in dense.items() if (key.operator, key.batch) == (name, batch)), None)
                mine = (case.batch, case.sparsity) == (batch, sparsity) and measurement.microseconds
                if mine and other and other.microseconds:
                    found.append(other.microseconds / mine)
            theirs = numbers["structured"].get(str(batch), {}).get(structure)
            ours = f"mean {geometric_mean(found):.1f}x ({_span(found)})" if found else "no time"
            what = f"code at {sparsity:g} over {structure} on cuDNN, batch {batch}"
            yield PaperRow("Figure 9", what, f"{theirs}x" if theirs else UNKNOWN, ours)


def _facts(results: Results, operator: str, batch: int) -> dict[float, tuple[float | None, Mapping[str, Any]]]:
    """Time and facts of the generated kernels, by sparsity."""
    return {
        case.sparsity: (each.microseconds, each.facts)
        for case, each in results.of(GENERATED).items()
        if (case.operator, case.batch) == (operator, batch)
    }


def _deleted_rows(results: Results, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    for operator, by_sparsity in numbers["deleted"].items():
        facts = _facts(results, operator, max(_batches(results), default=64))
        if 0.0 not in facts:
            continue
        dense_time, _ = facts[0.0]
        for sparsity, (time, found) in sorted(facts.items()):
            theirs = by_sparsity.get(f"{sparsity:g}")
            if sparsity == 0 or "fmas_deleted" not in found:
                continue
            ratio = f"{dense_time / time:.3f}x" if dense_time and time else "no time"
            paper = f"{theirs[0]:,} / {theirs[1]:.3f}x" if theirs else UNKNOWN
            what = f"{operator} at {sparsity:g}: FMAs deleted / over its dense version"
            yield PaperRow("Table 3", what, paper, f"{found['fmas_deleted']:,} / {ratio}")


def _machine_rows(results: Results, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    """Machine instructions removed per removed PTX instruction."""
    shares = []
    batch = max(_batches(results), default=64)
    for operator in dict.fromkeys(case.operator for case in results.of(GENERATED)):
        facts = _facts(results, operator, batch)
        if not {0.0, MAIN} <= facts.keys():
            continue
        (_, dense), (_, sparse) = facts[0.0], facts[MAIN]
        if "ptx_instructions" in dense and "ptx_instructions" in sparse:
            ptx = dense["ptx_instructions"] - sparse["ptx_instructions"]
            machine = dense["machine_instructions"] - sparse["machine_instructions"]
            shares.append(machine / ptx if ptx else 0.0)
            what = f"{operator}: PTX / machine instructions removed at {MAIN:g}"
            yield PaperRow("text", what, UNKNOWN, f"{ptx:,} / {machine:,}")
    if shares:
        what = "machine instructions removed for each PTX instruction removed"
        yield PaperRow("text", what, _span(numbers["machine_over_ptx"], ""), f"{min(shares):.2f}-{max(shares):.2f}")


def _sweep_rows(results: Results, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    for batch in _batches(results):
        for peer in PEERS:
            theirs = numbers["sweep"].get(str(batch), {}).get(peer, {})
            measured = sorted({case.sparsity for case in _ratios(results, peer, batch, None)})
            if len(measured) < 2:
                continue
            for sparsity in measured:
                what = f"over {title_of(peer)}, batch {batch}, sparsity {sparsity:g}"
                paper = theirs.get(f"{sparsity:g}", "-" if theirs else UNKNOWN)
                yield PaperRow("Figure 11", what, paper, _spread(_ratios(results, peer, batch, sparsity)))
            what = f"over {title_of(peer)}, batch {batch}, all of these"
            yield PaperRow("Figure 11", what, theirs.get("all", "-"), _spread(_ratios(results, peer, batch, None)))


def _size_rows(results: Results, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    batch = max(_batches(results), default=64)
    for operator, sizes in numbers["sizes_kilobytes"].items():
        facts = _facts(results, operator, batch)
        for kind in ("ptx", "cubin"):
            ours = [
                f"{facts[sparsity][1][f'{kind}_bytes'] / 1e3:.4g}"
                for sparsity in (0.0, 0.5, 0.9)
                if sparsity in facts and f"{kind}_bytes" in facts[sparsity][1]
            ]
            if len(ours) == 3:
                paper = " / ".join(f"{size:g}" for size in sizes[kind])
                yield PaperRow("Table 4", f"{operator}, KB of {kind} at 0 / 0.5 / 0.9", paper, " / ".join(ours))


def _counter_rows(counters: Counters | str, numbers: Mapping[str, Any]) -> Iterator[PaperRow]:
    names = {"dram": DRAM, "global loads": GLOBAL_LOADS}
    for name, metric in names.items():
        paper = _span(numbers["throughput_over_cusparse"][name])
        ours = counters if isinstance(counters, str) else _over_cusparse(counters, metric)
        yield PaperRow("Figure 10", f"throughput of {name} over cuSPARSE's", paper, ours)
    for contender, span in numbers["fetch_stalls_percent"].items():
        ours = counters if isinstance(counters, str) else _stalls(counters, contender)
        what = f"stalls on instruction fetch, {'ours' if contender == GENERATED else title_of(contender)}"
        yield PaperRow("Table 5", what, _span(span, " %"), ours)


def _over_cusparse(counters: Counters, metric: str) -> str:
    ratios = [
        each[GENERATED][metric] / other
        for each in counters.values()
        if metric in each.get(GENERATED, {}) and (other := each.get("cusparse", {}).get(metric, 0.0))
    ]
    return _span(ratios) if ratios else "no such counter"


def _stalls(counters: Counters, contender: str) -> str:
    shares = [each[contender][FETCH_STALLS] for each in counters.values() if FETCH_STALLS in each.get(contender, {})]
    return _span(shares, " %") if shares else "no such counter"
