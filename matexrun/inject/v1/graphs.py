"""What this rank knows about one graph of tf.compat.v1: what matexrun has put into it, and walks over it.

The user's operations are never changed: inputs, names and seeds stay what they are without matexrun. Ours stand below
the name "matexrun/", and with nothing fed to them they let every rank compute the whole batch.
"""

import contextlib
import re

import tensorflow as tf

from matexrun.inject import lifecycle

# Operations that change a variable, a queue, a table or a file; and those whose values may differ between processes.
_WRITES = re.compile(
    "(Resource)?(Sparse)?Apply|Assign|(Resource)?Scatter(Add|Sub|Mul|Div|Min|Max|Update)|(Resource)?ScatterNd(Add|Sub|"
    "Min|Max|Update)|ResourceStridedSliceAssign|StridedSliceAssign|.*Enqueue|.*Insert|LookupTableImport|Write.*Summary|"
    "(Resource)?AccumulatorApply|(Resource)?CountUpTo"
)
_OWN_VALUES = re.compile(
    r"Random(?!Dataset)|ParameterizedTruncated|TruncatedNormal|Multinomial|Restore|Read(File|er)|.*PyFunc|Placeholder|"
    "IteratorGetNext|.*Dequeue|StatefulRandom|StatefulUniform|StatefulStandard"
)
_FUNCTIONS = {"f", "then_branch", "else_branch", "cond", "body", "branches"}


class Rows:
    """Which rows of a batch this rank computes: int64 scalar tensors of the graph.

    start, take: the slice; take is 1 where the rank borrows a row.  rows: n_r.  total: n.
    """

    def __init__(self, start, take, rows, total):
        self.start, self.take, self.rows, self.total = start, take, rows, total
        self.fetches = tf.identity(rows), tf.identity(total)  # what is fed can't be fetched
        self.counts = rows > 0
        self.share = tf.cast(rows, tf.float32) / tf.cast(tf.maximum(total, 1), tf.float32)


class State:
    """Of one graph. fed: the Rows of a batch that is fed; without a feed, the whole batch, which counts on rank 0.

    splits: bool scalar, whether the elements of iterators are split.  elements: {operation: Element} (`iterators`).
    groups: what is combined between ranks, in the order of creation (`groups`).  combined: the operations whose
    results are the same on all ranks.  sparse: the triples of tensors of sparse placeholders.
    """

    def __init__(self, graph):
        self.graph = graph
        self.elements, self.groups, self.combined, self.sparse = {}, [], {}, []
        self.plans = {}
        self._sources = {}
        with self.ours():
            mine = int(lifecycle.rank() == 0)
            defaults = {"start": 0, "take": 1, "rows": mine, "total": 1}
            self.fed = Rows(*(self.switch(tf.constant(value, tf.int64), name) for name, value in defaults.items()))
            self.splits = self.switch(tf.constant(False), "splits")

    @contextlib.contextmanager
    def ours(self):
        """Where matexrun adds operations: outside of the user's names, control dependencies, loops and branches."""
        with self.graph.as_default(), tf.control_dependencies(None), self.graph.name_scope("matexrun/"):
            yield

    def switch(self, value, name):
        """A tensor that is `value` unless Session.run feeds it."""
        return tf.compat.v1.placeholder_with_default(value, value.shape, name)

    def sources(self, op) -> tuple:
        """The operations from which rows may reach `op`: placeholders, and parts of iterators' elements.

        A placeholder counts where its first dimension is unknown. What was combined depends on no rows any more.
        """
        known = self._sources.get(op)
        if known is None:
            found = {}
            for ancestor in walk([op], stop=self.combined, control=False):
                if ancestor in self.elements or may_have_rows(ancestor):
                    found[ancestor] = True
            known = self._sources[op] = tuple(found)
        return known

    def rows(self, ops) -> Rows:
        """The Rows of the batch that `ops` depend on: of an iterator's element where there is one, else of the feed."""
        for op in ops:
            for source in self.sources(op):
                if source in self.elements:
                    return self.elements[source].rows
        return self.fed


