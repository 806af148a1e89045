"""The sparse DNN challenge on a GPU: all layers as one CUDA graph, by compiled kernels, by index kernels, by cuSPARSE.

Nothing is asked of the GPU while a graph runs. The compiled and the index kernels find in memory how many rows are
left; for cuSPARSE, which takes that number from the CPU, it is known beforehand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from codegen.frontend.tsv.network import tile_rows
from codegen.ir.checkpoint import Checkpoint
from codegen.ir.launch import Launch
from farm.bench.graphchallenge.network import MULTIPROCESSORS, Challenge, IndexTable, Launching, Run, cycle_of, in_tiles
from farm.bench.graphchallenge.persistent_layers import DONE_BYTES, KERNEL, Chain
from farm.bench.graphchallenge.pipelined_layers import Lots
from farm.bench.graphchallenge.torch_columns import Columns, FirstLayers, RunData, pointer
from farm.bench.graphchallenge.torch_csr import csr_of
from farm.bench.graphchallenge.torch_reference import reference_of
from farm.bench.graphchallenge.torch_timing import replayed
from farm.cuda.module import Module, launch
from farm.errors import UsageError

THREADS, NEURONS_OF_BLOCK, LISTERS, LISTED = 256, 32, 1024, 4
"""Threads of a block of challenge.cu's kernels, neurons of one; threads that list columns, and how many each does."""

Enqueue = Callable[[], None]


