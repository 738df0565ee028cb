"""What depends on rows and is written into a variable, or into a summary, is combined first.

So moving averages, counters and streaming metrics (tf.compat.v1.metrics) hold the values of the whole data on every
rank, and also what a run fetches of them right after.
"""

import functools

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject.v1 import graphs, groups

_WRITES = {
    "gen_resource_variable_ops": {
        "assign_variable_op": "value",
        "assign_add_variable_op": "value",
        "assign_sub_variable_op": "value",
    },
    "gen_state_ops": {"assign": "value", "assign_add": "value", "assign_sub": "value"},
}


def patch() -> None:
    """Patch the functions of TensorFlow that create the operations Assign*, ScalarSummary and HistogramSummary.

    All variables and summaries go through these (TF 2.18 to 2.21).
    """
    from tensorflow.python.ops import gen_logging_ops, gen_resource_variable_ops, gen_state_ops

    for module in (gen_resource_variable_ops, gen_state_ops):
        for name, argument in _WRITES[module.__name__.rpartition(".")[2]].items():
            _wrap(module, name, argument, _written)
    _wrap(gen_logging_ops, "scalar_summary", "values", _summary)
    _wrap(gen_logging_ops, "histogram_summary", "values", _summary_of_rows)


def _wrap(module, name: str, argument: str, change) -> None:
    import inspect

    original = getattr(module, name, None)
    parameters = list(inspect.signature(original).parameters) if original is not None else []
    if argument not in parameters:
        raise PatchError(f"{module.__name__}.{name} with a parameter {argument!r} was expected, found {parameters}")
    place = parameters.index(argument)

    @functools.wraps(original)
    def create(*args, **kwargs):
        if graphs.building():
            if argument in kwargs:
                kwargs[argument] = change(kwargs[argument], args[0] if args else kwargs[parameters[0]])
            elif len(args) > place:
                args = (*args[:place], change(args[place], args[0]), *args[place + 1 :])
        return original(*args, **kwargs)

    setattr(module, name, create)


def _written(value, target):
    name = getattr(target, "name", str(target)).partition(":")[0]
    return _combined(value, "writes", f"what is written into {name}")


def _summary(values, tags):
    return _combined(values, "summaries", f"the summary of {getattr(values, 'name', values)}")


def _summary_of_rows(values, tag):
    """A histogram of what rows give is one of all ranks' rows; of other values, what the whole batch gives."""
    if not isinstance(values, tf.Tensor) or not graphs.of_rows(values.shape):
        return _combined(values, "summaries", f"the histogram of {getattr(values, 'name', values)}")
    return groups.gather(values, f"the histogram of {values.name}") if graphs.depends_on_rows(values.op) else values


def _combined(value, kind: str, what: str):
    if (
        not isinstance(value, tf.Tensor)
        or not graphs.depends_on_rows(value.op)
        or not groups.combinable(value, value.shape)
    ):
        return value
    return groups.combine([value], [value.shape], kind, what)[0]
