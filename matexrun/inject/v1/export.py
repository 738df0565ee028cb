"""Graphs that leave the process (meta graphs, saved models, events) contain no collectives: they run anywhere.

In their place stands an identity, so that a train_op of such a graph trains on one process as the script's own would.
"""

import functools

import tensorflow as tf

from matexrun.inject import patching
from matexrun.inject.tensorflow import warn
from matexrun.inject.v1 import graphs


def patch() -> None:
    """Patch tf.Graph.as_graph_def, by which all graphs are written, and import_graph_def, by which they are read."""

    @patching.method(tf.Graph, "as_graph_def", ("from_version", "add_shapes"))
    def as_graph_def(original, self, *args, **kwargs):
        made = original(self, *args, **kwargs)
        state = graphs.state(self, create=False)
        if state is not None and state.groups:
            for node in made.node:
                if node.name.startswith("matexrun/") and node.op in ("XlaCallModule", "PyFunc"):
                    _pass_on(node)
        return made

    original = tf.import_graph_def
    patching.check_signature(original, ("graph_def",))

    @functools.wraps(original)
    def import_graph_def(graph_def, *args, **kwargs):
        imported = original(graph_def, *args, **kwargs)
        if any(graphs.applies(node.op) for node in graph_def.node):
            warn(
                "training operations of a saved graph (import_meta_graph) are not split: all ranks do the same work; "
                "the result is right, but no sooner. Build the graph anew, and restore its variables, to change that"
            )
        return imported

    patching.everywhere(original, import_graph_def, "tensorflow")


def _pass_on(node) -> None:
    """Make a collective (tensors, perhaps a factor, and the token -> tensors and the token) an identity."""
    kinds = list(node.attr["Tout"].list.type)
    data = [name for name in node.input if not name.startswith("^")]
    control = [name for name in node.input if name.startswith("^")]
    del node.input[:]
    node.input.extend(data[: len(kinds) - 1] + data[-1:] + control)
    node.op = "IdentityN"
    for name in set(node.attr) - {"_output_shapes"}:
        del node.attr[name]
    node.attr["T"].list.type.extend(kinds)
