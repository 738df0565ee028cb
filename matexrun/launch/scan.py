"""Read a script without running it: what in it contradicts being distributed by matexrun?

Only what is certain to run is reported, because a script that works alone must not be refused for a branch that it
never takes: nothing inside an `if`, an `except`, a `try` that handles its failure, or a function that nothing certain
mentions. The ranks check the rest when it happens.
"""

import ast
import dataclasses
import warnings
from collections.abc import Iterator

_STRATEGY_ADVICE = "matexrun distributes the training itself: delete the strategy and its `with ...scope():`"
_HOROVOD_ADVICE = "matexrun distributes the training itself: delete the import of Horovod and what uses it"


@dataclasses.dataclass(frozen=True)
class Finding:
    """line: where it stands (1 is the first).  what: the code in short.  advice: what to do about it."""

    line: int
    what: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Scan:
    """findings: distribution of its own, by line.  keras_backend: the one that the script itself sets, else None."""

    findings: tuple[Finding, ...] = ()
    keras_backend: str | None = None


def scan(source: str | bytes, filename: str) -> Scan:
    """What a script's source does for certain. Raises SyntaxError or ValueError where it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ranks will show what Python has to say about escapes and the like
        tree = ast.parse(source, filename)
    nodes = list(_certain(tree))
    names = _imported_names(tree)
    findings = {finding.line: finding for node in nodes for finding in _findings(node, names)}
    backends = [backend for node in nodes if (backend := _keras_backend(node, names)) is not None]
    return Scan(tuple(findings[line] for line in sorted(findings)), backends[-1] if backends else None)


def _certain(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run whenever the script does, as far as its text tells."""
    definitions = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    pending: list[ast.AST] = list(reversed(tree.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name in definitions:
            pending += node.decorator_list  # its body waits until something mentions its name
            continue
        yield node
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in definitions:
            pending += reversed(definitions.pop(node.id).body)
        pending += reversed(list(_certain_children(node)))


def _certain_children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and _is_main_guard(node.test):
        yield from node.body
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test
    elif getattr(node, "handlers", None):  # try … except, try … except*
        yield from node.finalbody
    elif isinstance(node, ast.BoolOp):
        yield node.values[0]
    elif not isinstance(node, ast.ExceptHandler | ast.Match | ast.Lambda):
        yield from ast.iter_child_nodes(node)


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """What names mean: {"tf": "tensorflow", "MirroredStrategy": "tensorflow.distribute.MirroredStrategy", …}."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of an expression like `tf.distribute.MirroredStrategy`; empty for any other."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def _findings(node: ast.AST, names: dict[str, str]) -> Iterator[Finding]:
    if isinstance(node, ast.Call):
        parts = _dotted(node.func, names).split(".")
        if parts[0] == "tensorflow" and "distribute" in parts and parts[-1].endswith(("Strategy", "StrategyV1")):
            yield Finding(node.lineno, f"{ast.unparse(node.func)}(...)", _STRATEGY_ADVICE)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        if any(module.partition(".")[0] == "horovod" for module in modules) and not getattr(node, "level", 0):
            yield Finding(node.lineno, ast.unparse(node), _HOROVOD_ADVICE)


def _keras_backend(node: ast.AST, names: dict[str, str]) -> str | None:
    """The backend in `os.environ["KERAS_BACKEND"] = "…"` or `os.environ.setdefault("KERAS_BACKEND", "…")`."""
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
        owner, key, value = target.value, target.slice, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
        if len(node.args) != 2:
            return None
        owner, (key, value) = node.func.value, node.args
    else:
        return None
    constants = isinstance(key, ast.Constant) and key.value == "KERAS_BACKEND" and isinstance(value, ast.Constant)
    return str(value.value) if constants and _dotted(owner, names) == "os.environ" else None
