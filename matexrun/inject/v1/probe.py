"""A training run is tried before it is split: do the slices make up the whole batch, and by which rule?

The gradients (before they are combined) and the fetches are computed twice, in Sessions of their own with copies of the
variables, so that nothing of the script's changes: once on the whole batch, once on this rank's slice.  Ranks compare
random projections of the gradients, which are as linear as the sums themselves.

On a batch several rules can give the same. So the first training run is tried, and again after 1, 3, 7, ... others;
while a sum is among them, each of the first 8.
"""

import dataclasses
import functools
import re

import numpy as np
import tensorflow as tf

from matexrun.errors import InexactError
from matexrun.inject import lifecycle
from matexrun.inject.tensorflow import warn
from matexrun.inject.v1 import graphs, groups, results, variables

_FIRST = 8
_PROJECTIONS = 2
_HALF = ("float16", "bfloat16")


def due(plan) -> bool:
    """Whether the run of `plan` that comes next is tried."""
    unsure = any("sum" in rules[1:] for rules in (*plan.rules.values(), *(group.rules for group in plan.groups)))
    return not plan.runs & (plan.runs + 1) or (unsure and plan.runs < _FIRST)


@dataclasses.dataclass
class Share:
    """Rows of a slice: `rows` of `total` count."""

    rows: int
    total: int


def check(session, plan, tensors: list, whole: dict, sliced: dict, run) -> None:
    """Find the rules of the plan's groups, and of `tensors` that depend on rows and are fetched. Collective.

    whole, sliced: feeds of the whole batch and of this
    rank's slice.  run(session, fetches, feeds): runs tensors without splitting anything.
    Sets plan.whole where slices cannot be computed. Raises InexactError where they do not make up the whole, or warns.
    """
    tried = [group for group in plan.groups if group.kind != "gathered"]
    rows = [plan.state.rows([tensor.op for tensor in group.local]) for group in tried]
    rows += [plan.state.rows([tensor.op]) for tensor in tensors]
    fetches = (
        [group.local for group in tried],
        tensors,
        [r.fetches for r in rows],
    )
    outcomes = _measure(session, plan, fetches, (whole, sliced), run)
    if not _able(plan, outcomes):
        return
    (gradients, values, _), (parts, slices, shares) = (outcome for outcome, _ in outcomes)
    shares = [Share(*map(int, share)) for share in shares]
    mine = (
        [_projected(tensors) for tensors in gradients],
        [_projected(tensors) for tensors in parts],
        values,
        [results.Part(value, s.rows, s.total) for value, s in zip(slices, shares[len(tried) :], strict=True)],
        shares[: len(tried)],
    )
    everyone = lifecycle.world().allgather_object(mine)
    problems = []
    for i, group in enumerate(tried):
        ranks = [(theirs[1][i], theirs[4][i]) for theirs in everyone]
        problems += _decide(plan, group, everyone[0][0][i], ranks)
    for i, tensor in enumerate(tensors):
        problems += _choose(plan, tensor, everyone[0][2][i], [theirs[3][i] for theirs in everyone])
    for problem in problems:
        if lifecycle.job().inexact == "error":
            raise InexactError(problem + " (--inexact warn trains all the same)")
        warn(problem)


def _measure(session, plan, fetches, feeds, run) -> list:
    """For each of `feeds`: (values of `fetches`, None), or (None, what went wrong).

    Each in a Session of its own with the values of the variables in `session`. Both run equally often, so that random
    numbers are the same in both.
    """
    flat, graph = tf.nest.flatten(fetches), session.graph
    used = variables.of(graph, _variables(flat))
    values = run(session, used, {})
    tables = graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    if plan.trials is None:
        plan.trials = [tf.compat.v1.Session(graph=graph, config=session._config) for _ in feeds]
        if tables:
            for trial in plan.trials:
                run(trial, tables, {})
    outcomes = []
    for trial, fed in zip(plan.trials, feeds, strict=True):
        try:
            variables.load(functools.partial(run, trial), used, values)
            outcomes.append((tf.nest.pack_sequence_as(fetches, run(trial, flat, fed)), None))
        except tf.errors.OpError as error:
            outcomes.append((None, str(error.message).partition("\n")[0]))
    if plan.runs + 1 >= _FIRST:
        for trial in plan.trials:
            trial.close()
        plan.trials = None
    return outcomes


