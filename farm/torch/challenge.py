"""The sparse DNN challenge on a GPU: all layers as one CUDA graph, by compiled kernels, by index kernels, by cuSPARSE.

Nothing is asked of the GPU while a graph runs. The compiled and the index kernels find in memory how many rows are
left; for cuSPARSE, which takes that number from the CPU, it is known beforehand.
"""

from __future__ import annotations

import ctypes
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codegen.launch import Launch
from codegen.layers import Checkpoint, FloatArray
from codegen.tsv.network import tile_rows
from farm.errors import UsageError
from farm.gpu.challenge import REFERENCE_BYTES, Challenge, IndexTable, Launching, Outcome, Run, in_tiles
from farm.gpu.loaded import Module, launch
from farm.gpu.replay import replays_within, rest

REPLAYED_SECONDS = 0.5
"""That a variant is replayed for, about: a deep network by cuSPARSE takes a tenth of a second."""
WARM_SECONDS = 0.3
THREADS, NEURONS_OF_BLOCK, LISTED = 256, 32, 16
"""Threads of a block of challenge.cu's kernels, neurons of one, and columns that a thread lists."""

Enqueue = Callable[[], None]


@dataclass(frozen=True, eq=False)
class _Columns:
    """Which columns a layer computes, and where it marks those with an output."""

    count: torch.Tensor
    places: torch.Tensor | None
    marks: torch.Tensor


_Layer = Callable[[int, torch.Tensor, torch.Tensor, _Columns], None]
"""Enqueues layer i: input, output, columns."""


