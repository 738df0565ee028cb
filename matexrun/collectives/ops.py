"""Collectives as TensorFlow operations: eager, in tf.function, in jit clusters, loops and tf.compat.v1 graphs.

Imported only after TensorFlow. Every operation of one trace must be given the same `Order`, on every rank in the same
sequence; the handlers check that, and where the sequences differ they raise CollectiveError on all ranks (TensorFlow
shows it as FailedPreconditionError).
"""

import contextlib
import functools
import weakref
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from matexrun import reports
from matexrun.collectives import calls, fallback, handlers, module, world
from matexrun.collectives.calls import Call
from matexrun.errors import CollectiveError, EnvironmentError_

INDICES = "indices of gradients"  # the kind of the collective that follows gathered rows of gradients

# AutoGraph would rewrite what a traced function calls, and trip over plain Python loops.
_as_written = tf.autograph.experimental.do_not_convert


class Order:
    """The ordering token of one trace: each collective takes it from its predecessor and hands it on.

    XLA schedules a cluster by shapes, so ranks with different slice sizes would run independent collectives in
    different orders; tf.compat.v1 graphs have no order at all. The token makes each depend on the one before. One Order
    serves one purpose (the training step, say): fetching the last of its collectives from a v1 Session runs all before
    it. A collective in the body of a loop or branch follows those before the loop; one after the loop must depend on a
    value of the loop by itself, since tokens can't leave it.
    """

    def take(self) -> tf.Tensor:
        """The token for the next collective in the graph that is being built."""
        if not tf.executing_eagerly():
            for graph, context in _scopes():
                token = _tokens(graph, self).get(context)
                if token is not None:
                    return token
        return tf.zeros([1])

    def put(self, token: tf.Tensor) -> None:
        """Make `token` the one that the next collective takes."""
        if not tf.executing_eagerly():
            graph, context = next(_scopes())
            _tokens(graph, self)[context] = token


def _scopes():
    """Where a token for the graph that is being built may come from, innermost first: (graph, loop or branch in it)."""
    graph = tf.compat.v1.get_default_graph()
    while True:
        context = graph._get_control_flow_context()  # loops and branches of tf.compat.v1 are no graphs of their own
        while context is not None:
            if context.IsCondContext() or context.IsWhileContext():
                yield graph, context
            context = context.outer_context
        yield graph, None
        # Only bodies of loops and branches may capture: another function can be called again from another graph.
        if not isinstance(graph, ControlFlowFuncGraph):
            return
        graph = graph.outer_graph


def _tokens(graph, order: Order) -> dict:
    """The tokens of `order` in `graph`: {loop or branch, None outside: token}."""
    # Kept by the graph, not by the Order: tokens refer to their graph, which could then never be freed.
    tokens = getattr(graph, "_matexrun_tokens", None)
    if tokens is None:
        tokens = graph._matexrun_tokens = weakref.WeakKeyDictionary()
    return tokens.setdefault(order, {})


@functools.cache
def backend() -> str:
    """ "ffi" (XLA custom calls) or "numpy" (numpy_function), by the job's settings and what this TensorFlow has.

    Raises EnvironmentError_ where the settings ask for "ffi" and it can't be had.
    """
    wanted = _world().settings.collectives
    if wanted == "numpy":
        return "numpy"
    try:
        handlers.install()
    except EnvironmentError_ as error:
        if wanted == "ffi":
            raise
        reports.send("warning", message=f"collectives run through numpy_function, slower and without jit: {error}")
        return "numpy"
    return "ffi"


def supports_jit() -> bool:
    """Whether collectives may stand inside jit_compile=True (CPU clusters, with the FFI backend)."""
    return backend() == "ffi" and not tf.config.list_logical_devices("GPU")


def counters() -> dict[str, int]:
    """How often collectives have run (not: been traced) in this process, by their `kind`; 0 for kinds not seen."""
    return calls.executed


@_as_written
def allreduce(
    tensors: Sequence[tf.Tensor],
    order: Order,
    factor: tf.Tensor | None = None,
    *,
    kind: str = "values",
    shapes: Sequence[Sequence[int]] | None = None,
) -> list[tf.Tensor]:
    """The sums over ranks of `factor * tensor`, the same bits on all ranks.

    tensors: of float16, bfloat16 (both summed in float32), float32, float64, int32 or int64, mixed as you like.
    factor: this rank's scalar, float32 or float64; with 0 the rank adds exact zeros, even for infinities. Only for
    floating tensors.  kind: the purpose, for messages and `counters()`; gradient reductions say "gradients".
    shapes: static shapes for tensors that lack them (a gradient has its variable's).
    Raises CollectiveError for other dtypes and for shapes that stay unknown.
    """
    return _emit("allreduce", tensors, order, factor, kind, shapes)


