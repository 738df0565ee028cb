"""Gradients are combined where they are taken, so that clipping, scaling and any update see those of the whole batch.

The gradient with respect to a variable (or to what was computed from variables alone) is the sum of what the rows give,
and is combined; one with respect to rows, like that of a gradient penalty, belongs to the rows and stays. Terms of the
loss that depend on no rows are the same on all ranks: their gradients are added after.
"""

import functools
import threading

import tensorflow as tf

from matexrun.inject import patching
from matexrun.inject.v1 import graphs, groups, terms

_local = threading.local()


def patch() -> None:
    """Patch tensorflow.python.ops.gradients_util._GradientsHelper, which does the work of tf.gradients, of both API
    versions, and of every tf.compat.v1.train.Optimizer; and tf.GradientTape.gradient (TF 2.18 to 2.21)."""
    from tensorflow.python.ops import gradients_util

    original = gradients_util._GradientsHelper
    patching.check_signature(original, ("ys", "xs", "grad_ys"))

    @functools.wraps(original)
    def gradients(ys, xs, *args, **kwargs):
        if getattr(_local, "inside", False) or not graphs.building():
            return original(ys, xs, *args, **kwargs)
        _local.inside = True  # gradients of gradients' own functions are parts of this one
        xs = list(xs) if isinstance(xs, (list, tuple)) else [xs]
        try:
            weights = args[0] if args else kwargs.pop("grad_ys", None)
            more = functools.partial(original, **kwargs)
            over_rows, others = _separated(ys, weights)
            if others is None:
                return _combined(more(ys, xs, weights, *args[1:]), xs)
            grads = _combined(more(*_unzipped(over_rows, xs), *args[1:]), xs)
            rest = more(*_unzipped(others, xs), *args[1:])
            return [_added(*pair) for pair in zip(grads, rest, strict=True)]
        finally:
            _local.inside = False

    gradients_util._GradientsHelper = gradients

    @patching.method(tf.GradientTape, "gradient", ("target", "sources"))
    def by_tape(original, self, target, sources, *args, **kwargs):
        if getattr(_local, "inside", False) or not graphs.building():
            return original(self, target, sources, *args, **kwargs)
        _local.inside = True
        try:
            grads = original(self, target, sources, *args, **kwargs)
        finally:
            _local.inside = False
        flat = _combined(tf.nest.flatten(grads), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(grads, flat)


def _separated(ys, weights):
    """([(term over rows, factor)], [(other term, factor)]) of one loss; None for the second where there is no need."""
    ys = ys if isinstance(ys, (list, tuple)) else [ys]
    if weights is None and len(ys) == 1 and isinstance(ys[0], tf.Tensor):
        found = terms.of(ys[0], graphs.depends_on_rows)
        over_rows = [term for term in found if graphs.depends_on_rows(term[0].op)]
        others = [term for term in found if not graphs.depends_on_rows(term[0].op)]
        own = any(map(_own_value, graphs.walk([term.op for term, _ in others], control=False)))
        if over_rows and others and not own:
            return over_rows, others
    return None, None


def _own_value(op) -> bool:
    return graphs.has_own_values(op) and not op.type.startswith("Placeholder")


def _unzipped(found, xs):
    """Arguments of tf.gradients."""
    return [term for term, _ in found], xs, [tf.constant(factor, term.dtype) for term, factor in found]


def _added(grad, other):
    if grad is None or other is None:
        return other if grad is None else grad
    return tf.convert_to_tensor(grad) + tf.convert_to_tensor(other)


def _combined(grads, xs):
    state = graphs.state()
    chosen, shapes = [], []
    for i, (grad, x) in enumerate(zip(grads, xs, strict=True)):
        if grad is None or not isinstance(grad, (tf.Tensor, tf.IndexedSlices)) or _of_rows(state, x):
            continue
        shape = grad.shape if grad.shape.is_fully_defined() else _shape(x)
        if groups.combinable(grad, shape):
            chosen.append(i)
            shapes.append(shape)
    if chosen:
        names = ", ".join(_name(xs[i]) for i in chosen[:3]) + (", ..." if len(chosen) > 3 else "")
        whole = groups.combine([grads[i] for i in chosen], shapes, "gradients", f"the gradient of {names}")
        grads = list(grads)
        for i, grad in zip(chosen, whole, strict=True):
            grads[i] = grad
    return grads


def _of_rows(state, x) -> bool:
    op = _tensor(x).op
    return bool(state.sources(op)) or any(graphs.has_own_values(o) for o in graphs.walk([op], control=False))


def _tensor(x):
    if isinstance(x, tf.Tensor):
        return x
    return x.handle if hasattr(x, "handle") else tf.convert_to_tensor(x)


def _shape(x):
    """The static shape of a variable, given as itself or as its handle."""
    from tensorflow.python.ops import handle_data_util

    if getattr(x, "dtype", None) == tf.resource:
        data = handle_data_util.get_resource_handle_data(x)
        if data is not None and data.is_set:
            return tf.TensorShape(data.shape_and_type[0].shape)
    return tf.TensorShape(x.shape)


def _name(x) -> str:
    return getattr(x, "name", str(x)).partition(":")[0]
