"""Variants of the sparse DNN challenge on a GPU, each captured as one CUDA graph of all layers.

The GPU is not queried while a graph runs. Compiled and index kernels read the number of live rows from memory;
cuSPARSE, which takes it from the CPU, gets the numbers of the reference run.
"""

from __future__ import annotations

import ctypes
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from codegen.frontend.tsv.network import tile_rows
from codegen.ir.checkpoint import Checkpoint, FloatArray
from codegen.ir.launch import Launch
from farm.bench.graphchallenge import pipelined_batches
from farm.bench.graphchallenge.network import ChallengeNetwork, IndexTable, LaunchPlan, VariantRun, cycle_of, in_tiles
from farm.bench.graphchallenge.persistent_layers import DONE_BYTES, KERNEL, PersistentLayout
from farm.bench.graphchallenge.pipelined_batches import COUNTER_BYTES, PipelinedLayout
from farm.bench.graphchallenge.torch_reference import reference_of
from farm.cuda.graph import cool_down, replays_within
from farm.cuda.module import Module, allow_shared, check_resident, launch
from farm.errors import UsageError

THREADS, NEURONS_OF_BLOCK, LISTERS, LISTED = 256, 32, 1024, 4
"""Constants of index_kernel.cu: threads and neurons of a block, threads that list columns, columns that each lists."""
REPLAYED_SECONDS = 0.5
"""Approximate replay time of a variant; a deep network by cuSPARSE takes a tenth of a second."""
WARM_SECONDS = 0.3

Enqueue = Callable[[], None]


@dataclass(frozen=True, eq=False)
class ListedColumns:
    """Columns that a layer computes, and the marks of those with a non-zero output."""

    count: torch.Tensor
    places: torch.Tensor | None
    marks: torch.Tensor


@dataclass(frozen=True, eq=False)
class SegmentData:
    """Arguments of a kernel that computes consecutive layers."""

    source: torch.Tensor
    target: torch.Tensor
    spare: torch.Tensor
    columns: ListedColumns
    done: torch.Tensor
    first: int
    layers: int


