"""The geometries that each landing compares: between them every value of every attribute."""

from __future__ import annotations

from tests.differential.geometries import Geometry

GEOMETRIES: dict[str, Geometry] = {
    "3x3": Geometry("Conv", 5, 7, (9, 11), (3, 3), pads=(1, 1, 1, 1), steps=("relu",)),
    "1x1": Geometry("Conv", 9, 10, (7, 7), (1, 1), bias=False),
    "1x1 with stride 2": Geometry("Conv", 16, 6, (8, 9), (1, 1), (2, 2), steps=("batch_norm", "relu")),
    "2x2 with stride 3": Geometry("Conv", 4, 5, (13, 13), (2, 2), (3, 3), batch=1, virtual_arch="compute_75"),
    "5x5 VALID": Geometry("Conv", 3, 8, (12, 10), (5, 5), auto_pad="VALID", steps=("clip",)),
    "7x7 with stride 2": Geometry("Conv", 3, 8, (20, 20), (7, 7), (2, 2), (3, 3, 3, 3), bias=False),
    "11x11 with stride 4": Geometry("Conv", 3, 4, (20, 19), (11, 11), (4, 4), (2, 2, 2, 2), batch=1, steps=("relu",)),
    "patches of 16x16": Geometry("Conv", 3, 4, (48, 32), (16, 16), (16, 16), batch=1),
    "patches of 4x4, rows left over": Geometry("Conv", 3, 8, (19, 24), (4, 4), (4, 4), steps=("add",)),
    "3x1 and 1x3 strides": Geometry("Conv", 4, 6, (11, 12), (3, 1), (1, 3), (1, 0, 0, 2), steps=("leaky_relu",)),
    "1x7": Geometry("Conv", 6, 5, (4, 16), (1, 7), pads=(0, 3, 0, 3), steps=("add", "relu")),
    "9x2, uneven pads": Geometry("Conv", 2, 3, (14, 8), (9, 2), (2, 1), (4, 1, 3, 0), steps=("multiply",)),
    "4x6 SAME_UPPER": Geometry("Conv", 3, 6, (10, 13), (4, 6), (2, 3), auto_pad="SAME_UPPER", steps=("clip_low",)),
    "2x4 SAME_LOWER": Geometry("Conv", 5, 4, (9, 8), (2, 4), (2, 1), auto_pad="SAME_LOWER", virtual_arch="compute_75"),
    "dilation 2": Geometry("Conv", 6, 8, (12, 12), (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), steps=("relu",)),
    "dilation 3x1 SAME_UPPER": Geometry(
        "Conv", 4, 5, (14, 9), (3, 4), (2, 1), auto_pad="SAME_UPPER", dilations=(3, 1), steps=("residual", "relu")
    ),
    "dilation 1x4 VALID, stride 2": Geometry("Conv", 3, 4, (8, 20), (2, 3), (1, 2), auto_pad="VALID", dilations=(1, 4)),
    "two groups": Geometry("Conv", 8, 6, (8, 8), (3, 3), pads=(1, 1, 1, 1), group=2, steps=("batch_norm",)),
    "four groups, dilation, stride": Geometry(
        "Conv", 12, 8, (11, 11), (3, 2), (2, 1), (1, 0, 2, 1), dilations=(1, 2), group=4, steps=("relu",)
    ),
    "depthwise": Geometry(
        "Conv", 12, 12, (9, 9), (3, 3), pads=(1, 1, 1, 1), group=12, bias=False, steps=("batch_norm", "clip")
    ),
    "depthwise with multiplier": Geometry("Conv", 5, 15, (10, 8), (5, 3), (2, 2), (2, 1, 2, 1), group=5),
    "depthwise 7x7, dilated": Geometry(
        "Conv", 6, 6, (15, 15), (7, 7), pads=(6, 6, 6, 6), dilations=(2, 2), group=6, batch=1, steps=("residual",)
    ),
    "residual after batch normalisation": Geometry(
        "Conv", 8, 8, (7, 7), (3, 3), pads=(1, 1, 1, 1), bias=False, steps=("batch_norm", "residual", "relu")
    ),
    "residual first, then clipped": Geometry("Conv", 4, 6, (6, 10), (3, 3), steps=("residual_first", "clip")),
    "residual after the activation": Geometry(
        "Conv", 6, 4, (8, 8), (3, 3), (2, 2), (0, 0, 1, 1), steps=("leaky_relu", "residual")
    ),
    "everything that folds": Geometry(
        "Conv", 5, 6, (8, 9), (2, 3), steps=("multiply", "batch_norm", "add", "multiply_scalar", "clip_high")
    ),
    "what follows an activation does not fold": Geometry("Conv", 4, 5, (7, 8), (3, 3), steps=("relu", "batch_norm")),
    "SiLU after batch normalisation": Geometry(
        "Conv", 5, 6, (8, 7), (3, 3), pads=(1, 1, 1, 1), steps=("batch_norm", "silu")
    ),
    "GELU and a residual": Geometry("Conv", 8, 6, (7, 7), (1, 1), steps=("gelu", "residual")),
    "hard swish, depthwise": Geometry(
        "Conv", 6, 6, (9, 8), (5, 5), (2, 2), (2, 2, 2, 2), group=6, steps=("hard_swish",)
    ),
    "sigmoid and hard sigmoid": Geometry(
        "Conv", 4, 5, (6, 7), (2, 2), steps=("hard_sigmoid", "residual", "sigmoid"), virtual_arch="compute_75"
    ),
    "a hard swish, scaled": Geometry(
        "Conv", 6, 6, (8, 9), (3, 3), pads=(1, 1, 1, 1), group=6, steps=("hard_swish", "multiply_scalar", "add_scalar")
    ),
    "rounded to 8 bits": Geometry("Conv", 5, 7, (8, 6), (3, 3), steps=("relu", "quantize", "residual", "clip")),
    "rounded to 8 bits and pooled": Geometry("Conv", 5, 6, (9, 8), (3, 3), steps=("batch_norm", "quantize", "pool")),
    "Mish and tanh, transposed": Geometry("ConvTranspose", 4, 5, (5, 4), (3, 3), (2, 2), steps=("mish", "tanh")),
    "GELU of nodes, of sequences": Geometry("MatMul", 16, 9, (4,), bias=False, steps=("add", "gelu_of_nodes")),
    "residual of flat maps": Geometry("Conv", 4, 6, (7, 8), (3, 3), steps=("silu", "residual_of_rows")),
    "residual of flat sequences": Geometry("MatMul", 12, 7, (3,), bias=False, steps=("add", "residual_of_rows")),
    "float16 GELU by tanh": Geometry("Gemm", 20, 9, steps=("gelu_by_tanh",), data_type="float16"),
    "bfloat16 rounded to 8 bits, folded before": Geometry(
        "ConvTranspose",
        3,
        10,
        (4, 14),
        (3, 2),
        pads=(2, 0, 1, 1),
        steps=("batch_norm", "add", "quantize", "sigmoid"),
        data_type="bfloat16",
        batch=3,
    ),
    "bfloat16 SiLU": Geometry("Conv", 6, 5, (6, 6), (3, 3), steps=("silu", "residual"), data_type="bfloat16"),
    "1-D": Geometry("Conv", 6, 8, (20,), (5,), pads=(2, 2), steps=("relu",)),
    "1-D, dilated, strided, grouped": Geometry("Conv", 8, 4, (19,), (3,), (2,), (3, 1), dilations=(3,), group=4),
    "1-D, 160 wide": Geometry("Conv", 32, 8, (160,), (3,), pads=(1, 1), batch=1, steps=("relu",)),
    "1-D, 1,024 wide": Geometry("Conv", 4, 4, (1024,), (5,), pads=(2, 2), batch=1, steps=("batch_norm",)),
    "1-D, 196 wide, strided": Geometry("Conv", 16, 8, (196,), (7,), (2,), (3, 3), batch=2),
    "1-D, 200 wide, depthwise": Geometry("Conv", 16, 16, (200,), (3,), pads=(1, 1), group=16, batch=1),
    "1x3 on one row": Geometry("Conv", 24, 6, (1, 198), (1, 3), pads=(0, 1, 0, 1), steps=("leaky_relu",)),
    "3x3 on one row": Geometry("Conv", 8, 6, (1, 180), (3, 3), pads=(1, 1, 1, 1), steps=("relu",)),
    "float16, 1-D, 192 wide": Geometry("Conv", 32, 8, (192,), (3,), pads=(1, 1), data_type="float16"),
    "1-D SAME_LOWER": Geometry("Conv", 3, 5, (18,), (4,), (2,), auto_pad="SAME_LOWER", steps=("leaky_relu",)),
    "transposed 3x3": Geometry("ConvTranspose", 5, 6, (6, 7), (3, 3), pads=(1, 1, 1, 1), steps=("relu",)),
    "transposed 4x4 with stride 2": Geometry(
        "ConvTranspose", 6, 4, (7, 6), (4, 4), (2, 2), (1, 1, 1, 1), bias=False, steps=("batch_norm", "relu")
    ),
    "transposed with output padding": Geometry(
        "ConvTranspose", 4, 5, (5, 6), (3, 2), (2, 3), (1, 0, 0, 1), output_padding=(1, 2), steps=("leaky_relu",)
    ),
    "transposed in groups, dilated": Geometry(
        "ConvTranspose", 8, 6, (6, 5), (3, 3), (1, 2), (2, 0, 1, 1), dilations=(2, 1), group=2, steps=("clip",)
    ),
    "transposed depthwise": Geometry("ConvTranspose", 6, 6, (5, 5), (2, 2), (2, 2), group=6, steps=("residual",)),
    "transposed SAME_UPPER": Geometry("ConvTranspose", 3, 4, (6, 5), (3, 4), (2, 2), auto_pad="SAME_UPPER"),
    "transposed to a shape": Geometry(
        "ConvTranspose", 3, 4, (5, 5), (4, 3), (2, 2), output_shape=(11, 10), virtual_arch="compute_75"
    ),
    "transposed 1-D": Geometry("ConvTranspose", 4, 5, (9,), (5,), (3,), (1, 2), steps=("add", "relu")),
    "Gemm": Geometry("Gemm", 24, 10, transposed_weights=True, batch=3, steps=("relu",)),
    "Gemm with alpha and beta": Geometry("Gemm", 17, 9, alpha=0.75, beta=0.5, batch=5, steps=("batch_norm", "clip")),
    "MatMul": Geometry("MatMul", 20, 12, bias=False, batch=4, steps=("add", "residual", "relu")),
    "MatMul of sequences": Geometry("MatMul", 16, 7, (5,), bias=False, steps=("multiply", "add", "leaky_relu")),
    "float16 3x3": Geometry(
        "Conv", 8, 6, (8, 8), (3, 3), pads=(1, 1, 1, 1), steps=("batch_norm", "relu"), data_type="float16"
    ),
    "float16 in groups, dilated, residual": Geometry(
        "Conv", 8, 8, (9, 10), (3, 2), (1, 2), (1, 1, 1, 0), dilations=(2, 1), group=2, steps=("residual", "clip"),
        data_type="float16",
    ),
    "float16 patches of 14x14": Geometry(
        "Conv", 3, 2, (42, 28), (14, 14), (14, 14), batch=2, data_type="float16"
    ),
    "float16 depthwise": Geometry(
        "Conv", 6, 6, (8, 7), (5, 3), auto_pad="SAME_UPPER", group=6, steps=("leaky_relu",), data_type="float16",
        virtual_arch="compute_75",
    ),
    "float16 transposed": Geometry(
        "ConvTranspose", 4, 4, (5, 6), (4, 4), (2, 2), (1, 1, 1, 1), steps=("relu",), data_type="float16"
    ),
    "float16 Gemm": Geometry("Gemm", 24, 11, transposed_weights=True, steps=("relu",), data_type="float16"),
    "bfloat16 3x3": Geometry(
        "Conv", 6, 5, (7, 9), (3, 3), (2, 1), (1, 1, 1, 1), steps=("batch_norm", "residual", "relu"),
        data_type="bfloat16",
    ),
    "bfloat16 transposed": Geometry(
        "ConvTranspose", 4, 6, (5, 5), (3, 3), (2, 2), output_padding=(1, 1), group=2, data_type="bfloat16"
    ),
    "bfloat16 MatMul": Geometry("MatMul", 18, 8, (3,), bias=False, steps=("add", "clip_low"), data_type="bfloat16"),
    "pool": Geometry("Conv", 5, 7, (10, 12), (3, 3), pads=(1, 1, 1, 1), steps=("relu", "pool")),
    "pool of an odd map, stride 2, older GPU": Geometry(
        "Conv", 4, 6, (19, 15), (3, 3), (2, 2), steps=("batch_norm", "leaky_relu", "pool"), virtual_arch="compute_75"
    ),
    "pool, groups": Geometry("Conv", 8, 6, (8, 14), (5, 3), pads=(2, 1, 2, 1), group=2, batch=3, steps=("pool",)),
    "float16 pool": Geometry(
        "Conv", 6, 9, (8, 8), (3, 3), pads=(1, 1, 1, 1), batch=3, steps=("clip", "pool"), data_type="float16"
    ),
    "wide pool": Geometry("Conv", 5, 7, (10, 12), (3, 3), pads=(1, 1, 1, 1), steps=("relu", "wide_pool")),
    "wide pool of an odd map, stride 2, older GPU": Geometry(
        "Conv", 3, 6, (29, 21), (7, 7), (2, 2), (3, 3, 3, 3), bias=False, steps=("batch_norm", "relu", "wide_pool"),
        virtual_arch="compute_75",
    ),
    "float16 wide pool": Geometry(
        "Conv", 6, 9, (8, 8), (3, 3), pads=(1, 1, 1, 1), batch=3, steps=("clip", "wide_pool"), data_type="float16"
    ),
    "bfloat16 wide pool": Geometry("Conv", 3, 5, (11, 9), (4, 4), steps=("relu", "wide_pool"), data_type="bfloat16"),
    "bfloat16 pool": Geometry("Conv", 3, 5, (11, 9), (4, 4), steps=("relu", "pool"), data_type="bfloat16"),
    "gates": Geometry("Conv", 22, 9, (6, 7), (1, 1), batch=3, steps=("batch_norm", "residual", "relu"), gated=True),
    "gates, 1-D, groups": Geometry("Conv", 12, 6, (70,), (1,), group=2, gated=True, virtual_arch="compute_75"),
    "gates, stride 2": Geometry("Conv", 9, 5, (9, 8), (1, 1), (2, 2), bias=False, steps=("silu",), gated=True),
    "float16 gates": Geometry("Conv", 21, 6, (7, 7), (1, 1), batch=3, data_type="float16", gated=True),
    "bfloat16 gates": Geometry("Conv", 10, 6, (6, 8), (1, 1), steps=("clip",), data_type="bfloat16", gated=True),
}  # fmt: skip
"""Small, so that the emulator takes no time; together they have every value of every attribute."""

NOT_ALL_FOLDED = {"what follows an activation does not fold"}
"""Listed geometries whose last node is not computed with the layer."""
