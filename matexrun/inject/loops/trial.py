"""The first batch of a training function, in slices and whole: the slices must make up the whole.

A loss that a user has written can be a mean over rows, a sum, or neither (Dice, contrastive losses); so can what the
function returns, and what it adds to variables of its own. Both computations start from the same variables, and are
compared: gradients after they were combined, results, and variables. The function's effects outside of variables
(printing, Python functions) happen twice.
"""

import numpy as np
import tensorflow as tf

from matexrun.collectives import calls
from matexrun.collectives.ops import INDICES
from matexrun.errors import InexactError
from matexrun.inject import lifecycle, slices
from matexrun.inject.loops import parts
from matexrun.inject.loops.counts import counts
from matexrun.inject.tensorflow import warn

TOLERANCE = 1e-3  # relative; rounding of sums in another order stays below, other combinations are far above
HALF_TOLERANCE = 3e-2  # where float16 or bfloat16 takes part
_TRIALS = 8  # batches to try before a value that was always zero is taken for a mean


def run(boundary, arguments, plan: parts.Plan | None):
    """(plan, result of the whole batch). Collective. Raises InexactError where slices don't make up the whole (or
    warns, with --inexact warn); the variables then are as they were."""
    if plan is None:
        boundary.prepare(arguments)
    traits = Traits(boundary.graph)
    if (shape := traits.fixed_draw(arguments.rows)) is not None:
        warn(
            f"{boundary.name} draws random numbers of the shape {shape} for a batch of {arguments.rows} rows, so that "
            "every rank computes all of them; tf.shape(x)[0] in place of the number would be this rank's rows"
        )
    before = _values(boundary.variables)
    sliced = _outcome(boundary, lambda: boundary.in_slices(arguments))
    share = counts().share
    _assign(boundary.variables, before)
    whole = _outcome(boundary, lambda: boundary.whole(arguments))
    judge = _Judge(boundary, arguments.rows, share, before, traits)
    if judge.gradients_differ(sliced, whole) and not judge.is_zero(whole):
        _assign(boundary.variables, before)
        boundary.sums(True)
        again = _outcome(boundary, lambda: boundary.in_slices(arguments))
        if judge.error(again, whole) < judge.error(sliced, whole):
            sliced = again
        else:
            boundary.sums(False)
        _assign(boundary.variables, whole.variables)
        judge.check_gradients(sliced, whole)
    plan = judge.plan(sliced, whole, plan)
    if judge.problems:
        _assign(boundary.variables, before)
        raise InexactError(
            f"{boundary.name}: {judge.problems[0]}; slices of a batch cannot make it up "
            "(--inexact warn trains all the same)"
        )
    return plan, whole.result


class Traits:
    """What a traced function does that a comparison must know.  random: it draws random numbers, so that slices differ
    from the whole.  half: it computes in float16 or bfloat16."""

    def __init__(self, graph):
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
        kinds = {node.op for node in nodes}
        half = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
        self.random = any("Random" in kind or "Multinomial" in kind for kind in kinds)
        self._graph = graph
        self.half = any(value.type in half for node in nodes for value in node.attr.values())

    def fixed_draw(self, rows: int) -> list | None:
        """The shape of random numbers that are drawn for a batch of `rows` rows, whatever the batch; None: of none."""
        for operation in self._graph.get_operations():
            if "Random" in operation.type and operation.inputs:
                shape = tf.get_static_value(operation.inputs[0])
                if shape is not None and np.ndim(shape) == 1 and len(shape) > 1 and shape[0] == rows:
                    return list(map(int, shape))
        return None


class _Outcome:
    """result: what the function returned.  gradients: results of the reductions, in order.  variables: values after."""

    def __init__(self, result, gradients, variables):
        self.result, self.gradients, self.variables = result, gradients, variables


def _outcome(boundary, call) -> _Outcome:
    with calls.recorded() as gradients:
        result = call()
    return _Outcome(result, _dense(gradients), _values(boundary.variables))


def _values(variables: list) -> list:
    return [variable.read_value() for variable in variables]


