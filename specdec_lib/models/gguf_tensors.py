"""The tensors of a GGUF file, read one after another: where each lies, and its numbers and scales as the file has them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from specdec_lib.decoding.lean import EIGHT_BITS, EIGHT_BITS_OF_16, FLOAT32, FOUR_BITS
from specdec_lib.decoding.served_models import UnsupportedModel

#: Weights that are decoded at once.
PART = 2**19
#: Formats of single values of the metadata by their number; 8 is a string, 9 an array.
_VALUES = dict(enumerate("B b H h I i f ?".split())) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
#: Most dimensions of a tensor.
_DIMENSIONS = 8


@dataclass(frozen=True)
class Tensor:
    """``shape`` is that of numpy, (outputs, inputs) of a matrix; it begins ``at`` bytes into the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    at: int

    @property
    def row(self) -> int:
        """Bytes of a row."""
        weights, size = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // weights * size

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.row * math.prod(self.shape[:-1])


class GGUF:
    """The metadata of a file, except its lists, and its tensors by name; ValueError if the file is damaged."""

    def __init__(self, path: Path):
        self.path = path
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        size = path.stat().st_size
        try:
            with path.open("rb") as file:
                self._read(file)
        except (struct.error, UnicodeDecodeError, OverflowError, MemoryError, RecursionError):
            raise UnsupportedModel(
                f"{path.name} ends or is damaged within its list of tensors, after {len(self.tensors)} of them: fetch it again"
            ) from None
        for tensor in self.tensors.values():
            if tensor.at + tensor.size > size:
                raise UnsupportedModel(
                    f"{path.name} is cut short: it has {size:,} bytes, and its tensor {tensor.name} ends at "
                    f"{tensor.at + tensor.size:,}: fetch it again"
                )

    def _read(self, file: BinaryIO) -> None:
        magic, version, tensors, values = _unpacked(file, "4sIQQ")
        if magic != b"GGUF":
            raise UnsupportedModel(f"{self.path} is no GGUF file: it begins with {magic!r}, not b'GGUF'")
        if version not in (2, 3):
            raise UnsupportedModel(
                f"{self.path.name} is of GGUF version {version}; expected 2 or 3, from this processor's kind"
            )
        for _ in range(values):
            name = _string(file)
            (kind,) = _unpacked(file, "I")
            value = _value(file, kind)
            if value is not None:
                self.values[name] = value
        found = []
        for _ in range(tensors):
            name = _string(file)
            (dimensions,) = _unpacked(file, "I")
            if not 1 <= dimensions <= _DIMENSIONS:
                raise struct.error
            shape = _unpacked(file, f"{dimensions}Q")
            kind, offset = _unpacked(file, "IQ")
            found.append((name, shape[::-1], kind, offset))
        grain = self.values.get("general.alignment", 32)
        if type(grain) is not int or grain < 1:
            raise struct.error
        start = -(-file.tell() // grain) * grain
        for name, shape, kind, offset in found:
            if kind not in set(GGMLQuantizationType):
                raise UnsupportedModel(
                    f"the tensor {name} of {self.path.name} is of type {kind}, which the package gguf does not know: update it"
                )
            known = GGMLQuantizationType(kind)
            if shape[-1] % GGML_QUANT_SIZES[known][0]:
                raise UnsupportedModel(
                    f"the tensor {name} of {self.path.name} has rows of {shape[-1]}, and {known.name} packs "
                    f"{GGML_QUANT_SIZES[known][0]} together: the file is damaged"
                )
            self.tensors[name] = Tensor(name, shape, known, start + offset)

    def floats(self, name: str) -> np.ndarray:
        """A tensor in float32, of its shape."""
        tensor = self.tensors[name]
        raw = np.fromfile(self.path, np.uint8, tensor.size, offset=tensor.at)
        return quants.dequantize(raw.reshape(*tensor.shape[:-1], -1), tensor.kind).reshape(tensor.shape)

    def parts(self, name: str, whole: bool = False) -> Iterator[tuple[int, np.ndarray]]:
        """The bytes of a matrix's rows, (m, row), with the number of the first, a multiple of 8; at once if ``whole``."""
        tensor = self.tensors[name]
        rows = tensor.shape[0]
        step = rows if whole else max(8, PART // tensor.shape[1] // 8 * 8)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            raw = np.fromfile(self.path, np.uint8, count * tensor.row, offset=tensor.at + first * tensor.row)
            yield first, raw.reshape(count, tensor.row)


def _unpacked(file: BinaryIO, form: str) -> tuple:
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))


