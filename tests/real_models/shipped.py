"""Trained models that ship inside Python wheels, inputs that they are made for, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Array = NDArray[Any]


@dataclass(frozen=True)
class Shipped:
    """A model in a wheel."""

    wheel: str
    """Package and version on the package index."""
    sha256: str
    """Digest of the wheel."""
    path: str
    inputs: Callable[[], Mapping[str, Array]]
    """Inputs of its kind; their shapes are the ones that the model is compiled for."""
    decide: Callable[[Sequence[Array]], Array]
    """Decisions that a user reads from the outputs."""
    values: Mapping[str, int] = field(default_factory=dict)
    """Inputs that are fixed: --input-value."""


def _text(words: str, width: int, height: int) -> Array:
    """Dark words on a light ground, [height, width, 3] of 0 to 255."""
    image = Image.new("RGB", (width, height), (235, 230, 220))
    font = ImageFont.load_default(size=height * 0.7 / (1 + words.count("\n")))
    ImageDraw.Draw(image).text((height // 8, height // 10), words, (30, 30, 60), font=font)
    return np.asarray(image, np.float32)


def _photo(width: int, height: int) -> Array:
    from sklearn.datasets import load_sample_image

    return np.asarray(Image.fromarray(load_sample_image("china.jpg")).resize((width, height)), np.float32)


def _planes(*images: Array, mean: float | Sequence[float] = 127.5, scale: float | Sequence[float] = 127.5) -> Array:
    """Images as a model takes them: normalised, [images, channels, height, width]."""
    stacked = (np.stack(images) - np.asarray(mean)) / np.asarray(scale)
    return np.ascontiguousarray(stacked.transpose(0, 3, 1, 2), np.float32)


def _page() -> dict[str, Array]:
    page = np.concatenate([_text("Sparse\nnetworks", 160, 96), _photo(160, 64)])
    return {"x": _planes(page, mean=(123.7, 116.3, 103.5), scale=(58.4, 57.1, 57.4))}


def _label() -> dict[str, Array]:
    label = _text("Orientation", 192, 48)
    return {"x": _planes(label, label[::-1, ::-1])}


def _line() -> dict[str, Array]:
    return {"x": _planes(_text("Hello World 42", 320, 48))}


def _file() -> dict[str, Array]:
    """Both ends of a file, 1024 bytes each."""
    source = Path(__file__).read_bytes()
    return {"bytes": np.frombuffer(source[:1024] + source[-1024:], np.uint8).astype(np.int32)[None]}


def _sentence() -> dict[str, Array]:
    """Cambodia is a country in Southeast Asia, in Khmer, as the model numbers letters."""
    letters = "9 2 5 18 25 8 6 7 2 22 14 24 3 24 3 9 2 5 18 25 8 4 42 30 3 8 50 20 30 3 26 2 4 25 19 61"
    ids = np.array([[int(each) for each in letters.split()]])
    return {"x": ids, "mask": np.ones(ids.shape, np.bool_)}


def _wave(samples: int, rate: int, *pitches: float) -> Array:
    """Tones with overtones that fade away."""
    seconds = np.arange(samples) / rate
    tones = [np.sin(2 * np.pi * pitch * n * seconds) / n for pitch in pitches for n in (1, 2, 3, 4)]
    return np.asarray(0.2 * np.sum(tones, axis=0) * np.exp(-seconds), np.float32)


def _chord() -> dict[str, Array]:
    return {"serving_default_input_2:0": _wave(43844, 22050, 261.6, 329.6, 392.0)[None, :, None]}


def _voice(samples: str, state: str, *shape: int) -> dict[str, Array]:
    """Chunks of a voiced sound that fades away, each with an empty state: the state's middle size counts them."""
    sound = _wave(576 * shape[1], 16000, 140.0, 700.0) * np.linspace(1, 0, 576 * shape[1], dtype=np.float32)
    return {samples: sound.reshape(-1, 576), state: np.zeros(shape, np.float32)}


def _captcha() -> dict[str, Array]:
    return {"input1": _planes(_text("7XK4", 160, 64)[..., :1])}


def _picture() -> dict[str, Array]:
    picture = np.concatenate([_photo(416, 256), _text("open\ndoor", 416, 160)])
    return {"images": _planes(picture, mean=0.0, scale=1.0)}


def _body() -> dict[str, Array]:
    return {"images": _planes(_photo(320, 320), mean=0.0, scale=255.0)}


