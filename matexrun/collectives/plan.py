"""How a list of tensors is cut and packed for reduction. Pure: numbers in, a plan out; no arrays, MPI or TensorFlow.

Every rank makes the same plan from the same list: order, cutting and packing depend on dtypes and sizes alone.
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Piece:
    """Elements start .. stop - 1 of the tensor with number `tensor`, flattened."""

    tensor: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Bucket:
    """What one MPI call reduces: one piece in its place, or several small tensors that are copied together.

    dtype: of all its tensors.  pieces: one, or whole tensors.  size: elements.
    """

    dtype: str
    pieces: tuple[Piece, ...]
    size: int


# Copying costs less than another MPI call up to about this share of a bucket; above it, reduce in place.
_SMALL = 16


def plan(tensors: Sequence[tuple[str, int, int]], bucket_bytes: int, chunk_bytes: int) -> tuple[Bucket, ...]:
    """Buckets for `tensors`, given as (dtype, elements, bytes of an element while it is summed), in forward order.

    The last tensors come first, since backpropagation has their gradients first. Small tensors of one dtype share
    buckets of at most `bucket_bytes`; others stay alone, in equal pieces of at most `chunk_bytes`, small enough to be
    still in cache between scaling and sending. Empty tensors are left out.
    """
    buckets: list[Bucket] = []
    filling: dict[str, list[Piece]] = {}
    filled: dict[str, int] = {}  # elements in `filling`

    def close(dtype: str) -> None:
        buckets.append(Bucket(dtype, tuple(filling.pop(dtype)), filled.pop(dtype)))

    for number in reversed(range(len(tensors))):
        dtype, size, width = tensors[number]
        if size * width * _SMALL > bucket_bytes:
            parts = min(size, -(-size * width // chunk_bytes))
            for part in range(parts):
                start, stop = size * part // parts, size * (part + 1) // parts
                buckets.append(Bucket(dtype, (Piece(number, start, stop),), stop - start))
        elif size:
            if (filled.get(dtype, 0) + size) * width > bucket_bytes:
                close(dtype)
            filling.setdefault(dtype, []).append(Piece(number, 0, size))
            filled[dtype] = filled.get(dtype, 0) + size
    for dtype in list(filling):
        close(dtype)
    return tuple(buckets)