class PipelinedLayers:
    """The first layers of a network as one kernel on pipelined batches."""

    def __init__(self, cubin: bytes, layout: PipelinedLayout, layers: int, given: torch.Tensor, rows: int) -> None:
        """`given` is the input, [tiles, neurons, width], which is copied into whole batches.

        Raises DeviceError, also unless all blocks fit the GPU at once.
        """
        tiles, neurons, width = given.shape
        self.layers = layers
        self._layout, self._rows = layout, rows
        self._count = layout.batch_count(rows)
        self.input = torch.zeros((self._count * layout.columns // width, neurons, width), device="cuda")
        self.input[:tiles] = given
        self._between = torch.zeros((layers - 1, layout.columns, neurons), device="cuda")
        self._counters = torch.zeros(layout.counters * COUNTER_BYTES // 4, dtype=torch.int32, device="cuda")
        self._function = Module(cubin).function(pipelined_batches.KERNEL)
        allow_shared(self._function, layout.shared_bytes)
        self._grid = (layout.group_blocks, 1, neurons // layout.group)
        check_resident(self._function, self._grid, layout.threads, layout.shared_bytes, _multiprocessors())
        torch.cuda.synchronize()  # zeros written late by another stream would make the kernel wait forever

    def enqueue(self, output: torch.Tensor, marks: torch.Tensor, stream: int) -> None:
        """Launches the kernel; `output` is as large as the input."""
        layout = self._layout
        self._counters.zero_()
        pointers = (self.input, output, self._between, marks, self._counters)
        numbers = (self._rows, layout.turns, self._count)
        arguments = [*map(pointer, pointers), *map(ctypes.c_int32, numbers)]
        launch(self._function, self._grid, (layout.threads, 1, 1), layout.shared_bytes, arguments, stream)


def _multiprocessors() -> int:
    return int(torch.cuda.get_device_properties().multi_processor_count)


def pointer(tensor: torch.Tensor | None) -> Any:
    """Address of a tensor as a kernel argument."""
    return ctypes.c_uint64(0 if tensor is None else tensor.data_ptr())


def csr_of(kernel: FloatArray) -> torch.Tensor:
    """A kernel in CSR with 32-bit indices, the fastest form for cuSPARSE."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        plain = torch.from_numpy(kernel).cuda().to_sparse_csr()
        return torch.sparse_csr_tensor(
            plain.crow_indices().int(), plain.col_indices().int(), plain.values(), size=kernel.shape
        )


def replayed(stream: torch.cuda.Stream, enqueue: Callable[[], None]) -> float:
    """Median time of single replays of a graph in microseconds; `stream` is the current one."""
    enqueue()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        enqueue()
    begun, warmed = time.monotonic(), 0
    while time.monotonic() - begun < WARM_SECONDS:
        graph.replay()
        stream.synchronize()
        warmed += 1
    times = []
    for _ in range(replays_within(REPLAYED_SECONDS, (time.monotonic() - begun) / warmed)):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) * 1e3)
        cool_down(times[-1])
    return float(np.median(times))


_Layer = Callable[[int, torch.Tensor, torch.Tensor, ListedColumns], None]
"""Enqueues layer i: input, output, columns."""
_Segment = Callable[[range, torch.Tensor, torch.Tensor, torch.Tensor, ListedColumns], None]
"""Enqueues consecutive layers: the first one's input and output, the second one's output, columns."""


class ChallengeGpu:
    """The current GPU, with a network's data."""

    def __init__(self, network: ChallengeNetwork, checkpoint: Checkpoint, kernels: Mapping[int, bytes]) -> None:
        """`kernels` are cubins of index_kernel.cu for this network, by the outputs of a group.

        Raises DeviceError; UsageError for more rows than fit the GPU, before any memory is allocated.
        """
        free, _ = torch.cuda.mem_get_info()
        if network.gpu_bytes > free:
            raise UsageError(
                f"{network.name}: {len(network.rows):,} rows take {network.gpu_bytes / 1e9:.0f} GB of the GPU's "
                f"memory and {free / 1e9:.0f} GB are free: give fewer with --rows"
            )
        self._network = network
        self._layers = checkpoint.layers
        self._cycle = cycle_of(checkpoint)
        self._stream = torch.cuda.Stream()
        width = tile_rows(network.neurons)
        tiles = in_tiles(network.rows, width)
        self._tiles = len(tiles)
        self._input = torch.from_numpy(tiles).cuda()
        self._buffers = [torch.empty_like(self._input) for _ in range(2)]
        columns = self._tiles * width
        self._identity = torch.arange(columns, dtype=torch.int32, device="cuda")
        self._places = torch.zeros(columns, dtype=torch.int32, device="cuda")
        self._names = [torch.zeros(columns, dtype=torch.int32, device="cuda") for _ in range(2)]
        self._marks = torch.zeros((2, columns), dtype=torch.uint8, device="cuda")
        """Two sets of marks, used alternately between compactions."""
        self._lists = sum(map(network.compacts, range(len(self._layers))))
        """Number of compactions of the last run."""
        self._counts = torch.zeros(self._lists + 1, dtype=torch.int32, device="cuda")
        self._counts[0] = len(network.rows)
        self._modules = {group: Module(cubin) for group, cubin in kernels.items()}
        any_group = next(iter(self._modules.values()))
        self._list, self._finish, self._gather = map(any_group.function, ("list_columns", "finish", "gather"))
        self._reference = reference_of(network)
        self.reference = self._reference.outcome

    def compiled(self, kernels: Mapping[str, tuple[bytes, Launch]], plan: LaunchPlan) -> VariantRun:
        """Runs the layers' own kernels, given by the digests of the weights."""
        return self._tiled(self._layer_kernels(kernels, plan))

    def _layer_kernels(self, kernels: Mapping[str, tuple[bytes, Launch]], plan: LaunchPlan) -> _Layer:
        """Enqueues a layer by its own kernel."""
        loaded = {key: (Module(cubin).function(how.kernel), how) for key, (cubin, how) in kernels.items()}

        def layer(i: int, source: torch.Tensor, target: torch.Tensor, columns: ListedColumns) -> None:
            function, how = loaded[self._layers[i].weights.digest]
            pointers = {"input": source, "output": target, **vars(columns)}
            numbers = how.numbers(self._tiles)
            _, y, z = how.grid_at(self._tiles)
            arguments = [
                ctypes.c_int32(numbers[name]) if name in numbers else pointer(pointers[name]) for name in how.arguments
            ]
            self._launch(i, plan, function, (y, z), how.block[0], 0, arguments)

        return layer

    def indexed(
        self, entry: str, group: int, tables: Mapping[str, IndexTable], entry_bytes: int, plan: LaunchPlan
    ) -> VariantRun:
        """Runs an index kernel, with tables given by the digests of the weights."""
        function = self._modules[group].function(entry)
        held = {
            digest: [torch.from_numpy(each).cuda() for each in (table.first, table.inputs, table.weights)]
            for digest, table in tables.items()
        }
        biases = {each.weights.digest: torch.from_numpy(each.weights.bias).cuda() for each in self._layers}
        groups = self._network.neurons // group

        def layer(i: int, source: torch.Tensor, target: torch.Tensor, columns: ListedColumns) -> None:
            digest = self._layers[i].weights.digest
            table = [columns.count, columns.places, columns.marks, *held[digest], biases[digest]]
            arguments = [pointer(each) for each in (source, target, *table)]
            shared = tables[digest].most * entry_bytes
            self._launch(i, plan, function, (1, groups), THREADS, shared, arguments)

        return self._tiled(layer)

    def _launch(
        self,
        layer: int,
        plan: LaunchPlan,
        function: ctypes.c_void_p,
        rest: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Any],
    ) -> None:
        """Enqueues a layer; `rest` is its grid without the first dimension."""
        after_kernel = layer > 0 and not self._network.clears_marks(layer)  # otherwise marks are cleared before it
        launch(
            function,
            (plan.group_blocks, *rest),
            (threads, 1, 1),
            shared_bytes,
            arguments,
            self._stream.cuda_stream,
            overlapping=plan.overlapping and after_kernel,
        )

    def cusparse(self) -> VariantRun:
        """Runs cuSPARSE's SpMM in CSR, then one kernel for bias, clip and marks, with the same compaction."""
        network, neurons = self._network, self._network.neurons
        distinct = {id(each): each for each in network.matrices}
        matrices = {number: csr_of(each.kernel(neurons, neurons)) for number, each in distinct.items()}
        biases = [torch.full((neurons,), each, device="cuda") for each in network.biases]
        given = torch.from_numpy(np.ascontiguousarray(network.rows.T)).cuda()
        memory = [torch.zeros(given.numel(), device="cuda") for _ in range(3)]
        left = self._rows_left()
        result: list[torch.Tensor] = []

        def enqueue() -> None:
            self._names[0].copy_(self._identity)
            self._marks.zero_()
            result.clear()
            values, lists = given, 0
            for i, matrix in enumerate(network.matrices):
                marks = self._marks[lists % 2]
                if network.clears_marks(i):
                    marks.zero_()
                count = values.shape[1]
                others = [each for each in memory if each.data_ptr() != values.data_ptr()]
                product = others[0][: neurons * count].view(neurons, count)
                torch.addmm(product, matrices[id(matrix)], values, beta=0, alpha=1, out=product)
                grid = -(-max(1, count) // THREADS), neurons // NEURONS_OF_BLOCK, 1
                arguments = [pointer(product), pointer(biases[i]), pointer(marks), ctypes.c_int32(count)]
                launch(self._finish, grid, (THREADS, 1, 1), 0, arguments, self._stream.cuda_stream)
                values = product
                if network.compacts(i):
                    self._enqueue_list(lists)
                    lists += 1
                    chosen = others[1][: neurons * left[i]].view(neurons, left[i])
                    grid = -(-max(1, left[i]) // THREADS), neurons // NEURONS_OF_BLOCK, 1
                    numbers = [ctypes.c_int32(count), ctypes.c_int32(left[i])]
                    arguments = [pointer(product), pointer(chosen), pointer(self._places), *numbers]
                    launch(self._gather, grid, (THREADS, 1, 1), 0, arguments, self._stream.cuda_stream)
                    values = chosen
            result.append(values)
            self._lists = lists

        return self._measured(enqueue, lambda count: result[0].t()[:count])

    def persistent(
        self,
        cubin: bytes,
        layout: PersistentLayout,
        alone: tuple[Mapping[str, tuple[bytes, Launch]], LaunchPlan] | None = None,
        first: tuple[bytes, PipelinedLayout, int] | None = None,
    ) -> VariantRun:
        """Runs a persistent kernel for each segment; single layers by `alone`, the first ones by `first`, if given."""
        function, images = Module(cubin).function(KERNEL), ctypes.c_int32(self._tiles)
        neurons = self._network.neurons
        step = ctypes.c_int32(neurons * tile_rows(neurons))

        def arguments(data: SegmentData) -> list[Any]:
            tiles, columns = [pointer(data.source), pointer(data.target)], data.columns
            given = [pointer(each) for each in (columns.count, columns.places, columns.marks, data.spare, data.done)]
            return [*tiles, images, step, *given, *map(ctypes.c_int32, (data.first, data.layers))]

        grid = (layout.group_blocks, 1, neurons // layout.group)
        own = None if alone is None else self._layer_kernels(*alone)
        pipelined = None if first is None else PipelinedLayers(*first, self._input, len(self._network.rows))
        return self._run_persistent(
            function, grid, layout.parts * layout.threads, 0, layout.tiles, arguments, own, pipelined
        )

    def indexed_persistent(
        self, entry: str, group: int, tables: Mapping[str, IndexTable], tiles: int, uncompacted: int = 1
    ) -> VariantRun:
        """Runs a persistent index kernel on tiles of columns, with `uncompacted` layers in the first segment."""
        cycle, held = self._cycle, []
        for layer in self._layers[: cycle.kept]:
            table = tables[layer.weights.digest]
            arrays = (table.first, table.inputs, table.weights, layer.weights.bias)
            held.append([torch.from_numpy(each).cuda() for each in arrays])
        addresses = torch.tensor([[each.data_ptr() for each in of_layer] for of_layer in held], device="cuda")
        most = max(table.most for table in tables.values())

        def arguments(data: SegmentData) -> list[Any]:
            pointers = (data.source, data.target, *vars(data.columns).values(), data.spare, data.done)
            numbers = (data.first, data.layers, cycle.again, cycle.kept, most)
            return [*map(pointer, pointers), *map(ctypes.c_int32, numbers), pointer(addresses)]

        grid = (tiles, 1, self._network.neurons // group)
        function = self._modules[group].function(entry)
        return self._run_persistent(
            function, grid, THREADS, 2 * most * (4 * group + 4), tiles, arguments, uncompacted=uncompacted
        )

    def _run_persistent(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        tiles: int,
        arguments: Callable[[SegmentData], list[Any]],
        own: _Layer | None = None,
        pipelined: PipelinedLayers | None = None,
        uncompacted: int = 1,
    ) -> VariantRun:
        """Runs a persistent kernel; uses `own` and `pipelined` if given.

        Raises DeviceError unless all blocks fit the GPU at once.
        """
        check_resident(function, grid, threads, shared_bytes, _multiprocessors())
        done = torch.zeros(tiles * DONE_BYTES // 4, dtype=torch.int32, device="cuda")

        def run(
            layers: range, source: torch.Tensor, target: torch.Tensor, spare: torch.Tensor, columns: ListedColumns
        ) -> None:
            if layers[0] == 0 and pipelined is not None:
                pipelined.enqueue(target if len(layers) % 2 else spare, columns.marks, self._stream.cuda_stream)
                return
            if len(layers) == 1 and own is not None:
                own(layers[0], source, target, columns)
                return
            if len(layers) > 1:
                done.zero_()
            first = self._cycle.number_of(layers[0])
            given = arguments(SegmentData(source, target, spare, columns, done, first, len(layers)))
            launch(function, grid, (threads, 1, 1), shared_bytes, given, self._stream.cuda_stream)

        network = replace(self._network, uncompacted=uncompacted if pipelined is None else pipelined.layers)
        if pipelined is None:
            return self._in_segments(run, network, [*self._buffers, torch.empty_like(self._input)])
        return self._in_segments(run, network, [torch.empty_like(pipelined.input) for _ in range(3)])

    def _tiled(self, layer: _Layer) -> VariantRun:
        """Runs one launch per layer on tiles."""
        each = [range(i, i + 1) for i in range(len(self._layers))]

        def run(i: range, source: torch.Tensor, target: torch.Tensor, _: torch.Tensor, columns: ListedColumns) -> None:
            layer(i[0], source, target, columns)

        return self._in_segments(run, self._network, self._buffers, each)

    def _in_segments(
        self, run: _Segment, network: ChallengeNetwork, buffers: Sequence[torch.Tensor], segments: Sequence[range] = ()
    ) -> VariantRun:
        """Runs launches on tiles; live rows are compacted as `network` says."""
        output: list[torch.Tensor] = []

        def enqueue() -> None:
            self._names[0].copy_(self._identity)
            self._marks.zero_()
            source = self._input
            places: torch.Tensor | None = None
            lists = 0
            for layers in segments or network.segments:
                marks = self._marks[lists % 2]
                if network.clears_marks(layers[0]):
                    marks.zero_()
                others = [each for each in buffers if each is not source]
                run(
                    layers, source, others[0], others[-1], ListedColumns(self._counts[lists : lists + 1], places, marks)
                )
                places = None
                if network.compacts(layers[-1]):
                    self._enqueue_list(lists)
                    lists, places = lists + 1, self._places
                source = others[0 if len(layers) % 2 else -1]
            output[:] = [source]
            self._lists = lists

        def values(count: int) -> torch.Tensor:
            columns = output[0].transpose(1, 2).reshape(-1, self._network.neurons)
            return columns[self._places[:count].long()][:, self._network.output_order.argsort()]

        return self._measured(enqueue, values)

    def _enqueue_list(self, number: int) -> None:
        """Compacts the columns that a layer marked, after `number` earlier compactions."""
        before, after = self._counts[number:], self._counts[number + 1 :]
        (marks, names), (others, kept) = ((self._marks[i % 2], self._names[i % 2]) for i in (number, number + 1))
        arguments = [pointer(each) for each in (before, marks, others, self._places, after, names, kept)]
        blocks = -(-len(self._identity) // (LISTERS * LISTED))
        launch(self._list, (blocks, 1, 1), (LISTERS, 1, 1), 0, arguments, self._stream.cuda_stream)

    def _measured(self, enqueue: Enqueue, values: Callable[[int], torch.Tensor]) -> VariantRun:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            return self._checked(replayed(self._stream, enqueue), values)

    def _checked(self, microseconds: float, values: Callable[[int], torch.Tensor]) -> VariantRun:
        count = int(self._counts[self._lists])
        names, order = self._names[self._lists % 2][:count].long().sort()
        same = count == len(self._reference.alive) and bool((names == self._reference.alive).all())
        error = float("nan")
        if same:
            got = values(count).double()[order]
            wanted = self._reference.values
            error = float((got - wanted).norm()) / (float(wanted.norm()) or 1.0)
        return VariantRun(microseconds, count, same, error)

    def _rows_left(self) -> list[int]:
        """Columns after each layer: live rows where they are compacted, else as many as before."""
        alive = [*self.reference.live_rows[1:], len(self.reference.alive)]
        left, columns = [], len(self._network.rows)
        for i, count in enumerate(alive):
            columns = count if self._network.compacts(i) else columns
            left.append(columns)
        return left