def _spoken() -> dict[str, Array]:
    """Eight seconds of a voiced sound: logarithms of the power in 80 bands, for each hundredth of a second."""
    sound = np.pad(_wave(128_000, 16000, 140.0, 700.0), 120)
    frames = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160][:800] * np.hanning(400)
    power = np.abs(np.fft.rfft(frames)[:, :160]) ** 2
    bands = np.log10(np.maximum(power.reshape(800, 80, 2).mean(-1).T, 1e-10))
    return {"input_features": np.asarray((np.maximum(bands, bands.max() - 8) + 4) / 4, np.float32)[None]}


def _parts(outputs: Sequence[Array]) -> Array:
    """The cells of a YOLOv8 grid that show something, and the likeliest cell with its class."""
    classes = outputs[0][:, 4:]
    likeliest = classes.max(1).argmax(-1)
    return np.concatenate([(classes.max(1) > 0.2).ravel(), likeliest, classes[0, :, likeliest[0]].argmax(-1)[None]])


def _largest(outputs: Sequence[Array]) -> Array:
    """The class of each image or time step, as it is read from one output."""
    return np.asarray(outputs[0].argmax(-1))


def _above(threshold: float, outputs: Sequence[Array]) -> Array:
    """The classes found, given one probability per output."""
    return np.concatenate([(each > threshold).ravel() for each in outputs])


def _boxes(outputs: Sequence[Array]) -> Array:
    """The cells of a YOLOX grid that hold an object, and the likeliest cell with its class."""
    objects, classes = outputs[0][..., 4], outputs[0][..., 5:]
    scores = objects * classes.max(-1)
    likeliest = scores.argmax(-1)
    return np.concatenate([(scores > 0.1).ravel(), likeliest, classes[np.arange(len(classes)), likeliest].argmax(-1)])


def _is_voice(outputs: Sequence[Array]) -> Array:
    """Whether the first output, a probability, is large; the other is the state for the next chunk."""
    return outputs[0] > 0.5


RAPIDOCR = "rapidocr-onnxruntime==1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"
DDDDOCR = "ddddocr==1.6.1", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935"
OCR = "rapidocr_onnxruntime/models/ch"
MODELS = {
    "text orientation": Shipped(*RAPIDOCR, f"{OCR}_ppocr_mobile_v2.0_cls_infer.onnx", _label, _largest),
    "text detection": Shipped(*RAPIDOCR, f"{OCR}_PP-OCRv4_det_infer.onnx", _page, partial(_above, 0.3)),
    "text recognition": Shipped(*RAPIDOCR, f"{OCR}_PP-OCRv4_rec_infer.onnx", _line, _largest),
    "file type": Shipped(
        "magika==1.0.3",
        "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        "magika/models/standard_v3_3/model.onnx",
        _file,
        _largest,
    ),
    "word segmentation": Shipped(
        "khmersm==1.4.2",
        "62d198b369179b5ae3c6601b11f7633cc062f2dd120bf95eb911d80911684e16",
        "khmersm/model.onnx",
        _sentence,
        _largest,
    ),
    "pitch": Shipped(
        "basic-pitch==0.4.0",
        "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        _chord,
        partial(_above, 0.3),
    ),
    "voice": Shipped(
        "silero-vad==6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        partial(_voice, "input", "state", 2, 16, 128),
        _is_voice,
        {"sr": 16000},
    ),
    "voice, gated recurrence": Shipped(
        "akiki==0.0.6",
        "6a457650194739bab4697a2277a51d65f7f9a168a7fa9c173c232c446cc1c31a",
        "akiki/models/akiki-vad.onnx",
        partial(_voice, "audio_with_context", "h", 1, 1, 128),
        _is_voice,
    ),
    "body parts": Shipped(
        "nudenet==3.4.2",
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        "nudenet/320n.onnx",
        _body,
        _parts,
    ),
    "turn, quantized": Shipped(
        "pipecat-ai==1.14.0",
        "0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        _spoken,
        _is_voice,
    ),
    "text detection, version 6": Shipped(
        "rapidocr==3.10.0",
        "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        _page,
        partial(_above, 0.3),
    ),
    "captcha": Shipped(*DDDDOCR, "ddddocr/common.onnx", _captcha, _largest),
    "object detection": Shipped(*DDDDOCR, "ddddocr/common_det.onnx", _picture, _boxes),
}
