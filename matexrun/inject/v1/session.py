"""Session.run: runs that train are split between the ranks; all others compute the same on every rank, as written."""

import functools
import itertools
import threading

import numpy as np

from matexrun.errors import ContractError, UsageError
from matexrun.inject import lifecycle, patching, per_rank
from matexrun.inject.tensorflow import warn
from matexrun.inject.v1 import feeds as feeding
from matexrun.inject.v1 import graphs, plans, probe, results, variables

_local = threading.local()


def patch() -> None:
    """Patch BaseSession._do_run, to which every Session.run comes with its tensors flattened (TF 2.18 to 2.21), and the
    public methods that go round it: make_callable and partial_run_setup."""
    from tensorflow.python.client.session import BaseSession

    @patching.method(BaseSession, "__init__", ("target", "graph", "config"))
    def init(original, self, target="", graph=None, config=None):
        if target:
            raise UsageError(
                f"the script connects to the TensorFlow server {target!r}, and matexrun already makes it distributed: "
                "delete the server and the cluster, and use tf.compat.v1.Session()"
            )
        original(self, target, graph, config)

    @patching.method(
        BaseSession, "_do_run", ("handle", "target_list", "fetch_list", "feed_dict", "options", "run_metadata")
    )
    def do_run(original, self, handle, targets, fetches, feeds, options, metadata):
        state = graphs.state(self.graph, create=False)
        if state is None or handle is not None:
            return original(self, handle, targets, fetches, feeds, options, metadata)

        def run(fetches, feeds):
            return original(self, None, targets, fetches, feeds, options, metadata)

        return _run(self, plans.plan(state, fetches, targets, feeds), feeds, run)

    @patching.method(BaseSession, "make_callable", ("fetches", "feed_list", "accept_options"))
    def make_callable(original, self, fetches, feed_list=None, accept_options=False):
        if feed_list:
            return original(self, fetches, feed_list, accept_options)
        return functools.partial(self.run, fetches)

    @patching.method(BaseSession, "partial_run_setup", ("fetches", "feeds"))
    def partial_run_setup(original, self, fetches, feeds=None):
        state = graphs.state(self.graph, create=False)
        if state is not None and state.groups:
            raise ContractError(
                "Session.partial_run cannot be distributed: compute the parts by separate calls of Session.run"
            )
        return original(self, fetches, feeds)


def _run(session, plan, feeds, run):
    if not plan.groups:
        variables.unsettle(session, plan.unsettles)
        return run(plan.fetches, feeds)
    if threading.current_thread() is not threading.main_thread():
        raise ContractError(
            "a thread of the script's (a summary thread of tf.compat.v1.train.Supervisor, say) runs "
            f"{plan.groups[0].what}, which all ranks must compute together and in the same order: run it in the main "
            "thread (Supervisor: summary_op=None)"
        )
    if getattr(_local, "plain", False) or not plan.trains:
        variables.unsettle(session, plan.unsettles)
        return run(plan.fetches, {**feeds, **plan.feeds()})
    per_rank.refuse("Session.run")
    return _train(session, plan, feeds, run)


def plainly(session, fetches, feeds: dict):
    """session.run of `fetches` with {tensor.ref(): value}, without splitting anything."""
    before, _local.plain = getattr(_local, "plain", False), True
    try:
        return session.run(fetches, {ref.deref().name: value for ref, value in feeds.items()})
    finally:
        _local.plain = before


def _train(session, plan, feeds, run):
    state = plan.state
    variables.synchronise(session, plan, plainly)
    batch = feeding.Batch(state, feeds)
    sources = frozenset(batch.ops | set(plan.elements))
    reason = _not_split(plan, batch, sources)
    if reason is None:
        tensors, sums = plan.combined(sources)
        sliced = {**feeds}
        if batch.total:
            rows = feeding.mine(batch.total)
            sliced = {**batch.sliced(feeds, rows), **rows.feeds(state)}
        sliced[state.splits.ref()] = np.bool_(True)
        if probe.due(plan):
            elements = _pull(session, plan, feeds)
            probe.check(session, plan, tensors, {**feeds, **elements}, {**sliced, **elements}, plainly)
            feeds, sliced = {**feeds, **elements}, {**sliced, **elements}
            reason = _not_split(plan, batch, sources)
    plan.runs += 1
    if reason is not None:
        warn(
            f"a training run is not split: {reason}. All ranks do the same work there; the result is right, but no "
            "sooner"
        )
        values = run(plan.fetches, {**feeds, **plan.feeds()})
        return lifecycle.world().broadcast_object(values) if plan.dequeues else values
    return _combined(plan, tensors, sums, run, {**sliced, **plan.feeds()})


def _not_split(plan, batch, sources) -> str | None:
    """Why the rows of a run cannot be given to different ranks, or None."""
    if plan.whole:
        return plan.whole
    if not batch.total and not plan.elements:
        return "its data comes out of a queue" if plan.dequeues else batch.reason
    depending = plan.depending(sources)
    for op in plan.writes:
        if op in depending:
            return f"{op.name} ({op.type}) keeps something that depends on single rows"
    return None


def _pull(session, plan, feeds) -> dict:
    """The next elements of the iterators that a plan uses, to be fed: what is tried must also be trained."""
    tensors = [tensor for element in dict.fromkeys(plan.elements.values()) for tensor in element.raw]
    return dict(zip([tensor.ref() for tensor in tensors], plainly(session, tensors, feeds), strict=True))


def _combined(plan, tensors, sums, run, feeds):
    """Run, and give all ranks the values of the whole batch."""
    rows = [plan.state.rows([tensor.op]) for tensor in tensors]
    others = [term for found in sums.values() for term, _ in found]
    values = run([*plan.fetches, *tensors, *others, *(tensor for r in rows for tensor in r.fetches)], feeds)
    values, (mine, rest, shares) = values[: len(plan.fetches)], _cut(values, *map(len, (plan.fetches, tensors, others)))
    if not sums:
        return values
    known = {term.name: value for term, value in zip(others, rest, strict=True)}
    parts = [results.Part(value, *shares[2 * k : 2 * k + 2]) for k, value in enumerate(mine)]
    for tensor, everyone in zip(tensors, results.gather(parts), strict=True):
        rules = plan.rules.get(tensor.name) or [results.default_rule(tensor)]
        known[tensor.name] = results.combine(rules[0], everyone)
    for i, found in sums.items():
        if len(found) == 1 and found[0][1] == 1.0:
            values[i] = known[found[0][0].name]
        else:
            total = sum(np.float64(known[term.name]) * factor for term, factor in found)
            values[i] = total.astype(plan.fetches[i].dtype.as_numpy_dtype)
    return values


def _cut(values, *sizes):
    """`values` in pieces, after the first of these sizes."""
    ends = list(itertools.accumulate(sizes))
    return [*(values[start:end] for start, end in itertools.pairwise(ends)), values[ends[-1] :]]
