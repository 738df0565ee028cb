"""Input pipelines whose rows are split before they are decoded: of `source.map(f).batch(n)`, a rank maps its rows only.

The transformations of a tf.data.Dataset are noted on it as they are called. A pipeline that ends in steps per row and
a `batch` is built again, with the split in front of these steps: the source is cut into windows of a batch's size, and
of each window the rank keeps its rows. They go through the same traced functions and are batched again. All windows
but the last are full and leave the same number of rows, and the last one leaves no more than that; so batches of that
number are the slices of the sequential run's batches, and no number of rows has to be known in advance.

Done only where the result is provably that of splitting after the batch. The source is the script's own dataset: it is
iterated as often as before, so its shuffles go on as before. No communication here.
"""

import dataclasses
import functools
import inspect
import itertools
from typing import Any

import tensorflow as tf

from matexrun import reports
from matexrun.inject import lifecycle, patching, pure, slices

_as_written = tf.autograph.experimental.do_not_convert

# Each transformation with the parameters that it must begin with (TF 2.18 to 2.21).
_TRANSFORMATIONS = {
    "map": ("map_func", "num_parallel_calls", "deterministic"),
    "batch": ("batch_size", "drop_remainder", "num_parallel_calls", "deterministic"),
    "prefetch": ("buffer_size",),
    "cache": ("filename",),
    "repeat": ("count",),
    "take": ("count",),
    "with_options": ("options",),
}
_SOURCES = {"from_tensor_slices": ("tensors",), "from_tensors": ("tensors",), "range": ("args",)}
# What may stand between the split and the batch.
_PER_ROW = {"map", "prefetch", "cache", "with_options"}
# What may stand behind the batch, and is done to the slices as it was to the batches.
_BEHIND = {"prefetch", "repeat", "take", "with_options", "cache"}
# What changes places with maps of rows, and so becomes a part of the source.
_MOVED = {"repeat", "take"}


@dataclasses.dataclass(frozen=True)
class Step:
    """How a dataset was made: by `parent.name(**arguments)`; parent is None for a source."""

    name: str
    parent: tf.data.Dataset | None
    arguments: dict[str, Any]


class Late(Exception):
    """Why a pipeline has to be split after its batch."""


def patch() -> None:
    """Note the public transformations of tf.data.Dataset as an attribute of what they return."""
    for name, parameters in _TRANSFORMATIONS.items():
        _note_method(name, parameters)
    for name, parameters in _SOURCES.items():
        _note_source(name, parameters)


def _note_method(name: str, parameters: tuple[str, ...]) -> None:
    signature = inspect.signature(getattr(tf.data.Dataset, name))

    @patching.method(tf.data.Dataset, name, parameters)
    def transformation(original, self, *args, **kwargs):
        made = original(self, *args, **kwargs)
        if made is not self:  # as `prefetch` does in tf.data's debug mode
            arguments = dict(signature.bind(self, *args, **kwargs).arguments)
            del arguments["self"]
            made._matexrun_step = Step(name, self, arguments)
        return made


def _note_source(name: str, parameters: tuple[str, ...]) -> None:
    original = getattr(tf.data.Dataset, name)
    patching.check_signature(original, parameters)

    def source(*args, **kwargs):
        made = original(*args, **kwargs)
        made._matexrun_step = Step(name, None, {})
        return made

    setattr(tf.data.Dataset, name, staticmethod(functools.wraps(original)(source)))


def split_early(dataset: tf.data.Dataset, late: tf.data.Dataset) -> tf.data.Dataset:
    """The elements of `late` with less work, or `late` itself where they could differ.

    late: `dataset` with its batches split when they are made; its elements are `(slice, (n_r, n))`. What is built for a
    dataset is kept with it, so that its caches serve every `fit` as the script's own would.
    """
    if lifecycle.job().size == 1:
        return late
    early = getattr(dataset, "_matexrun_early", None)
    if early is None:
        try:
            early = rebuilt(dataset)
            if early.element_spec != late.element_spec:
                raise Late(f"its batches would be {early.element_spec} instead of {late.element_spec}")
        except Late as reason:
            _note(dataset, f"an input pipeline is split after its batch: {reason}")
            return late
        _note(dataset, "an input pipeline is split before the `map` of its rows")
        dataset._matexrun_early = early
    return early


def _note(dataset, message: str) -> None:
    """With -v; nothing where there is no `map` that could be saved."""
    if lifecycle.rank() == 0 and any(step.name == "map" for _, step in _steps(dataset)):
        reports.send("note", message=message)


def _steps(dataset):
    """(dataset, the Step that made it), the last one first, as far as they are known."""
    while step := getattr(dataset, "_matexrun_step", None):
        yield dataset, step
        dataset = step.parent


