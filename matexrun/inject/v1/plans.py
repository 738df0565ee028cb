"""What one call of Session.run does: its operations, what it trains and writes, and what depends on a batch's rows.

Found once for each combination of fetches and fed tensors, and kept with the graph.
"""

import functools

from matexrun.inject.v1 import graphs, terms


def plan(state, fetches: list, targets: list, fed) -> "Plan":
    """The Plan of a run of `fetches` (tensors) and `targets` (operations) with the tensors of `fed` (refs) fed."""
    names = frozenset(ref.deref().name for ref in fed)
    key = (tuple(tensor.name for tensor in fetches), tuple(op.name for op in targets), names)
    known = state.plans.get(key)
    if known is None:
        known = state.plans[key] = Plan(state, fetches, targets, [ref.deref().op for ref in fed])
    return known


class Plan:
    """ops: all that run, in the order of creation.  groups: those of `groups.Group` among them.  writes: the operations
    that change something.  trains: whether gradients reach one of these.

    runs: how often it has trained.  whole: why batches are not split, found when it was tried.  rules: {name of a
    tensor: the rules by which ranks' values may make up that of the batch, the likeliest first}.  trials: `probe`'s.
    """

    def __init__(self, state, fetches, targets, fed):
        self.state, self.fetches, self.targets, self.fed = state, fetches, targets, fed
        cuts = {wait.op for group in state.groups for wait in group.waits.values()}
        self.ops = graphs.walk([*(tensor.op for tensor in fetches), *targets], stop=cuts.union(fed))
        groups = {state.combined[op]: True for op in self.ops if op in state.combined}
        self.groups = sorted(groups, key=lambda group: group.number)
        self.writes = [op for op in self.ops if op not in fed and graphs.writes(op)]
        self.runs, self.whole, self.rules, self.trials = 0, None, {}, None
        self._depending = {}

    def feeds(self) -> dict:
        """What every run of this plan must be fed: see Group.feeds."""
        running = {group.number for group in self.groups}
        return {ref: value for group in self.groups for ref, value in group.feeds(running).items()}

    @functools.cached_property
    def trains(self) -> bool:
        """Whether a variable is changed by what gradients were combined to."""
        combined = {op for op in self.ops if op in self.state.combined}
        gradients = {op for op in combined if self.state.combined[op].kind == "gradients"}
        return bool(gradients) and not graphs.reached(self.ops, gradients).isdisjoint(self.writes)

    @functools.cached_property
    def elements(self) -> dict:
        """{operation: Element} of the iterators' elements that it uses."""
        return {op: self.state.elements[op] for op in self.ops if op in self.state.elements}

    @functools.cached_property
    def variables(self) -> list:
        """The operations of the variables that it reads or writes."""
        return [op for op in self.ops if op.type in ("VarHandleOp", "VariableV2", "Variable")]

    @functools.cached_property
    def unsettles(self) -> set:
        """The operations of variables that ranks may leave with different values: initialised at random, restored, fed
        or read from data."""
        own = {op for op in self.ops if op in self.fed or graphs.has_own_values(op)}
        changed = graphs.reached(self.ops, own, stop=self.state.combined)
        return {graphs.written(op) for op in self.writes if op in changed} - {None}

    @functools.cached_property
    def dequeues(self) -> bool:
        """Whether data comes out of a queue, filled by threads: not surely in the same order on all ranks."""
        return any("Dequeue" in op.type for op in self.ops)

    def combined(self, sources: frozenset) -> tuple[list, dict]:
        """The tensors that are combined to fetches, and of which terms each of these fetches is the sum:
        ([tensor], {number of a fetch: [(tensor, factor)]})."""
        depending = self.depending(sources)
        sums = {
            i: terms.of(tensor, lambda op: op in depending and op not in self.fed)
            for i, tensor in enumerate(self.fetches)
            if tensor.op in depending
        }
        return list({t.name: t for found in sums.values() for t, _ in found if t.op in depending}.values()), sums

    def depending(self, sources: frozenset) -> set:
        """The operations whose values depend on the rows that come from the operations `sources`."""
        if sources not in self._depending:
            self._depending[sources] = graphs.reached(self.ops, sources, stop=self.state.combined)
        return self._depending[sources]