class ChallengeGpu:
    """The current GPU with a challenge's data on it."""

    def __init__(self, challenge: Challenge, checkpoint: Checkpoint, kernels: Mapping[int, bytes]) -> None:
        """`kernels` is challenge.cu compiled for this network, by the outputs of a group. Raises DeviceError.

        Raises UsageError for more rows than fit the GPU, before anything is there.
        """
        free, _ = torch.cuda.mem_get_info()
        if challenge.gpu_bytes > free:
            raise UsageError(
                f"{challenge.name}: {len(challenge.rows):,} rows take {challenge.gpu_bytes / 1e9:.0f} GB of the GPU's "
                f"memory and {free / 1e9:.0f} GB are free: give fewer with --rows"
            )
        self._challenge = challenge
        self._layers = checkpoint.layers
        self._stream = torch.cuda.Stream()
        width = tile_rows(challenge.neurons)
        tiles = in_tiles(challenge.rows, width)
        self._tiles = len(tiles)
        self._input = torch.from_numpy(tiles).cuda()
        self._buffers = [torch.empty_like(self._input) for _ in range(2)]
        columns = self._tiles * width
        self._identity = torch.arange(columns, dtype=torch.int32, device="cuda")
        self._places = torch.zeros(columns, dtype=torch.int32, device="cuda")
        self._names = [torch.zeros(columns, dtype=torch.int32, device="cuda") for _ in range(2)]
        self._marks = torch.zeros((2, columns + LISTED), dtype=torch.uint8, device="cuda")
        """Those of layers before an odd number of lists, and the others."""
        lists = sum(map(challenge.compacts, range(len(self._layers))))
        self._counts = torch.zeros(lists + 1, dtype=torch.int32, device="cuda")
        self._counts[0] = len(challenge.rows)
        self._modules = {group: Module(cubin) for group, cubin in kernels.items()}
        any_group = next(iter(self._modules.values()))
        self._list, self._finish, self._gather = map(any_group.function, ("list_columns", "finish", "gather"))
        self.reference = self._outcome()

    def compiled(self, kernels: Mapping[str, tuple[bytes, Launch]], launching: Launching) -> Run:
        """By the kernels of listed columns, given by the digests of the layers' weights."""
        loaded = {key: (Module(cubin).function(how.kernel), how) for key, (cubin, how) in kernels.items()}

        def layer(i: int, source: torch.Tensor, target: torch.Tensor, columns: _Columns) -> None:
            function, how = loaded[self._layers[i].weights.digest]
            pointers = {"input": source, "output": target, **vars(columns)}
            numbers = how.numbers(self._tiles)
            _, y, z = how.grid_at(self._tiles)
            arguments = [
                ctypes.c_int32(numbers[name]) if name in numbers else _pointer(pointers[name]) for name in how.arguments
            ]
            self._launch(i, launching, function, (y, z), how.block[0], 0, arguments)

        return self._tiled(layer)

    def indexed(
        self, entry: str, group: int, tables: Mapping[str, IndexTable], entry_bytes: int, launching: Launching
    ) -> Run:
        """By an index kernel, whose tables are given by the digests of the layers' weights."""
        function = self._modules[group].function(entry)
        held = {
            digest: [torch.from_numpy(each).cuda() for each in (table.first, table.inputs, table.weights)]
            for digest, table in tables.items()
        }
        biases = {each.weights.digest: torch.from_numpy(each.weights.bias).cuda() for each in self._layers}
        groups = self._challenge.neurons // group

        def layer(i: int, source: torch.Tensor, target: torch.Tensor, columns: _Columns) -> None:
            digest = self._layers[i].weights.digest
            table = [columns.count, columns.places, columns.marks, *held[digest], biases[digest]]
            arguments = [_pointer(each) for each in (source, target, *table)]
            shared = tables[digest].most * entry_bytes
            self._launch(i, launching, function, (1, groups), THREADS, shared, arguments)

        return self._tiled(layer)

    def _launch(
        self,
        layer: int,
        launching: Launching,
        function: ctypes.c_void_p,
        rest: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Any],
    ) -> None:
        """Enqueues a layer; `rest` is its grid but for the first dimension."""
        after_kernel = layer > 0 and not self._challenge.forgets(layer)  # else marks are made zero before it
        launch(
            function,
            (launching.across, *rest),
            (threads, 1, 1),
            shared_bytes,
            arguments,
            self._stream.cuda_stream,
            overlapping=launching.overlapping and after_kernel,
        )

    def cusparse(self) -> Run:
        """By SpMM in CSR, one kernel for bias, clip and marks behind it, and the same compaction."""
        challenge, neurons = self._challenge, self._challenge.neurons
        distinct = {id(each): each for each in challenge.matrices}
        matrices = {number: _csr(each.kernel(neurons, neurons)) for number, each in distinct.items()}
        biases = [torch.full((neurons,), each, device="cuda") for each in challenge.biases]
        given = torch.from_numpy(np.ascontiguousarray(challenge.rows.T)).cuda()
        memory = [torch.zeros(given.numel(), device="cuda") for _ in range(3)]
        left = self._rows_left()
        result: list[torch.Tensor] = []

        def enqueue() -> None:
            self._names[0].copy_(self._identity)
            self._marks.zero_()
            result.clear()
            values, lists = given, 0
            for i, matrix in enumerate(challenge.matrices):
                marks = self._marks[lists % 2]
                if challenge.forgets(i):
                    marks.zero_()
                count = values.shape[1]
                others = [each for each in memory if each.data_ptr() != values.data_ptr()]
                product = others[0][: neurons * count].view(neurons, count)
                torch.addmm(product, matrices[id(matrix)], values, beta=0, alpha=1, out=product)
                grid = -(-max(1, count) // THREADS), neurons // NEURONS_OF_BLOCK, 1
                arguments = [_pointer(product), _pointer(biases[i]), _pointer(marks), ctypes.c_int32(count)]
                launch(self._finish, grid, (THREADS, 1, 1), 0, arguments, self._stream.cuda_stream)
                values = product
                if challenge.compacts(i):
                    self._enqueue_list(lists)
                    lists += 1
                    chosen = others[1][: neurons * left[i]].view(neurons, left[i])
                    grid = -(-max(1, left[i]) // THREADS), neurons // NEURONS_OF_BLOCK, 1
                    numbers = [ctypes.c_int32(count), ctypes.c_int32(left[i])]
                    arguments = [_pointer(product), _pointer(chosen), _pointer(self._places), *numbers]
                    launch(self._gather, grid, (THREADS, 1, 1), 0, arguments, self._stream.cuda_stream)
                    values = chosen
            result.append(values)

        return self._measured(enqueue, lambda count: result[0].t()[:count])

    def _tiled(self, layer: _Layer) -> Run:
        """Of kernels that read and write tiles."""
        output: list[torch.Tensor] = []

        def enqueue() -> None:
            self._names[0].copy_(self._identity)
            self._marks.zero_()
            source, target, other = self._input, *self._buffers
            places: torch.Tensor | None = None
            lists = 0
            for i in range(len(self._layers)):
                marks = self._marks[lists % 2]
                if self._challenge.forgets(i):
                    marks.zero_()
                layer(i, source, target, _Columns(self._counts[lists : lists + 1], places, marks))
                places = None
                if self._challenge.compacts(i):
                    self._enqueue_list(lists)
                    lists, places = lists + 1, self._places
                source, target, other = target, other, target
            output[:] = [source]

        def values(count: int) -> torch.Tensor:
            columns = output[0].transpose(1, 2).reshape(-1, self._challenge.neurons)
            return columns[self._places[:count].long()][:, self._challenge.output_order.argsort()]

        return self._measured(enqueue, values)

    def _enqueue_list(self, number: int) -> None:
        """What a layer left, after `number` lists before it."""
        before, after = self._counts[number:], self._counts[number + 1 :]
        (marks, names), (others, kept) = ((self._marks[i % 2], self._names[i % 2]) for i in (number, number + 1))
        arguments = [_pointer(each) for each in (before, marks, others, self._places, after, names, kept)]
        blocks = -(-len(self._identity) // (THREADS * LISTED))
        launch(self._list, (blocks, 1, 1), (THREADS, 1, 1), 0, arguments, self._stream.cuda_stream)

    def _measured(self, enqueue: Enqueue, values: Callable[[int], torch.Tensor]) -> Run:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            enqueue()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="relaxed"):
                enqueue()
            begun, warmed = time.monotonic(), 0
            while time.monotonic() - begun < WARM_SECONDS:
                graph.replay()
                self._stream.synchronize()
                warmed += 1
            times = []
            for _ in range(replays_within(REPLAYED_SECONDS, (time.monotonic() - begun) / warmed)):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(self._stream)
                graph.replay()
                end.record(self._stream)
                end.synchronize()
                times.append(float(begin.elapsed_time(end)) * 1e3)
                rest(times[-1])
            return self._checked(float(np.median(times)), values)

    def _checked(self, microseconds: float, values: Callable[[int], torch.Tensor]) -> Run:
        count = int(self._counts[-1])
        names, order = self._names[(len(self._counts) - 1) % 2][:count].long().sort()
        same = count == len(self._alive) and bool((names == self._alive).all())
        error = float("nan")
        if same:
            got = values(count).double()[order]
            error = float((got - self._values).norm()) / (float(self._values.norm()) or 1.0)
        return Run(microseconds, count, same, error)

    def _rows_left(self) -> list[int]:
        """That each layer leaves alive; where rows are not put side by side, as many as there were."""
        alive = [*self.reference.live_rows[1:], len(self.reference.alive)]
        left, columns = [], len(self._challenge.rows)
        for i, count in enumerate(alive):
            columns = count if self._challenge.compacts(i) else columns
            left.append(columns)
        return left

    def _outcome(self) -> Outcome:
        """In float64; as `farm.gpu.challenge.outcome_of`, for many rows."""
        rows, layers = self._challenge.rows, len(self._challenge.matrices)
        step = max(1, REFERENCE_BYTES // (8 * self._challenge.neurons))
        alive, values = [], []
        counts = np.zeros((2, layers), dtype=np.int64)
        for first in range(0, len(rows), step):
            left, end = self._reference(rows[first : first + step], counts)
            alive.append(left + first)
            values.append(end)
        self._alive, self._values = torch.cat(alive), torch.cat(values)
        live, converged = (tuple(each.tolist()) for each in counts)
        return Outcome(self._alive.cpu().numpy(), self._values.cpu().numpy(), live, converged)

    def _reference(self, rows: FloatArray, counts: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of these rows are left, and as what; adds to the counts [2, layers] of live and of converged rows."""
        challenge, neurons = self._challenge, self._challenge.neurons
        values = torch.from_numpy(rows).cuda().double()
        alive = torch.arange(len(values), device="cuda")[values.any(dim=1)]
        values = values[alive]
        dense: dict[int, torch.Tensor] = {}
        for i, (matrix, bias) in enumerate(zip(challenge.matrices, challenge.biases, strict=True)):
            if id(matrix) not in dense:
                if len(dense) >= max(1, REFERENCE_BYTES // (8 * neurons**2)):
                    dense.clear()
                dense[id(matrix)] = torch.from_numpy(matrix.kernel(neurons, neurons)).cuda().double().t()
            counts[0, i] += len(values)
            after = (values @ dense[id(matrix)] + bias).clamp_(0, challenge.clip)
            counts[1, i] += int((after == values).all(dim=1).sum())
            left = after.any(dim=1)
            alive, values = alive[left], after[left]
        return alive, values


def _pointer(tensor: torch.Tensor | None) -> Any:
    return ctypes.c_uint64(0 if tensor is None else tensor.data_ptr())


def _csr(kernel: FloatArray) -> torch.Tensor:
    """With indices of 32 bits: what cuSPARSE is fastest with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        plain = torch.from_numpy(kernel).cuda().to_sparse_csr()
        return torch.sparse_csr_tensor(
            plain.crow_indices().int(), plain.col_indices().int(), plain.values(), size=kernel.shape
        )
