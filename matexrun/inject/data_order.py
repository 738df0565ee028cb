"""The order of tf.data pipelines is the same on all ranks: permission to give elements in any order is taken back.

With `deterministic=False` each rank would see other batches, and slices of them would lose rows and count others twice.
The values do not change, since any order was allowed; only the speed of a pipeline may.
"""

import inspect

import tensorflow as tf

from matexrun.errors import PatchError
from matexrun.inject import patching


def patch() -> None:
    """Patch every transformation of tf.data.Dataset that takes `deterministic`, and with_options (TF 2.18 to 2.21)."""
    names = [
        name
        for name, function in vars(tf.data.Dataset).items()
        if inspect.isfunction(function) and "deterministic" in inspect.signature(function).parameters
    ]
    if "map" not in names or "interleave" not in names:
        raise PatchError(f"tf.data.Dataset takes `deterministic` in {names}, expected map and interleave among them")
    for name in names:
        _in_order(name)

    @patching.method(tf.data.Dataset, "with_options", ("options",))
    def with_options(original, self, options, *args, **kwargs):
        if options.deterministic is False:
            options = tf.data.Options().merge(options)  # a copy: the script may show its own
            options.deterministic = True
        return original(self, options, *args, **kwargs)


def _in_order(name: str) -> None:
    signature = inspect.signature(vars(tf.data.Dataset)[name])

    @patching.method(tf.data.Dataset, name, ())
    def transformation(original, self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        if bound.arguments.get("deterministic") is False:
            bound.arguments["deterministic"] = None
        return original(*bound.args, **bound.kwargs)
