"""Variables of a Session: read, written, and made equal on all ranks before they are trained."""

import functools
import weakref

import numpy as np

from matexrun.errors import ContractError
from matexrun.inject import lifecycle
from matexrun.inject.divergence import checksums

_settled = weakref.WeakKeyDictionary()  # {session: operations of the variables that are the same on all ranks}

_COLLECTIONS = ("variables", "local_variables", "trainable_variables", "metric_variables", "model_variables")


def of(graph, ops) -> list:
    """The variables of `graph` whose operations are among `ops`. Those in no collection of the graph are not found."""
    known = {v.op: v for name in _COLLECTIONS for v in graph.get_collection(name) if hasattr(v, "initializer")}
    return [known[op] for op in ops if op in known]


def load(run, variables: list, values: list) -> None:
    """Give `variables` their `values` by `run(operations, {ref of a tensor: value})`.

    Goes through their initialisers: a finalized graph takes no new operations.
    """
    left = [(v.initializer, v.initializer.inputs[1], value) for v, value in zip(variables, values, strict=True)]
    while left:  # more than once where variables have the same initial value
        now, later, fed = [], [], set()
        for item in left:
            (later if item[1].name in fed else now).append(item)
            fed.add(item[1].name)
        run([op for op, _, _ in now], {tensor.ref(): value for _, tensor, value in now})
        left = later


def unsettle(session, ops) -> None:
    """Note that the variables of these operations may differ between ranks."""
    if session in _settled:
        _settled[session] -= ops


def synchronise(session, plan, run) -> None:
    """Give every rank rank 0's values of the variables that a plan uses, where they may differ. Collective.

    run(session, fetches, feeds): runs without splitting.
    Raises ContractError where the variables themselves differ.
    """
    settled = _settled.setdefault(session, set())
    mine = of(session.graph, [op for op in plan.variables if op not in settled])
    settled.update(plan.variables)
    if not mine:
        return
    world = lifecycle.world()
    values = [np.array(value) for value in run(session, mine, {})]  # copies, to be overwritten
    described = [(v.op.name, value.shape, value.dtype.str) for v, value in zip(mine, values, strict=True)]
    everyone = world.allgather_object((described, checksums(values)))
    for rank, (theirs, _) in enumerate(everyone):
        if theirs != everyone[0][0]:
            odd = next(iter(set(theirs) ^ set(everyone[0][0])), "the same in another order")
            raise ContractError(
                f"the variables on rank {rank} are not those on rank 0: {odd} is only on one of them; "
                "build the same graph on every rank"
            )
    differing = [i for i, sums in enumerate(zip(*(sums for _, sums in everyone), strict=True)) if len(set(sums)) > 1]
    if differing:
        world.broadcast_arrays([values[i] for i in differing])
        load(functools.partial(run, session), [mine[i] for i in differing], [values[i] for i in differing])
        settled.update(plan.variables)
