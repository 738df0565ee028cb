"""What a training run returns: the values that the whole batch would have given, the same on all ranks."""

import numpy as np

from matexrun.inject import lifecycle
from matexrun.inject.v1 import graphs

TOLERANCE = 1e-3


class Part:
    """One rank's value of a fetch: `rows` of the `total` rows of the batch are its own."""

    def __init__(self, value, rows, total):
        self.value, self.rows, self.total = value, int(rows), int(total)


def default_rule(tensor) -> str:
    """How values of slices are put together as long as no probe could tell."""
    if graphs.of_rows(tensor.shape):
        return "rows"
    if tensor.dtype.is_floating:
        return "mean"
    return "sum" if tensor.dtype.is_integer else "same"


def combine(rule: str, parts: list):
    """The value of the batch from those of the ranks, by `rule`."""
    counting = [part for part in parts if part.rows] or parts[:1]
    first = counting[0].value
    if rule == "rows":
        return np.concatenate([part.value for part in counting])
    if rule == "mean":
        value = sum(np.asarray(part.value, np.float64) * (part.rows / part.total) for part in counting)
    elif rule == "sum":
        value = sum(np.asarray(part.value, _wide(first)) for part in counting)
    elif rule == "max":
        value = np.max([part.value for part in counting], 0)
    elif rule == "min":
        value = np.min([part.value for part in counting], 0)
    else:
        return first
    return np.asarray(value).astype(np.asarray(first).dtype)[()]


def _wide(value):
    return np.float64 if np.asarray(value).dtype.kind == "f" else np.int64


def gather(values: list) -> list[list[Part]]:
    """The Parts of all ranks of each of `values` (this rank's Parts). Collective."""
    return list(zip(*lifecycle.world().allgather_object(values), strict=True))


def rules(tensor, whole, parts: list) -> list[str]:
    """The rules by which `parts` give `whole`, the likeliest first."""
    order = {"rows": 0, "mean": 1, "sum": 2, "max": 3, "min": 4, "same": 5}
    order[default_rule(tensor)] = -1
    return [rule for rule in sorted(order, key=order.get) if _gives(rule, whole, parts)]


def _gives(rule, whole, parts) -> bool:
    whole = np.asarray(whole)
    numbers = whole.dtype.kind in "fiu"
    if rule in ("mean", "sum", "max", "min") and not (numbers and all(np.shape(p.value) == whole.shape for p in parts)):
        return False
    if rule == "mean" and whole.dtype.kind != "f":
        return False
    if rule == "rows" and not whole.ndim:
        return False
    try:
        value = np.asarray(combine(rule, parts))
    except ValueError:  # slices that don't fit together
        return False
    if value.shape != whole.shape:
        return False
    if not numbers or not whole.size:
        return bool(np.all(value == whole))
    scale = float(np.nanmax(np.abs(whole))) if whole.dtype.kind == "f" else 0.0
    return bool(np.allclose(value, whole, rtol=TOLERANCE, atol=TOLERANCE * 1e-2 * scale, equal_nan=True))