def _variables(tensors):
    ops = graphs.walk([tensor.op for tensor in tensors])
    return [op for op in ops if op.type in ("VarHandleOp", "VariableV2", "Variable")]


def _able(plan, outcomes) -> bool:
    """Whether all ranks could compute both."""
    failures = [failure for _, failure in outcomes]
    everyone = lifecycle.world().allgather_object(failures)
    on_whole = next((whole for whole, _ in everyone if whole), None)
    on_slice = next((sliced for _, sliced in everyone if sliced), None)
    if on_whole:
        warn(
            f"a training run could not be tried beforehand ({on_whole}): its loss is taken for a mean over the rows of "
            "a batch"
        )
    elif on_slice:
        plan.whole = f"it fails on a part of the batch ({on_slice})"
    return not on_whole and not on_slice


def _projected(tensors) -> list:
    """[(projections, norm)] of arrays."""
    found = []
    for tensor in tensors:
        flat = np.asarray(tensor, np.float64).reshape(-1)
        random = np.random.default_rng(1234)
        sums = [float(flat @ random.standard_normal(flat.size, np.float32)) for _ in range(_PROJECTIONS)]
        found.append((sums, float(np.linalg.norm(flat))))
    return found


def _decide(plan, group, whole, ranks) -> list[str]:
    """Set the rule of a group. Returns what is wrong, in a list of one or none."""
    tolerance = 1e-2 if any(tensor.dtype.name in _HALF for tensor in group.local) else results.TOLERANCE
    size = np.sqrt(sum(norm**2 for _, norm in whole))
    errors = {}
    for rule in groups.RULES:
        worst = 0.0
        for number, (sums, norm) in enumerate(whole):
            for k, expected in enumerate(sums):
                value = sum(_weight(rule, rank, s) * p[number][0][k] for rank, (p, s) in enumerate(ranks))
                worst = max(worst, abs(value - expected) / (norm + 1e-3 * size + 1e-30))
        errors[rule] = worst
    fitting = [rule for rule in group.rules if errors[rule] <= tolerance]
    if fitting:
        group.rules = fitting
        return []
    best = min(group.rules, key=errors.get)
    text = (
        f"{group.what} is neither the mean nor the sum of those of parts of a batch (off by {errors[best]:.2g} of its "
        "size): the loss compares the rows of a batch, or divides by something that is not their number"
    )
    if lenient(plan):
        group.rules = [best]
        warn(f"{text}. Taken as the {best}, because {lenient(plan)}")
        return []
    return [text]


def _weight(rule: str, rank: int, share) -> float:
    if rule == "mean":
        return share.rows / max(share.total, 1)
    return float(share.rows > 0 if rule == "sum" else rank == 0)


def _choose(plan, tensor, whole, parts) -> list[str]:
    """Set the rules of a tensor. Returns what is wrong, in a list of one or none."""
    fitting = [rule for rule in results.rules(tensor, whole, parts) if rule in plan.rules.get(tensor.name, [rule])]
    if fitting:
        plan.rules[tensor.name] = fitting
        return []
    text = (
        f"{tensor.name}, fetched in a training run (or a term of what is), has a value on a batch that does not follow "
        "from its values on parts of the batch; fetch it in a run without the training operation"
    )
    if lenient(plan):
        warn(f"{text}. Its parts' {results.default_rule(tensor)} is returned, because {lenient(plan)}")
        return []
    return [text]


def lenient(plan) -> str:
    """Why a difference between the whole and its parts is to be expected, or ""."""
    for op in plan.ops:
        if re.match("FusedBatchNorm", op.type) and op.get_attr("is_training") or "/moments/" in f"/{op.name}":
            return "batch normalisation sees the statistics of a part"
    for op in plan.ops:
        if re.match("Random|ParameterizedTruncated|TruncatedNormal|Multinomial|Stateful(Random|Uniform)", op.type):
            return "random numbers are drawn in it"
    return ""