@_as_written
def broadcast(tensors: Sequence[tf.Tensor], order: Order, root: int = 0, *, kind: str = "values") -> list[tf.Tensor]:
    """The tensors of rank `root` on all ranks; any numeric or bool dtype, static shapes."""
    return _emit("broadcast", tensors, order, None, kind, None, root)


@_as_written
def allgather_rows(tensor: tf.Tensor, order: Order, *, kind: str = "values") -> tf.Tensor:
    """The tensors of all ranks joined along axis 0, in which they may differ. Not inside a jit cluster."""
    if in_cluster():
        raise CollectiveError("rows of different numbers can't be gathered under jit_compile=True; switch it off")
    _world()
    rows, token = _on_host(fallback.gather_rows, tf.convert_to_tensor(tensor), order.take(), kind)
    order.put(token)
    return rows


@_as_written
def allgather_slices(slices: tf.IndexedSlices, order: Order, factor: tf.Tensor | None = None) -> tf.IndexedSlices:
    """A sparse gradient with the indices and values of all ranks; `factor` scales this rank's values.

    Counted as one reduction of "gradients". Not inside a jit cluster.
    """
    values = slices.values
    if factor is not None:
        # Not a plain product: a rank with factor 0 adds exact zeros, as in allreduce.
        scaled = values * tf.cast(factor, values.dtype)
        values = tf.where(tf.equal(factor, 0), tf.zeros_like(values), scaled)
    values = allgather_rows(values, order, kind="gradients")
    return tf.IndexedSlices(values, allgather_rows(slices.indices, order, kind=INDICES), slices.dense_shape)


def _emit(op, tensors, order, factor, kind, shapes, root=0) -> list[tf.Tensor]:
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not tensors:
        return []
    if shapes is not None:
        tensors = [
            tensor if tensor.shape.is_fully_defined() else tf.ensure_shape(tensor, shape)
            for tensor, shape in zip(tensors, shapes, strict=True)
        ]
    if factor is not None:
        factor = tf.reshape(tf.convert_to_tensor(factor), [])
    call = Call(
        op,
        kind,
        tuple(tensor.dtype.base_dtype.name for tensor in tensors),
        tuple(_static_shape(tensor, i) for i, tensor in enumerate(tensors)),
        None if factor is None else factor.dtype.name,
        root,
    )
    call.check()
    if backend() == "ffi":
        emit = _custom_call
    elif in_cluster():
        raise CollectiveError(f"{call.what} under jit_compile=True needs the FFI backend; switch jit_compile off")
    else:
        emit = fallback.emit
    *results, token = _on_host(emit, call, tensors, factor, order.take())
    order.put(token)
    return results


def _custom_call(call: Call, tensors, factor, token) -> list[tf.Tensor]:
    handlers.remember(call)
    return gen_xla_ops.xla_call_module(
        args=[*tensors, *([] if factor is None else [factor]), token],
        version=9,
        module=module.text(handlers.TARGET, call, in_place=in_cluster()),
        Sout=[*call.shapes, (1,)],
        Tout=[*(tensor.dtype.base_dtype for tensor in tensors), tf.float32],
        platforms=["CPU"],
    )


def _on_host(emit, *arguments):
    """Run `emit` with its operations on the CPU; a cluster has one device for all, and takes no other."""
    with contextlib.nullcontext() if in_cluster() else tf.device("/CPU:0"):
        return emit(*arguments)


def in_cluster() -> bool:
    """Whether what is being traced will be compiled as one XLA cluster (jit_compile=True)."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _static_shape(tensor: tf.Tensor, number: int) -> tuple[int, ...]:
    if not tensor.shape.is_fully_defined():
        name = getattr(tensor, "name", "")
        raise CollectiveError(
            f"tensor {number} ({name}) has the shape {tensor.shape}, but its size must be known when the graph is "
            "built: pass the shape of its variable"
        )
    return tuple(tensor.shape.as_list())


def _world() -> world.World:
    current = world.current()
    if current is None:
        raise CollectiveError("a collective before MPI was started in this process")
    return current
