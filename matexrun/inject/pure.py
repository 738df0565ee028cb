"""Which functions of tf.data's `map` give the same for an element wherever, whenever and how often they are called.

May look at traced functions; calls nothing and changes nothing.
"""

import itertools

import tensorflow as tf

# Stateful by their declaration, because they call functions that may be; those functions are looked at, too.
_CALLS = {"StatefulPartitionedCall", "If", "While", "Case"}
# Stateful so that it is not optimised away; it fails or passes for each element by itself.
_CHECKS = {"Assert"}
# Not declared stateful, because the user has said so; what they do in Python is out of sight.
_PYTHON = {"PyFuncStateless"}


def impurity(function) -> str | None:
    """The type of the first operation, at any depth, that may have a state (random numbers, variables, Python); None
    where there is none.

    function: a tf.types.experimental.ConcreteFunction.
    """
    graph = function.graph.as_graph_def()
    inner = {body.signature.name for body in graph.library.function}
    for node in itertools.chain(graph.node, *(body.node_def for body in graph.library.function)):
        if node.op not in _CALLS | _CHECKS | inner and (node.op in _PYTHON or _is_stateful(node.op)):
            return node.op
    return None


def _is_stateful(op: str) -> bool:
    """By TensorFlow's registry of operations (TF 2.18 to 2.21); an operation that it does not know is."""
    from tensorflow.python.framework import op_def_registry

    declared = op_def_registry.get(op)
    return declared is None or declared.is_stateful


def is_plain(spec) -> bool:
    """Whether elements of a dataset are tensors of any kind: no nested datasets, optionals, or None."""
    kinds = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
    return all(isinstance(leaf, kinds) for leaf in tf.nest.flatten(spec))


def has_fixed_shape(spec) -> bool:
    """Whether all elements are dense tensors of one shape, so that any of them can be batched together."""
    leaves = tf.nest.flatten(spec)
    return all(isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in leaves)
