"""TSV networks: reading, writing, errors, and outputs as the files define."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.options.gpu import cases_of
from codegen.errors import CheckpointError
from codegen.frontend.model_file import read_model
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.tsv.__main__ import main
from codegen.frontend.tsv.manifest import CLIP
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.frontend.tsv.network import tile_rows, write_tsv_network
from codegen.frontend.tsv.triples import parse_triples, read_rows, write_triples
from codegen.ir.checkpoint import Checkpoint, FloatArray
from codegen.model_zoo.radixnet import radix_net, random_layers
from codegen.verification.reference import layer_output
from farm.cuda.measure.workload import Choice
from farm.jobs.model import BuildOptions
from farm.jobs.submission import new_job
from farm.store.memory import MemoryStore
from tests.unit.small_challenge import write_rows

NEURONS = 64


def written(folder: Path, matrices: list[SparseMatrix], layers: int, bias: float = -0.3) -> Checkpoint:
    return read_model(write_tsv_network(folder, matrices, NEURONS, layers, bias, CLIP).parent)


def challenge(matrices: list[SparseMatrix], rows: FloatArray, bias: float) -> FloatArray:
    """The Graph Challenge's definition, Y <- min(32, max(0, Y W + b)), with dense matrices."""
    y = rows.astype(np.float64)
    for matrix in matrices:
        y = np.clip(y @ matrix.kernel(NEURONS, NEURONS).T.astype(np.float64) + bias, 0, CLIP)
    return y.astype(np.float32)


def through(net: Checkpoint, rows: FloatArray) -> FloatArray:
    """The outputs of a batch that fits one image, through the layers in sequence."""
    y = np.zeros((1, NEURONS, 1, net.layers[0].spec.input_shape[2]), dtype=np.float32)
    y[0, :, 0, : len(rows)] = rows.T
    for layer in net.layers:
        y = layer_output(layer.spec, layer.weights, y).astype(np.float32)
    return y[0, :, 0, : len(rows)].T


@pytest.mark.parametrize("make", [lambda: radix_net(NEURONS), lambda: random_layers(NEURONS, 3)])
def test_a_network_of_files_computes_what_the_challenge_defines(tmp_path: Path, make: object) -> None:
    matrices: list[SparseMatrix] = make()
    rows = (np.random.default_rng(1).random((20, NEURONS)) < 0.5).astype(np.float32)
    net = written(tmp_path / "net", matrices, layers=5)
    in_turn = [matrices[i % len(matrices)] for i in range(5)]
    np.testing.assert_allclose(through(net, rows), challenge(in_turn, rows, -0.3), rtol=1e-5, atol=1e-6)


def test_layers_that_come_again_share_their_weights_and_so_their_cubins(tmp_path: Path) -> None:
    net = written(tmp_path / "net", radix_net(NEURONS), layers=40)
    job = new_job(net, BuildOptions(("sm_90",)), namespace="test", name="net", store=MemoryStore())
    assert len(job.builds) == 40
    # Two of them before the network repeats; the first reads the inputs in their own order, the last writes in it.
    assert len({build.weights for build in job.builds}) == 4
    assert len({id(layer.weights) for layer in net.layers}) == 4


def test_equal_files_share_a_matrix(tmp_path: Path) -> None:
    base = radix_net(1024)[:2]
    for number in range(1, 9):
        write_triples(tmp_path / f"n1024-l{number}.tsv", base[number % 2])
    net = read_model(tmp_path)
    assert len(net.layers) == 8
    assert len({id(layer.weights) for layer in net.layers}) == 4


def test_neurons_that_share_inputs_become_neighbours(tmp_path: Path) -> None:
    neurons = 256
    write_tsv_network(tmp_path / "net", radix_net(neurons, seed=3), neurons, 4, -0.3, CLIP)
    for layer in read_model(tmp_path / "net").layers[:-1]:
        reads = layer.weights.kernel[:, :, 0, 0] != 0
        patterns = reads.reshape(16, 16, neurons)
        assert (patterns == patterns[:, :1]).all()
        inputs_of_32 = reads.reshape(8, 32, neurons).any(axis=1).sum(axis=1)
        assert (inputs_of_32 <= 48).all()  # two nodes that share one


