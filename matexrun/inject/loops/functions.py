"""The boundary of a training function: a tf.function that updates variables gets its slice of each batch.

Patches Function.__call__, for calls from Python of functions that the script has written. The first call shows whether
a function trains, and is a trial (`trial`): the batch is computed in slices, the variables are put back, and it is
computed whole on every rank, which is what remains. From then on each rank computes its slice, and what the function
returns is put together (`parts`). A function that does not train computes everything on every rank.
"""

import threading
import weakref

import tensorflow as tf

from matexrun.collectives import ops
from matexrun.errors import InexactError
from matexrun.inject import divergence, lifecycle, patching, per_rank, replicas, slices, step
from matexrun.inject.loops import drawn, trial
from matexrun.inject.loops.batch import Arguments
from matexrun.inject.loops.counts import counts
from matexrun.inject.tensorflow import warn

# Python code of these packages calls tf.functions of its own, whose batches are split elsewhere or not at all.
_NOT_THE_SCRIPTS = ("keras", "tf_keras", "tensorflow", "matexrun")

_functions: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()  # Function -> {key of arguments: Boundary}


def patch() -> None:
    """Patch Function.__call__ of TensorFlow's polymorphic_function (TF 2.18 to 2.21)."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    @patching.method(Function, "__call__", ())
    def call(original, self, *args, **kwargs):
        if not _is_boundary(self):
            return original(self, *args, **kwargs)
        arguments = Arguments(args, kwargs)
        boundaries = _functions.setdefault(self, {})
        if arguments.key not in boundaries:
            boundaries[arguments.key] = Boundary(self, original)
        return boundaries[arguments.key](arguments)


def _is_boundary(function) -> bool:
    if step.current() is not None or not tf.executing_eagerly():
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # a pipeline of tf.data's
    module = getattr(function.python_function, "__module__", None) or ""
    return module.partition(".")[0] not in _NOT_THE_SCRIPTS


class Boundary:
    """One function with one kind of arguments. Instances are called in the same order on every rank."""

    def __init__(self, function, call):
        self._function = weakref.proxy(function)
        self._call = call
        self._sliced = None  # the function that takes slices, once that has been tried
        self._trains = None
        self._plan = None
        self.as_sum = None

    @property
    def name(self) -> str:
        """The user's name of the function."""
        return self._function.python_function.__name__

    def __call__(self, arguments: Arguments):
        if self._trains is None:
            self._first(arguments)
            if self._trains:
                per_rank.refuse(f"what the function {self.name} trains on")
        result = self._result(arguments)
        if self._trains:
            self._watch.updated()
        return result

    def _result(self, arguments: Arguments):
        if self._trains and self._drawn:
            return drawn.run(self, lambda: self.whole(arguments))
        if not self._trains or arguments.rows is None:
            return self.whole(arguments)
        if self._plan is None or self._plan.undecided:
            if arguments.rows < 2:
                return self.whole(arguments)  # nothing to try
            self._plan, result = trial.run(self, arguments, self._plan)
            return result
        return self._plan.combine(lambda: self.in_slices(arguments))

    def _first(self, arguments: Arguments) -> None:
        """Trace, and see whether a gradient is combined on the way."""
        with tf.init_scope():
            self.as_sum = tf.Variable(0.0, trainable=False, name="matexrun_as_sum")
        counts().whole(arguments.rows or 1)
        args, kwargs = arguments.whole
        with step.entered(self._step()) as current:
            concrete = self._function.get_concrete_function(*args, **kwargs)
        self._trains = current.combined
        self._drawn = current.drawn
        self.settled = current.settled
        self.variables = _variables(concrete)
        self.graph = concrete.graph
        if self._trains and current.taken and arguments.rows is None and not self._drawn:
            warn(
                f"{self.name} trains, but none of its arguments has rows that could be split, so all ranks do the same "
                "work; the result is right, but no sooner: give it the batch as an argument"
            )
        if self._trains:
            self._watch = divergence.Watch(self._updated).check_at_end()
            replicas.make_equal(self.variables)

    def _updated(self) -> list:
        return [variable for variable in self.variables if id(variable.handle) in self.settled]

    def plan(self, arguments: Arguments):
        """The plan (`parts.Plan`) that a trial with these arguments gives, or None for a function that does not train.
        Collective; variables are left as they were."""
        self._first(arguments)
        if not self._trains:
            return None
        before = [variable.read_value() for variable in self.variables]
        plan, _ = trial.run(self, arguments, None)
        for variable, value in zip(self.variables, before, strict=True):
            variable.assign(value)
        return plan

    def whole(self, arguments: Arguments):
        """The function's result for the whole batch, computed by every rank."""
        counts().whole(arguments.rows or 1)
        args, kwargs = arguments.whole
        try:
            with step.entered(self._step()):
                return self._call(self._function, *args, **kwargs)
        finally:
            if self._drawn:
                counts().forget()

    def in_slices(self, arguments: Arguments):
        """The function's result for this rank's rows; of a borrowed row where it has none."""
        start, take, rows = slices.mine(arguments.rows)
        counts().set(rows, arguments.rows)
        args, kwargs = arguments.slice(start, take)
        with step.entered(self._step()):
            return self._call(self._sliced, *args, **kwargs)

    def prepare(self, arguments: Arguments) -> None:
        """Trace the function for slices. Collective. Raises InexactError where that fails on any rank."""
        self._sliced = _for_slices(self._function)
        start, take, rows = slices.mine(arguments.rows)
        counts().set(rows, arguments.rows)
        args, kwargs = arguments.slice(start, take)
        failure = None
        try:
            with step.entered(self._step()):
                self._sliced.get_concrete_function(*args, **kwargs)
        except InexactError:
            raise
        except Exception as error:  # whatever TensorFlow or the script's own code makes of an unexpected shape
            failure = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        failures = [found for found in lifecycle.world().allgather_object(failure) if found]
        if failures:
            raise InexactError(
                f"{self.name} works on a batch of {arguments.rows} rows, but not on part of it ({failures[0]}): does "
                "it use a fixed batch size? Take the number of rows from the data: tf.shape(x)[0]"
            )

    def writes(self, variable) -> bool:
        """Whether the function itself assigns to the variable (not only functions that it calls)."""
        inner = next((inner for outer, inner in self.graph.captures if outer is variable.handle), None)
        return inner is not None and any(consumer.type.startswith("Assign") for consumer in inner.consumers())

    @property
    def sums_up(self) -> bool:
        """Whether gradients of slices add up unweighted, because the loss is a sum over rows."""
        return bool(self.as_sum > 0)

    def sums(self, yes: bool) -> None:
        """Say whether they do, from now on."""
        self.as_sum.assign(float(yes))

    def _step(self) -> step.Step:
        return step.Step(
            counts().rows,
            counts().total,
            True,
            ops.Order(),
            jit=bool(self._function._jit_compile),
            eager=tf.config.functions_run_eagerly(),
            by_tape=lifecycle.job().reduce_at != "optimizer",
            by_hand=True,
            as_sum=self.as_sum,
        )


def _for_slices(function):
    """The function itself, or one without a fixed number of rows in its input_signature."""
    signature = function.input_signature
    if signature is None or all(spec.shape.rank in (None, 0) or spec.shape[0] is None for spec in _specs(signature)):
        return function

    def any_rows(spec):
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, spec.name) if spec.shape.rank else spec

    return tf.function(
        function.python_function,
        input_signature=tf.nest.map_structure(any_rows, signature),
        autograph=function._autograph,
        jit_compile=function._jit_compile,
        reduce_retracing=function._reduce_retracing,
    )


def _specs(signature) -> list:
    return [spec for spec in tf.nest.flatten(signature) if isinstance(spec, tf.TensorSpec)]


def _variables(concrete) -> list:
    """The script's variables that the function reads or changes, in the order of their use."""
    # graph.variables has no order.
    known = {id(v.handle): v for v in concrete.graph.variables if not v.name.startswith("matexrun_")}
    return [known[id(outer)] for outer, _ in concrete.graph.captures if id(outer) in known]