def rebuilt(dataset: tf.data.Dataset, choose=slices.mine) -> tf.data.Dataset:
    """`dataset` with the split in front of the maps of rows; elements are `(slice, (n_r, n))`.

    choose: what gives (start, rows to take, n_r) for n rows. Raises Late where the result could be another one.
    """
    behind, batch = _behind(dataset)
    source, moved, steps = _in_front(batch.parent)
    size, drop = int(batch.arguments["batch_size"]), bool(batch.arguments.get("drop_remainder", False))

    rows = source
    for _, step in moved:
        rows = _again(rows, step)
    rows = _rows_of_this_rank(rows, size, drop, choose)
    for made, step in steps:
        rows = _again(rows, step, **({"map_func": _traced(made, step)} if step.name == "map" else {}))
    result = _again(rows, batch, batch_size=choose(size)[1]).map(_count_once)
    for _, step in behind:
        result = _again(result, step)
    return result


def _behind(dataset):
    """The steps behind the last batch in their order, and that batch."""
    steps = []
    for made, step in _steps(dataset):
        if step.name == "batch":
            if not pure.has_fixed_shape(step.parent.element_spec):
                raise Late("the shape of its rows is not known beforehand")
            return steps[::-1], step
        if step.name not in _BEHIND or step.name == "cache" and not _is_same_every_time(made):
            raise Late(f"its batches go through `{step.name}`")
        steps.append((made, step))
    raise Late("what makes its batches is not known")


def _in_front(rows):
    """(source, steps that move into it, steps behind the split), for as many maps as possible."""
    found, moved, steps = None, [], []
    reason = "no `map` stands directly before its batch"
    for made, step in _steps(rows):
        if step.name == "map":
            operation = pure.impurity(_function(made))
            if operation or not pure.is_plain((made.element_spec, step.parent.element_spec)):
                reason = f"`map` before its batch uses {operation}" if operation else "its rows are no tensors"
                break
        elif step.name == "cache" and (moved or not _is_same_every_time(made)):
            break
        elif step.name not in _PER_ROW | _MOVED:
            break
        (moved if step.name in _MOVED else steps).insert(0, (made, step))
        if step.name == "map":
            if any(step.name == "repeat" for _, step in moved) and not _is_same_every_time(step.parent):
                # TensorFlow makes one of a `shuffle` and a `repeat` that stands behind it, which begins earlier to
                # shuffle the next pass.
                reason = "`repeat` behind `map` may not come to stand behind `shuffle`"
                break
            found = step.parent, list(moved), list(steps)
    if found is None:
        raise Late(reason)
    return found


def _is_same_every_time(dataset) -> bool:
    """Whether each iteration gives the same elements, so that it makes no difference which one a cache has kept."""
    steps = list(_steps(dataset))
    return bool(steps) and steps[-1][1].parent is None and all(itertools.starmap(_is_steady, steps))


def _is_steady(made, step: Step) -> bool:
    """Whether a step gives the same for the same elements."""
    if step.name == "map":
        return pure.impurity(_function(made)) is None
    return step.name != "cache" or step.arguments.get("filename", "") == ""  # a file may be an older one


def _rows_of_this_rank(source, size: int, drop: bool, choose):
    """A dataset of `(row, (n_r, n))`: of every `size` rows of the source those that this rank computes."""
    single = type(source.element_spec) is not tuple

    @_as_written
    def mine(*window):
        rows = tf.data.Dataset.zip(window[0] if single else window)
        total = rows.cardinality()
        with tf.control_dependencies([tf.debugging.assert_positive(total, message="rows of a window")]):
            start, take, count = choose(tf.identity(total))
        counts = tf.data.Dataset.from_tensors((tf.cast(count, tf.int32), tf.cast(total, tf.int32)))
        return tf.data.Dataset.zip((rows.skip(start).take(take), counts.repeat()))

    rows = source.window(size, drop_remainder=drop).flat_map(mine)
    total = int(source.cardinality())
    if total >= 0:  # a cache is complete when it has as many rows, even if nobody asks for one more
        rest = total % size
        count = total // size * choose(size)[1] + (choose(rest)[1] if rest and not drop else 0)
        rows = rows.apply(tf.data.experimental.assert_cardinality(count))
    return rows


def _again(dataset, step: Step, **others):
    """The same transformation of another dataset; in order, whatever the script says, because the ranks must agree."""
    arguments = {name: value for name, value in step.arguments.items() if name != "deterministic"}
    return getattr(dataset, step.name)(**{**arguments, **others})


def _function(mapped):
    """What `map` has traced of the script's function; DatasetV2._functions, tried on TF 2.18 to 2.21."""
    (function,) = mapped._functions()
    return function.function


def _traced(mapped, step: Step):
    """The function of a `map` for rows with their counts. It isn't traced again, which could give another function:
    Python code may count its calls, or draw a random number."""
    from tensorflow.python.data.util import structure

    function, rows, results = _function(mapped), step.parent.element_spec, mapped.element_spec

    @_as_written
    def map_row(row, counts):
        return structure.from_tensor_list(results, function(*structure.to_tensor_list(rows, row))), counts

    return map_row


@_as_written
def _count_once(batch, counts):
    """All rows of a batch have the same counts."""
    return batch, tuple(count[0] for count in counts)