def _string(file: BinaryIO) -> str:
    (length,) = _unpacked(file, "Q")
    text = file.read(length)
    if len(text) < length:
        raise struct.error
    return text.decode()


def _value(file: BinaryIO, kind: int) -> Any:
    """A value of the metadata; of a list nothing, which is passed over."""
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        if kind not in _VALUES:
            raise struct.error
        return _unpacked(file, _VALUES[kind])[0]
    inner, count = _unpacked(file, "IQ")
    if inner == _STRING:
        read, unpack = file.read, struct.Struct("<Q").unpack
        for _ in range(count):
            read(unpack(read(8))[0])
    elif inner == _ARRAY:
        for _ in range(count):
            _value(file, _ARRAY)
    elif inner in _VALUES:
        file.read(count * struct.calcsize(_VALUES[inner]))
    else:
        raise struct.error
    return None


#: Numbers, scales and, where they are added, minima.
Decoded = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _blocks(raw: np.ndarray, size: int) -> np.ndarray:
    return raw.reshape(len(raw), -1, size)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Low halves of some bytes, then their high halves, as the last axis."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _q4_0(raw: np.ndarray) -> Decoded:
    blocks = _blocks(raw, 18)
    scales = _half(blocks, 0)
    return _nibbles(blocks[..., 2:]), scales, -8 * scales


def _q4_1(raw: np.ndarray) -> Decoded:
    blocks = _blocks(raw, 20)
    return _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(raw: np.ndarray) -> Decoded:
    blocks = _blocks(raw, 22)
    fifth = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=-1, bitorder="little")
    return (_nibbles(blocks[..., 6:]) | fifth << 4).view(np.int8) - np.int8(16), _half(blocks, 0), None


def _q8_0(raw: np.ndarray) -> Decoded:
    blocks = _blocks(raw, 34)
    return blocks[..., 2:].view(np.int8), _half(blocks, 0), None


def _q4_k(raw: np.ndarray) -> Decoded:
    blocks = _blocks(raw, 144)
    packed = blocks[..., 4:16].reshape(*blocks.shape[:2], 3, 4)
    low, high, both = packed[..., 0, :], packed[..., 1, :], packed[..., 2, :]
    scales = np.concatenate([low & 63, both & 15 | low >> 2 & 48], axis=-1)
    minima = np.concatenate([high & 63, both >> 4 | high >> 2 & 48], axis=-1)
    numbers = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return numbers, _half(blocks, 0)[..., None] * scales, -_half(blocks, 2)[..., None] * minima


def _q6_k(raw: np.ndarray) -> Decoded:
    blocks = _blocks(raw, 210)
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)).reshape(*blocks.shape[:2], 2, 4, 32)
    packed = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    high = packed >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    numbers = (low | high << 4).view(np.int8) - np.int8(32)
    return numbers, _half(blocks, 208)[..., None] * blocks[..., 192:208].view(np.int8), None


#: How a type is kept, and how its bytes are read.
KEPT: dict[GGMLQuantizationType, tuple[int, Callable[[np.ndarray], Decoded]]] = {
    GGMLQuantizationType.Q4_0: (FOUR_BITS, _q4_0),
    GGMLQuantizationType.Q4_1: (FOUR_BITS, _q4_1),
    GGMLQuantizationType.Q4_K: (FOUR_BITS, _q4_k),
    GGMLQuantizationType.Q5_0: (EIGHT_BITS, _q5_0),
    GGMLQuantizationType.Q8_0: (EIGHT_BITS, _q8_0),
    GGMLQuantizationType.Q6_K: (EIGHT_BITS_OF_16, _q6_k),
}


def decode_rows(kind: GGMLQuantizationType, raw: np.ndarray) -> Decoded:
    """Of rows of bytes: numbers, (n, k), scales, (n, k / group), and minima, (n, k / 32)."""
    numbers, scales, minima = KEPT[kind][1](raw)
    rows = len(raw)
    return numbers.reshape(rows, -1), scales.reshape(rows, -1), None if minima is None else minima.reshape(rows, -1)


def storage_kind(tensor: Tensor, exact_rows: bool = True) -> int:
    """How a matrix is kept: as the file has it, or in float32 where its type, or with ``exact_rows`` its shape, is another."""
    if tensor.kind not in KEPT or (exact_rows and tensor.shape[0] % 8):
        return FLOAT32
    return KEPT[tensor.kind][0]
