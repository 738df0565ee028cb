"""Gradients of slices become the gradient of the whole batch: sum over the ranks of n_r/n * g_r.

That happens once per update, in one of two places. Keras' own train_step hands its gradients straight to the optimizer,
so there they are combined where they are applied. In code of the user's anything can stand between tape and optimizer
(clipping by the norm, accumulation), or there is no optimizer at all; there a tape gives out combined gradients.
"""

import threading

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.inject import lifecycle, loops, patching, per_rank, sparse, step
from matexrun.inject.tensorflow import warn

_tapes = threading.local()


class _Count:
    taken = 0  # how often a tape was asked for gradients


def patch() -> None:
    """Patch tf.GradientTape.gradient, and __enter__ and __exit__, which tell an inner tape from an outer one.

    An inner tape's gradients are differentiated again (WGAN-GP's penalty, MAML): those belong to the slice. Tried on
    TF 2.18 to 2.21.
    """

    @patching.method(tf.GradientTape, "__enter__", ())
    def enter(original, self):
        _recording().append(self)
        return original(self)

    @patching.method(tf.GradientTape, "__exit__", ("typ", "value", "traceback"))
    def leave(original, self, *args):
        if self in _recording():
            _recording().remove(self)
        return original(self, *args)

    @patching.method(tf.GradientTape, "gradient", ("target", "sources"))
    def gradient(original, self, target, sources, *args, **kwargs):
        _Count.taken += 1
        grads = original(self, target, sources, *args, **kwargs)
        current = step.current()
        inner = any(tape is not self for tape in _recording())
        if current is None:
            if any(map(_is_variable, tf.nest.flatten(sources))) and not inner:
                loops.eager.trained()
            return grads
        if not current.by_tape or inner:
            return grads
        flat, variables = tf.nest.flatten(grads), tf.nest.flatten(sources)
        chosen = [i for i, variable in enumerate(variables) if _is_variable(variable)]
        if not chosen:
            return grads  # with respect to tensors: an attribution, or an outer penalty
        current.taken = True
        if current.eager:
            loops.eager.check_loss(current)
        combined = combine([flat[i] for i in chosen], [variables[i] for i in chosen], current, bool(current.weighted))
        for i, grad in zip(chosen, combined, strict=True):
            flat[i] = grad
        return tf.nest.pack_sequence_as(grads, flat)

    lifecycle.at_end(_check_combined)


def _recording() -> list:
    """The tapes that are recording in this thread."""
    if not hasattr(_tapes, "recording"):
        _tapes.recording = []
    return _tapes.recording


def _is_variable(source) -> bool:
    """Whether a source of a tape is a variable of TensorFlow's or of Keras', which wraps one."""
    return isinstance(source, tf.Variable) or hasattr(source, "handle")


def applied(optimizer, grads: list, variables: list) -> list:
    """The gradients to apply: combined now, unless that was done already; None stays None.

    Outside a step all ranks have computed the same whole batch, and rank 0's gradients are everyone's.
    """
    if sparse.trying():
        return grads
    current = step.current()
    if current is None:
        per_rank.refuse("a training loop of the script's own")
        if not loops.eager.trained():
            warn(
                "an optimizer is applied in code that matexrun cannot split, so all ranks do the same work; the result "
                "is right, but no sooner: put @tf.function on the function that trains on a batch, or give matexrun "
                "--eager-loops split"
            )
        whole = step.Step(tf.constant(int(lifecycle.rank() == 0)), tf.constant(1), True, ops.Order(), False, True)
        return combine(grads, variables, whole, optimizer=optimizer)
    current.settles([*variables, *variables_of(optimizer)])
    if current.by_tape and current.combined:
        return grads
    return combine(grads, variables, current, id(optimizer) in current.weighted, optimizer)


def variables_of(optimizer) -> list:
    """The variables of an optimizer of Keras or tf_keras, in whose legacy ones `variables` is a method."""
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)


def combine(grads: list, variables: list, current: step.Step, weighted: bool = False, optimizer=None) -> list:
    """The gradients of the whole batch; None stays None, IndexedSlices stay what they are or become dense (`sparse`).

    weighted: the loss was multiplied by the slice's weight already.  optimizer: the one that applies them, where that
    is known. Raises as `sparse.dense`.
    """
    current.combined = True
    weight = None if weighted else current.weight
    result, dense = list(grads), []
    for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
        if isinstance(grad, tf.IndexedSlices):
            result[i] = sparse.dense(grad, variable, optimizer, current)
            if result[i] is None:
                result[i] = ops.allgather_slices(grad, current.order, weight)
                continue
        if result[i] is not None:
            # A gradient can have lost its shape (behind a masked RNN); the reduction needs it.
            result[i] = tf.ensure_shape(result[i], variable.shape)
            dense.append(i)
    summed = ops.allreduce([result[i] for i in dense], current.order, factor=weight, kind="gradients")
    for i, reduced in zip(dense, summed, strict=True):
        result[i] = reduced
    return result


def _check_combined() -> None:
    """At the end of a script that took gradients and never combined one, say that all ranks did the same."""
    if _Count.taken and not ops.counters()["gradients"]:
        warn(
            f"gradients were taken {_Count.taken} times and never combined between the ranks, because no step of this "
            "script could be split: every rank has done the whole work. Put @tf.function on the function that trains "
            "on a batch"
        )