def _assign(variables: list, values: list) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _dense(recorded: list) -> list:
    """[(kind, arrays)] -> float64 arrays. Gradients that consist of slices are summed by row number, because whole and
    slices list the rows in different ways."""
    result = []
    for i, (_, arrays) in enumerate(recorded):
        following = recorded[i + 1] if i + 1 < len(recorded) else ("", None)
        if following[0] == INDICES:
            (indices,) = following[1]
            numbers, places = np.unique(indices, return_inverse=True)
            sums = np.zeros((len(numbers), *arrays[0].shape[1:]))
            np.add.at(sums, places, arrays[0].astype(np.float64))
            filled = np.any(sums.reshape(len(sums), -1), axis=1)  # a borrowed row adds zeros
            result += [sums[filled]]
        elif recorded[i][0] != INDICES:
            result += [array.astype(np.float64) for array in arrays]
    return result


class _Judge:
    """Compares outcomes; all ranks come to the same verdicts, because they compare the same values."""

    def __init__(self, boundary, rows: int, share: float, before: list, traits: Traits):
        self._boundary, self._rows, self._before = boundary, rows, before
        self._shares = lifecycle.world().allgather_object(share)
        self._tolerance = HALF_TOLERANCE if traits.half else TOLERANCE
        self._random = traits.random
        self.problems: list[str] = []

    @property
    def _noise(self) -> str:
        """Why slices may differ from the whole although they are combined rightly; "" where they may not."""
        if self._random:
            return "random numbers are drawn in it"
        return "it normalises batches by their own statistics" if self._normalises else ""

    _normalises = False

    def error(self, sliced, whole) -> float:
        """The largest relative difference of a gradient, small ones judged by the size of all."""
        if [a.shape for a in sliced.gradients] != [a.shape for a in whole.gradients]:
            return np.inf
        sizes = [np.linalg.norm(array) for array in whole.gradients]
        floor = 1e-3 * float(np.linalg.norm(sizes)) or 1.0
        pairs = zip(sliced.gradients, whole.gradients, sizes, strict=True)
        with np.errstate(invalid="ignore"):  # of infinities, while a loss scale is sought
            return max((float(np.linalg.norm(a - b)) / (size + floor) for a, b, size in pairs), default=0.0)

    def gradients_differ(self, sliced, whole) -> bool:
        """Whether the combined gradient is not the whole batch's."""
        self._find_normalisation(whole)
        return not self.error(sliced, whole) <= self._tolerance

    @staticmethod
    def is_zero(whole) -> bool:
        """Whether the gradients say nothing: all zero, or not finite, as while a loss scale is sought."""
        return not any(np.any(a) for a in whole.gradients) or not all(np.all(np.isfinite(a)) for a in whole.gradients)

    def check_gradients(self, sliced, whole) -> None:
        """Note it as a problem where neither means nor sums give the whole batch's gradient."""
        error = self.error(sliced, whole)
        if error <= self._tolerance:
            return
        if self._noise:
            kind = "sum" if self._boundary.sums_up else "mean"
            warn(
                f"{self._boundary.name}: its loss is taken for a {kind} over rows; that could not be tried exactly, "
                f"because {self._noise}"
            )
        else:
            self._problem(
                f"the gradient of its loss on {self._rows} rows is neither the mean nor the sum of those on parts of "
                f"them (they differ by {error:.0%})"
            )

    def plan(self, sliced, whole, earlier) -> parts.Plan:
        """How results and changes of slices are put together from now on."""
        own, all_ = tf.nest.flatten(sliced.result), tf.nest.flatten(whole.result)
        outputs = [self._kind(f"result {i}", a, b) for i, (a, b) in enumerate(zip(own, all_, strict=True))]
        changes = []
        for i, variable in enumerate(self._boundary.variables):
            if id(variable.handle) in self._boundary.settled:
                continue
            kind = self._kind_of_change(variable, self._before[i], sliced.variables[i], whole.variables[i])
            if kind != "same":
                changes.append((variable, kind))
        trials = 1
        if earlier is not None:
            trials += earlier.trials
            outputs = [old or new for old, new in zip(earlier.outputs, outputs, strict=True)]
            old = {id(v): kind for v, kind in earlier.changes}
            changes = [(v, old.get(id(v)) or kind) for v, kind in changes]
        undecided = None in outputs or None in (kind for _, kind in changes) or self.is_zero(whole)
        if undecided and trials >= _TRIALS:
            warn(f"{self._boundary.name}: a result or gradient that is always zero is taken for a mean over rows")
            undecided = False
        if not undecided:
            outputs = [kind or "mean" for kind in outputs]
            changes = [(v, kind or "mean") for v, kind in changes]
        return parts.Plan(outputs, changes, undecided, trials)

    def _kind(self, what: str, own, all_) -> str | None:
        """The kind of a result (see `parts`); None where this batch doesn't tell."""
        if not parts.is_number(all_):
            return "same"
        if own.shape != all_.shape:
            return self._kind_of_rows(what, own, all_)
        return self._kind_of_number(what, parts.as_array(own), parts.as_array(all_), all_.dtype.is_floating)

    def _kind_of_rows(self, what, own, all_) -> str:
        gathered = parts.gathered(own, slices.mine(self._rows)[2])
        if gathered.shape != all_.shape:
            self._problem(f"{what} has the shape {all_.shape} for {self._rows} rows, and slices give {gathered.shape}")
        elif not self._noise and not self._close(parts.as_array(gathered), parts.as_array(all_)):
            self._problem(f"{what} gives a row another value when it is computed with other rows")
        return "rows"

    def _kind_of_number(self, what, own, all_, floating: bool) -> str | None:
        theirs = lifecycle.world().allgather_object(own)
        mean = sum(value * share for value, share in zip(theirs, self._shares, strict=True) if share)
        total = sum(value for value, share in zip(theirs, self._shares, strict=True) if share)
        equal = all(np.array_equal(value, all_) for value in theirs)
        is_mean, is_sum = self._close(mean, all_), self._close(total, all_)
        if not np.any(all_) and is_mean and is_sum:
            return None
        if not floating:
            if equal:
                return "same"
            if is_sum:
                return "sum"
        elif is_mean:
            return "mean"
        elif is_sum:
            return "sum"
        elif self._noise or not np.all(np.isfinite(all_)):
            return "mean" if np.linalg.norm(mean - all_) <= np.linalg.norm(total - all_) else "sum"
        self._problem(
            f"{what} is {_shown(all_)} for {self._rows} rows, neither the mean ({_shown(mean)}) nor the sum "
            f"({_shown(total)}) of its values for parts of them"
        )
        return "mean" if floating else "same"

    def _kind_of_change(self, variable, before, own, all_) -> str | None:
        """ "same" where the variable holds the same on all ranks; None where this batch didn't change it."""
        if not parts.is_number(all_):
            return "same"
        before, own, all_ = parts.as_array(before), parts.as_array(own), parts.as_array(all_)
        theirs = lifecycle.world().allgather_object(own)
        if all(self._close(value - before, all_ - before) for value in theirs):
            return "same" if np.any(all_ != before) or not self._boundary.writes(variable) else None
        what = f"the change of the variable {variable.name!r}"
        return self._kind_of_number(what, own - before, all_ - before, variable.dtype.is_floating)

    def _find_normalisation(self, whole) -> None:
        """Batch normalisation shows in the moving statistics that it changes."""
        if lifecycle.job().sync_batchnorm:
            return
        for variable, old, new in zip(self._boundary.variables, self._before, whole.variables, strict=True):
            if "moving_var" in variable.name and np.any(old.numpy() != new.numpy()):
                self._normalises = True

    def _close(self, one, other) -> bool:
        return bool(
            np.allclose(one, other, rtol=self._tolerance, atol=self._tolerance * np.max(np.abs(other), initial=0))
        )

    def _problem(self, text: str) -> None:
        if lifecycle.job().inexact == "error":
            self.problems.append(text)
        else:
            warn(f"{self._boundary.name}: {text}")


def _shown(array) -> str:
    return f"{float(array):.6g}" if not array.shape else f"an array of norm {np.linalg.norm(array):.6g}"