def test_a_folder_with_the_challenges_names_needs_no_manifest(tmp_path: Path) -> None:
    for number, matrix in enumerate(radix_net(1024)[:2], start=1):
        write_triples(tmp_path / f"n1024-l{number}.tsv", matrix)
    net = read_model(tmp_path)
    assert [layer.weights.bias[0] for layer in net.layers] == [np.float32(-0.3)] * 2
    assert net.layers[0].weights.nonzeros == 32 * 1024
    (tmp_path / "n1024-l1.tsv").unlink()
    with pytest.raises(CheckpointError, match="not the layers 1, 2"):
        read_model(tmp_path)


def test_sizes_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    first, second = SparseMatrix(*_one(2, 4, 0.5)), SparseMatrix(*_one(4, 1, -1.0))
    write_triples(tmp_path / "a.tsv", first)
    write_triples(tmp_path / "b.tsv", second)
    manifest = tmp_path / "mine.json"
    manifest.write_text(
        json.dumps({"neurons": [3, 5, 2], "bias": [0, 1.5], "clip": None, "layers": ["a.tsv", "b.tsv"]})
    )
    net = read_model(manifest)
    assert net.name == "mine"
    assert [layer.weights.kernel.shape for layer in net.layers] == [(5, 3, 1, 1), (2, 5, 1, 1)]
    x = np.ones((1, 3, 1, tile_rows(5)), dtype=np.float32)
    y = layer_output(net.layers[0].spec, net.layers[0].weights, x).astype(np.float32)
    assert layer_output(net.layers[1].spec, net.layers[1].weights, y)[0, :, 0, 0].tolist() == [1.5, 1.0]