def state(graph=None, create=True) -> State | None:
    """The State of `graph` (default: the one being built)."""
    graph = graph or tf.compat.v1.get_default_graph()
    known = getattr(graph, "_matexrun", None)
    if known is None and create:
        known = graph._matexrun = State(graph)
    return known


def building() -> bool:
    """Whether operations that are created now go into a graph of tf.compat.v1 (and not a function, loop or branch)."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    if graph.building_function or graph.finalized:
        return False
    context = graph._get_control_flow_context()
    while context is not None:
        if context.IsCondContext() or context.IsWhileContext():
            return False
        context = context.outer_context
    return True


def walk(ops, stop=(), control=True) -> list:
    """`ops` and all that they depend on, through data and (`control`) control inputs; nothing above those in `stop`.

    In the order of creation, in which inputs come before what uses them (loops excepted).
    """
    seen, waiting = set(), list(ops)
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        if op not in stop:
            waiting += [tensor.op for tensor in op.inputs]
            if control:
                waiting += op.control_inputs
    return sorted(seen, key=lambda op: op._id)


def reached(ops, sources, stop=()) -> set:
    """Those of `ops` (in order of creation) that get data from `sources` (a set), not past those in `stop`."""
    found = {op for op in ops if op in sources}
    size = -1
    while size != len(found):  # once, and again for the back edges of loops
        size = len(found)
        for op in ops:
            if op not in found and op not in stop and any(tensor.op in found for tensor in op.inputs):
                found.add(op)
    return found


def may_have_rows(op) -> bool:
    """Whether `op` is a placeholder whose first dimension, or number of dimensions, is unknown."""
    if op.type not in ("Placeholder", "PlaceholderWithDefault") or op.name.startswith("matexrun/"):
        return False
    shape = op.outputs[0].shape
    return shape.rank is None or of_rows(shape)


def of_rows(shape) -> bool:
    """Whether a shape has a first dimension that is unknown."""
    return bool(shape.rank) and shape.as_list()[0] is None  # under disable_v2_behavior, shape[0] is never None


def writes(op) -> bool:
    """Whether `op` changes something that outlives the run."""
    return bool(_WRITES.match(op.type)) or any(_WRITES.match(kind) for kind in _inside(op))


def depends_on_rows(op) -> bool:
    """Whether rows of a batch may reach `op`."""
    known = state(op.graph, create=False)
    if known is not None:
        return bool(known.sources(op))
    return any(may_have_rows(ancestor) for ancestor in walk([op], control=False))


def applies(kind: str) -> bool:
    """Whether an operation of this type is the update of an optimizer."""
    return bool(re.match("(Resource)?(Sparse)?Apply[A-Z]", kind))


def has_own_values(op) -> bool:
    """Whether `op` may give different values in different processes."""
    return bool(_OWN_VALUES.match(op.type)) or any(_OWN_VALUES.match(kind) for kind in _inside(op))


def _inside(op) -> set[str]:
    """The types of the operations in the functions that `op` calls."""
    if not op.op_def.is_stateful or op.type.endswith("Dataset") or "Iterator" in op.type:
        return set()
    known = getattr(op.graph, "_matexrun_functions", {})
    kinds, seen, waiting = set(), set(), _called(op.node_def.attr)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in known:
            library = op.graph.as_graph_def().library
            known = op.graph._matexrun_functions = {f.signature.name: f.node_def for f in library.function}
        for node in known.get(name, ()):
            kinds.add(node.op)
            waiting += _called(node.attr)
    return kinds


def _called(attributes) -> list[str]:
    names = []
    for key in _FUNCTIONS & set(attributes):
        value = attributes[key]
        names += [value.func.name] if value.func.name else [function.name for function in value.list.func]
    return names


def written(op):
    """The operation of the variable that `op` changes, or None where it is no variable."""
    if not op.inputs:
        return None
    source = op.inputs[0].op
    while source.type in ("Identity", "RefIdentity", "Enter", "RefEnter", "Switch", "RefSwitch") and source.inputs:
        source = source.inputs[0].op
    return source if source.type in ("VarHandleOp", "VariableV2", "Variable") else None