_Layer = Callable[[int, torch.Tensor, torch.Tensor, Columns], None]
"""Enqueues layer i: input, output, columns."""
_Layers = Callable[[range, torch.Tensor, torch.Tensor, torch.Tensor, Columns], None]
"""Enqueues layers: the first one's input, its output, what the second writes, columns."""


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
        self._cycle = cycle_of(checkpoint)
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
        self._marks = torch.zeros((2, columns), dtype=torch.uint8, device="cuda")
        """Those of layers before an odd number of lists, and the others."""
        self._lists = sum(map(challenge.compacts, range(len(self._layers))))
        """Of the last run: some have fewer."""
        self._counts = torch.zeros(self._lists + 1, dtype=torch.int32, device="cuda")
        self._counts[0] = len(challenge.rows)
        self._modules = {group: Module(cubin) for group, cubin in kernels.items()}
        any_group = next(iter(self._modules.values()))
        self._list, self._finish, self._gather = map(any_group.function, ("list_columns", "finish", "gather"))
        self._reference = reference_of(challenge)
        self.reference = self._reference.outcome

    def compiled(self, kernels: Mapping[str, tuple[bytes, Launch]], launching: Launching) -> Run:
        """By the kernels of listed columns, given by the digests of the layers' weights."""
        return self._tiled(self._own(kernels, launching))

    def _own(self, kernels: Mapping[str, tuple[bytes, Launch]], launching: Launching) -> _Layer:
        """A layer by its own kernel."""
        loaded = {key: (Module(cubin).function(how.kernel), how) for key, (cubin, how) in kernels.items()}

        def layer(i: int, source: torch.Tensor, target: torch.Tensor, columns: Columns) -> None:
            function, how = loaded[self._layers[i].weights.digest]
            pointers = {"input": source, "output": target, **vars(columns)}
            numbers = how.numbers(self._tiles)
            _, y, z = how.grid_at(self._tiles)
            arguments = [
                ctypes.c_int32(numbers[name]) if name in numbers else pointer(pointers[name]) for name in how.arguments
            ]
            self._launch(i, launching, function, (y, z), how.block[0], 0, arguments)

        return layer

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

        def layer(i: int, source: torch.Tensor, target: torch.Tensor, columns: Columns) -> None:
            digest = self._layers[i].weights.digest
            table = [columns.count, columns.places, columns.marks, *held[digest], biases[digest]]
            arguments = [pointer(each) for each in (source, target, *table)]
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
        matrices = {number: csr_of(each.kernel(neurons, neurons)) for number, each in distinct.items()}
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
                arguments = [pointer(product), pointer(biases[i]), pointer(marks), ctypes.c_int32(count)]
                launch(self._finish, grid, (THREADS, 1, 1), 0, arguments, self._stream.cuda_stream)
                values = product
                if challenge.compacts(i):
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

    def chained(
        self,
        cubin: bytes,
        how: Chain,
        alone: tuple[Mapping[str, tuple[bytes, Launch]], Launching] | None = None,
        first: tuple[bytes, Lots, int] | None = None,
    ) -> Run:
        """By one kernel for layers that follow one another; those `alone` and the `first` ones by theirs, if given."""
        function, images = Module(cubin).function(KERNEL), ctypes.c_int32(self._tiles)
        neurons = self._challenge.neurons
        step = ctypes.c_int32(neurons * tile_rows(neurons))

        def arguments(data: RunData) -> list[Any]:
            tiles, columns = [pointer(data.source), pointer(data.target)], data.columns
            given = [pointer(each) for each in (columns.count, columns.places, columns.marks, data.spare, data.done)]
            return [*tiles, images, step, *given, *map(ctypes.c_int32, (data.first, data.layers))]

        grid = (how.beside, 1, neurons // how.group)
        own = None if alone is None else self._own(*alone)
        lots = None if first is None else FirstLayers(*first, self._input, len(self._challenge.rows))
        return self._chained(function, grid, how.parts * how.threads, 0, how.tiles, arguments, own, lots)

    def indexed_chain(
        self, entry: str, group: int, tables: Mapping[str, IndexTable], across: int, together: int = 1
    ) -> Run:
        """By an index kernel that goes over layers, with so many tiles of columns, the first ones together."""
        cycle, held = self._cycle, []
        for layer in self._layers[: cycle.kept]:
            table = tables[layer.weights.digest]
            arrays = (table.first, table.inputs, table.weights, layer.weights.bias)
            held.append([torch.from_numpy(each).cuda() for each in arrays])
        addresses = torch.tensor([[each.data_ptr() for each in of_layer] for of_layer in held], device="cuda")
        most = max(table.most for table in tables.values())

        def arguments(data: RunData) -> list[Any]:
            pointers = (data.source, data.target, *vars(data.columns).values(), data.spare, data.done)
            numbers = (data.first, data.layers, cycle.again, cycle.kept, most)
            return [*map(pointer, pointers), *map(ctypes.c_int32, numbers), pointer(addresses)]

        grid = (across, 1, self._challenge.neurons // group)
        function = self._modules[group].function(entry)
        return self._chained(function, grid, THREADS, 2 * most * (4 * group + 4), across, arguments, together=together)

    def _chained(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        tiles: int,
        arguments: Callable[[RunData], list[Any]],
        own: _Layer | None = None,
        lots: FirstLayers | None = None,
        together: int = 1,
    ) -> Run:
        """By a kernel that goes over layers and all of whose blocks must run at once, by `own` and `lots` if given."""
        found = torch.cuda.get_device_properties().multi_processor_count
        if found < MULTIPROCESSORS:
            raise UsageError(
                f"the blocks of layers in one launch need {MULTIPROCESSORS} multiprocessors, here are {found}"
            )
        done = torch.zeros(tiles * DONE_BYTES // 4, dtype=torch.int32, device="cuda")

        def run(
            layers: range, source: torch.Tensor, target: torch.Tensor, spare: torch.Tensor, columns: Columns
        ) -> None:
            if layers[0] == 0 and lots is not None:
                lots.enqueue(target if len(layers) % 2 else spare, columns.marks, self._stream.cuda_stream)
                return
            if len(layers) == 1 and own is not None:
                own(layers[0], source, target, columns)
                return
            if len(layers) > 1:
                done.zero_()
            first = self._cycle.number_of(layers[0])
            given = arguments(RunData(source, target, spare, columns, done, first, len(layers)))
            launch(function, grid, (threads, 1, 1), shared_bytes, given, self._stream.cuda_stream)

        challenge = replace(self._challenge, together=together if lots is None else lots.layers)
        if lots is None:
            return self._in_runs(run, challenge, [*self._buffers, torch.empty_like(self._input)])
        return self._in_runs(run, challenge, [torch.empty_like(lots.input) for _ in range(3)])

    def _tiled(self, layer: _Layer) -> Run:
        """Of kernels that read and write tiles, one for each layer."""
        each = [range(i, i + 1) for i in range(len(self._layers))]

        def run(i: range, source: torch.Tensor, target: torch.Tensor, _: torch.Tensor, columns: Columns) -> None:
            layer(i[0], source, target, columns)

        return self._in_runs(run, self._challenge, self._buffers, each)

    def _in_runs(
        self, run: _Layers, challenge: Challenge, buffers: Sequence[torch.Tensor], runs: Sequence[range] = ()
    ) -> Run:
        """Of launches that read and write tiles; rows go when `challenge` says."""
        output: list[torch.Tensor] = []

        def enqueue() -> None:
            self._names[0].copy_(self._identity)
            self._marks.zero_()
            source = self._input
            places: torch.Tensor | None = None
            lists = 0
            for layers in runs or challenge.runs:
                marks = self._marks[lists % 2]
                if challenge.forgets(layers[0]):
                    marks.zero_()
                others = [each for each in buffers if each is not source]
                run(layers, source, others[0], others[-1], Columns(self._counts[lists : lists + 1], places, marks))
                places = None
                if challenge.compacts(layers[-1]):
                    self._enqueue_list(lists)
                    lists, places = lists + 1, self._places
                source = others[0 if len(layers) % 2 else -1]
            output[:] = [source]
            self._lists = lists

        def values(count: int) -> torch.Tensor:
            columns = output[0].transpose(1, 2).reshape(-1, self._challenge.neurons)
            return columns[self._places[:count].long()][:, self._challenge.output_order.argsort()]

        return self._measured(enqueue, values)

    def _enqueue_list(self, number: int) -> None:
        """What a layer left, after `number` lists before it."""
        before, after = self._counts[number:], self._counts[number + 1 :]
        (marks, names), (others, kept) = ((self._marks[i % 2], self._names[i % 2]) for i in (number, number + 1))
        arguments = [pointer(each) for each in (before, marks, others, self._places, after, names, kept)]
        blocks = -(-len(self._identity) // (LISTERS * LISTED))
        launch(self._list, (blocks, 1, 1), (LISTERS, 1, 1), 0, arguments, self._stream.cuda_stream)

    def _measured(self, enqueue: Enqueue, values: Callable[[int], torch.Tensor]) -> Run:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            return self._checked(replayed(self._stream, enqueue), values)

    def _checked(self, microseconds: float, values: Callable[[int], torch.Tensor]) -> Run:
        count = int(self._counts[self._lists])
        names, order = self._names[self._lists % 2][:count].long().sort()
        same = count == len(self._reference.alive) and bool((names == self._reference.alive).all())
        error = float("nan")
        if same:
            got = values(count).double()[order]
            wanted = self._reference.values
            error = float((got - wanted).norm()) / (float(wanted.norm()) or 1.0)
        return Run(microseconds, count, same, error)

    def _rows_left(self) -> list[int]:
        """That each layer leaves alive; where rows are not put side by side, as many as there were."""
        alive = [*self.reference.live_rows[1:], len(self.reference.alive)]
        left, columns = [], len(self._challenge.rows)
        for i, count in enumerate(alive):
            columns = count if self._challenge.compacts(i) else columns
            left.append(columns)
        return left