def _one(source: int, target: int, value: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array([source]), np.array([target]), np.array([value], dtype=np.float32)


def test_values_and_inputs_are_read_back_bit_by_bit(tmp_path: Path) -> None:
    [matrix] = random_layers(NEURONS, 1, seed=5)
    write_triples(tmp_path / "m.tsv", matrix)
    path = tmp_path / "m.tsv"
    again = parse_triples(path, path.read_bytes(), NEURONS, NEURONS)
    assert np.array_equal(again.kernel(NEURONS, NEURONS), matrix.kernel(NEURONS, NEURONS))
    rows = np.random.default_rng(0).random((7, NEURONS), dtype=np.float32)
    rows[rows < 0.8] = 0
    write_rows(tmp_path / "rows.tsv", rows)
    assert np.array_equal(read_rows(tmp_path / "rows.tsv", 7, NEURONS), rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1 2\n", "2 numbers"),
        ("1 2 0.5\n1 65 0.5\n", "line 2 has row 1, column 65, outside a matrix of 64 x 64"),
        ("0 2 0.5\n", "line 1 has row 0, column 2"),
        ("1.5 2 0.5\n", "line 1 has row 1.5, column 2"),
        ("1 2 0.5\n3 3 1\n1 2 0.25\n", "row 1, column 2 occurs more than once"),
        ("1 2 nan\n", "line 1 has the value nan"),
        ("1 2 1e300\n", "not a finite float32"),
        ("1 2 half\n", "no triples"),
        ("1 2 0.5\n1 3\n", "no triples"),
        ("\xff\xfe", "no triples"),
        ("1 2 0.5\0\n", "no triples"),
        ("x" * 10_000, "no triples"),
    ],
)
def test_a_wrong_file_is_told_by_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "n64-l1.tsv"
    path.write_bytes(text.encode("latin1"))
    (tmp_path / "network.json").write_text(json.dumps({"neurons": 64, "bias": -0.3, "layers": [path.name]}))
    with pytest.raises(CheckpointError, match=message) as raised:
        read_model(tmp_path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a manifest"),
        ("[]", "not a manifest"),
        ('{"neurons": 64, "layers": ["a.tsv"]}', "KeyError: 'bias'"),
        ('{"neurons": 64, "bias": 0, "layers": []}', "not a list of file names"),
        ('{"neurons": [64], "bias": 0, "layers": ["a.tsv"]}', "'neurons' is neither a number nor a list of 2"),
        ('{"neurons": 64, "bias": "no", "layers": ["a.tsv"]}', "'bias' is neither"),
        ('{"neurons": 0, "bias": 0, "layers": ["a.tsv"]}', "give numbers from 1"),
        ('{"neurons": 64, "bias": [NaN], "layers": ["a.tsv"]}', "'bias' has nan, not a finite float32"),
        ('{"neurons": 64, "bias": -1e300, "layers": ["a.tsv"]}', "'bias' has -1e.300, not a finite float32"),
        ('{"neurons": 64, "bias": 0, "clip": "32", "layers": ["a.tsv"]}', "'clip' is '32'"),
        *(
            (
                f'{{"neurons": 64, "bias": 0, "clip": {clip}, "layers": ["a.tsv"]}}',
                "'clip' is .*: give a float32 above 0",
            )
            for clip in ("true", "0", "-1", "NaN", "Infinity")
        ),
        ('{"neurons": 64, "bias": 0, "layers": ["a.tsv"]}', "no such file"),
        ('{"neurons": 1099511627776, "bias": 0, "layers": ["a.tsv"]}', "give numbers from 1 to 1048576"),
        ("[" * 100_000, "not a manifest"),
        ("\0", "not a manifest"),
        *(
            (f'{{"neurons": 64, "bias": 0, "layers": ["{name}"]}}', "cannot be used: its path is not inside the folder")
            for name in ("/etc/passwd", "../a.tsv", "b/../../a.tsv", "a\\u0000.tsv")
        ),
    ],
)
def test_a_wrong_manifest_is_told(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "network.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_model(tmp_path)


def _linked(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _linked_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _much_too_large(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_linked, "its path has a link"),
        (_linked_to_zeros, "its path has a link"),
        (os.mkfifo, "it is not a regular file"),
        (Path.mkdir, "it is not a regular file"),
        (_much_too_large, "has 1,099,511,627,776 bytes, more than"),
    ],
)
@pytest.mark.parametrize("with_manifest", [True, False])
def test_only_regular_files_in_the_folder_are_read(
    make: Callable[[Path], None], message: str, with_manifest: bool, tmp_path: Path
) -> None:
    make(tmp_path / "n1024-l1.tsv")
    if with_manifest:
        content = {"neurons": 64, "bias": 0, "layers": ["n1024-l1.tsv"]}
        (tmp_path / "network.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        read_model(tmp_path)


def test_a_manifest_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "network.json").symlink_to("elsewhere.json")
    with pytest.raises(CheckpointError, match="its path has a link"):
        read_model(tmp_path)


