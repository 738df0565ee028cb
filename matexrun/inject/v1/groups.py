"""Groups: tensors that are combined between the ranks at one place of a graph, inside Session.run.

What reaches a variable must be the same on all ranks, so that is where slices are put together: gradients, and other
values that depend on rows and are written (moving averages, counters, metrics, summaries).

Collectives of one run must come in the same order on all ranks, but a run of one train_op must not run the gradients of
another. So each group waits for every earlier one through a tensor of its own (`waits`), and Session.run feeds those of
groups that are not part of the run, which cuts them off.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import lifecycle
from matexrun.inject.v1 import graphs

# How values of slices make up that of the batch: sum(n_r/n * v_r), sum(v_r), or any of them.
RULES = ("mean", "sum", "same")
_SUMMED = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


@dataclasses.dataclass(eq=False)
class Group:
    """number: in the order of creation.  kind: "gradients", "writes", "summaries", or "gathered" (which
    has no rule).  local: this rank's tensors, dense.

    waits: {number of an earlier group: the token that we wait for}.  token: what later groups wait for.  factor: its
    rule as a tensor (index in RULES).  rules: those that it may have, as far as probes could tell, the likeliest first.
    what: for messages.
    """

    number: int
    kind: str
    what: str
    local: list
    waits: dict
    token: tf.Tensor
    factor: tf.Tensor | None = None
    rules: list = dataclasses.field(init=False)

    def __post_init__(self):
        floating = all(tensor.dtype.is_floating for tensor in self.local)
        self.rules = [rule for rule in RULES if floating or rule != "mean"]

    def feeds(self, running) -> dict:
        """What a run of the groups with the numbers `running` feeds: tokens of the others, and the rule."""
        waits = self.waits.items()
        feeds = {token.ref(): np.zeros([1], np.float32) for number, token in waits if number not in running}
        if self.factor is not None:
            feeds[self.factor.ref()] = np.int64(RULES.index(self.rules[0]))
        return feeds


def combinable(tensor, shape) -> bool:
    """Whether a tensor (or IndexedSlices) whose static shape is `shape` can be combined inside a graph."""
    return tensor.dtype.base_dtype.name in _SUMMED and (
        isinstance(tensor, tf.IndexedSlices) or tf.TensorShape(shape).is_fully_defined()
    )


def combine(tensors: list, shapes: list, kind: str, what: str) -> list:
    """The whole batch's values, the same on all ranks, of `tensors` (numbers; IndexedSlices too) with static `shapes`.

    Their gradient is that of the local ones: where a loss contains a combined gradient, its own gradient is combined in
    turn, which gives the factor.
    """
    state = graphs.state()
    with state.ours():
        order, waits = _after_all(state)
        factor = state.switch(tf.constant(0, tf.int64), "rule")
        rows = state.rows([_op(tensor) for tensor in tensors])
        first = float(lifecycle.rank() == 0)
        weight = tf.stack([rows.share, tf.cast(rows.counts, tf.float32), tf.constant(first)])[factor]
        results = list(tensors)
        dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
        integers = [i for i in dense if tensors[i].dtype.is_integer]
        floats = [i for i in dense if i not in integers]
        for chosen, reduce in ((integers, _sum_integers), (floats, _sum_floats)):
            mine = [tf.ensure_shape(tensors[i], shapes[i]) for i in chosen]
            for i, whole in zip(chosen, reduce(mine, order, weight, kind), strict=True):
                results[i] = whole
        for i, tensor in enumerate(tensors):
            if i not in dense:
                results[i] = ops.allgather_slices(_if_counted(tensor, weight), order, weight)
        local = [tf.convert_to_tensor(tensor) for tensor in tensors]
        group = Group(len(state.groups), kind, what, local, waits, order.take(), factor)
        state.groups.append(group)
        for i, whole in enumerate(results):
            results[i] = _marked(state, group, whole)
    return results


def gather(tensor, what: str):
    """All entries of `tensor` on all ranks, in one dimension, each counted once; for what depends on rows."""
    state = graphs.state()
    with state.ours():
        order, waits = _after_all(state)
        flat = tf.reshape(tensor, [-1])
        rows = state.rows([tensor.op])
        whole = ops.allgather_rows(flat[: tf.where(rows.counts, tf.size(flat), 0)], order, kind="summaries")
        group = Group(len(state.groups), "gathered", what, [], waits, order.take())
        state.groups.append(group)
        return _marked(state, group, whole)


def _after_all(state):
    """The Order of a new group, which comes after all others, and its `waits`."""
    order = ops.Order()
    waits = {group.number: state.switch(group.token, "wait") for group in state.groups}
    if waits:
        order.put(tf.add_n(list(waits.values())))
    return order, waits


def _sum_integers(tensors, order, weight, kind):
    counted = [tf.where(weight > 0, tensor, tf.zeros_like(tensor)) for tensor in tensors]
    return ops.allreduce(counted, order, kind=kind) if counted else []


def _sum_floats(tensors, order, weight, kind):
    if not tensors:
        return []

    @tf.custom_gradient
    def summed(*tensors):
        whole = ops.allreduce(tensors, order, weight, kind=kind)
        return whole, lambda *gradients: gradients

    whole = summed(*tensors)
    return list(whole) if isinstance(whole, (list, tuple)) else [whole]


def _if_counted(slices, weight):
    """No rows at all where they would not count: to touch them would already be an update in some optimizers."""
    rows = tf.where(weight > 0, tf.shape(slices.indices)[0], 0)
    return tf.IndexedSlices(slices.values[:rows], slices.indices[:rows], slices.dense_shape)


def _marked(state, group, whole):
    if isinstance(whole, tf.IndexedSlices):
        parts = [_marked(state, group, part) for part in (whole.values, whole.indices)]
        return tf.IndexedSlices(*parts, whole.dense_shape)
    whole = tf.identity(whole, "combined")
    state.combined[whole.op] = group
    return whole


def _op(tensor):
    return tensor.values.op if isinstance(tensor, tf.IndexedSlices) else tensor.op