def test_dense_weights_are_in_proportion_to_the_triples(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1 1 1\n1048576 1048576 1\n")
    (tmp_path / "network.json").write_text(json.dumps({"neurons": 2**20, "bias": 0, "layers": ["a.tsv"]}))
    message = "dense weights take too much memory: layer 1 has 2 triples in a matrix of 1048576 x 1048576"
    with pytest.raises(CheckpointError, match=message):
        read_model(tmp_path)


def test_a_file_is_a_matrix_of_one_size(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("1 1 1\n")
    (tmp_path / "network.json").write_text(json.dumps({"neurons": [1, 2, 3], "bias": 0, "layers": ["a.tsv"] * 2}))
    with pytest.raises(CheckpointError, match="several sizes"):
        read_model(tmp_path)


def test_a_network_of_files_has_no_open_shapes(tmp_path: Path) -> None:
    path = write_tsv_network(tmp_path, radix_net(NEURONS), NEURONS, 2, -0.3, CLIP)
    with pytest.raises(CheckpointError, match="leave out --input-shape"):
        read_model(path, {"input": (1, 2)})


def test_the_bundle_of_a_network_of_files_is_its_layers_in_turn(tmp_path: Path) -> None:
    net = written(tmp_path, radix_net(NEURONS), layers=3)
    assert net.residual_graph is not None
    network = read_network(net.residual_graph.with_layers(net.layers))
    assert [(node.layer, *node.inputs, *node.outputs) for node in network.nodes] == [
        ("layer1", "input", "layer1.output"),
        ("layer2", "layer1.output", "layer2.output"),
        ("layer3", "layer2.output", "output"),
    ]
    with pytest.raises(CheckpointError, match="layer2 cannot be compiled and has no fallback"):
        net.residual_graph.with_layers([net.layers[0], net.layers[2]])


@pytest.mark.parametrize("neurons", [64, 1024])
def test_each_layer_of_a_radix_net_adds_one_digit(neurons: int) -> None:
    nodes = neurons // 16
    shift = np.roll(np.eye(nodes), 1, axis=1)  # node n has an edge to node n + 1, the last to the first
    for number, matrix in enumerate(radix_net(neurons, seed=None)):
        expected = np.kron(np.ones((16, 16)), np.eye(nodes) + np.linalg.matrix_power(shift, 2**number))
        assert np.array_equal(matrix.kernel(neurons, neurons).T != 0, expected != 0)
        assert set(matrix.values) == {1 / 16}


@pytest.mark.parametrize("seed", [None, 7])
def test_a_radix_net_has_32_edges_per_neuron_and_equally_many_paths(seed: int | None) -> None:
    layers = radix_net(256, seed)
    assert len(layers) == 4
    paths = np.eye(256)
    for matrix in layers:
        pattern = (matrix.kernel(256, 256) != 0).astype(np.float64)
        assert (pattern.sum(axis=0) == 32).all()
        assert (pattern.sum(axis=1) == 32).all()
        paths = pattern @ paths
    assert (paths == 16**3).all()
    with pytest.raises(ValueError, match="no RadiX-Net has 1000 neurons"):
        radix_net(1000)


def test_rows_of_a_random_network_stay_alive_and_different() -> None:
    matrices = random_layers(NEURONS * 4, 60, seed=2)
    y = (np.random.default_rng(0).random((50, NEURONS * 4)) < 0.4).astype(np.float64)
    for matrix in matrices:
        y = np.clip(y @ matrix.kernel(NEURONS * 4, NEURONS * 4).T, 0, CLIP)
    assert (y > 0).any(axis=1).all()
    assert len(np.unique(y, axis=0)) == 50


@pytest.mark.parametrize("options", [[], ["--random"]])
def test_a_made_network_can_be_read(
    tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made"
    monkeypatch.setattr("sys.argv", ["tsv", str(folder), "--neurons", "64", "--layers", "5", *options])
    main()
    assert capsys.readouterr().out == f"{folder / 'network.json'}\n"
    assert len(read_model(folder).layers) == 5
    monkeypatch.setattr("sys.argv", ["tsv", str(folder), "--neurons", "100"])
    with pytest.raises(SystemExit):
        main()
    assert "no RadiX-Net has 100 neurons" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["tsv", str(tmp_path / "file"), "--neurons", "64", *options])
    with pytest.raises(SystemExit):
        main()
    assert "file cannot be written (File exists): name another folder" in capsys.readouterr().err


def test_its_layers_can_be_tuned_and_measured_like_any_others(tmp_path: Path) -> None:
    written(tmp_path, radix_net(NEURONS), layers=3)
    [case] = cases_of(tmp_path, ["layer2"], [], Choice(batches=(8,)), [], [])
    assert case.images == 8
    assert case.weights.nonzeros == 32 * NEURONS
