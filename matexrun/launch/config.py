"""The options of a run: their names, types and limits, and the YAML files that set them.

A value comes from the command line, else from the file of --config, else from configs/default.yaml. That file is the
package data `matexrun/configs/default.yaml` where matexrun is installed, and `configs/default.yaml` beside the package
in a checkout or an editable install; no other place is looked at. Reads files; starts nothing.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from pathlib import Path

import yaml

from matexrun.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]


def _option(kind: type, minimum: float | None = None, maximum: float = math.inf, choices: tuple[str, ...] = ()):
    return dataclasses.field(metadata={"kind": kind, "minimum": minimum, "maximum": maximum, "choices": choices})


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for. A field is the option `--field-name` and the YAML key `field-name`; None: not given.

    The meaning of each is told in configs/default.yaml, which also gives its value where nobody else does.
    """

    ranks: int | None = _option(int, minimum=1)
    cpus_per_rank: int | None = _option(int, minimum=1)
    batch: str = _option(str, choices=("global", "per-rank"))
    scale_lr: str = _option(str, choices=("none", "linear", "sqrt"))
    warmup_steps: int = _option(int, minimum=0)
    sync_batchnorm: bool = _option(bool)
    sparse: str = _option(str, choices=("auto", "gather", "dense"))
    check_every: int = _option(int, minimum=0)
    inexact: str = _option(str, choices=("error", "warn"))
    reduce_at: str = _option(str, choices=("auto", "optimizer", "tape"))
    eager_loops: str = _option(str, choices=("whole", "split"))
    collectives: str = _option(str, choices=("auto", "ffi", "numpy"))
    bucket_mb: float = _option(float, minimum=0.001)
    chunk_mb: float = _option(float, minimum=0.001)
    log_dir: str | None = _option(str)
    seed: int | None = _option(int, minimum=0, maximum=2**31 - 1)
    verbose: int = _option(int, minimum=0)


_FIELDS = {field.name.replace("_", "-"): field for field in dataclasses.fields(Options)}
_KIND_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def resolve(given: Mapping[str, object], config_file: str | None = None) -> Options:
    """The options of a run. `given`: those of the command line by field name, None where the user gave none.

    Raises UsageError for a file that cannot be used, an unknown key, or a value outside its type or limits.
    """
    values = read(defaults_file())
    if config_file is not None:
        values |= {key: value for key, value in read(Path(config_file)).items() if value is not None}
    for key, field in _FIELDS.items():
        if given.get(field.name) is not None:
            values[key] = _checked(key, given[field.name], f"--{key}")
    options = Options(**{field.name: values[key] for key, field in _FIELDS.items()})
    _check_together(options)
    return options


def read(file: Path) -> dict[str, object]:
    """The values of a YAML file by key, each checked. Raises UsageError that names the file."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read as a configuration file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: expected a YAML file in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file}{place}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{file}: expected lines of `key: value`, got a {type(values).__name__}")
    for key in values:
        if key not in _FIELDS:
            close = difflib.get_close_matches(str(key).replace("_", "-"), _FIELDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(_FIELDS)}"
            raise UsageError(f"{file}: unknown key {key!r}: {hint}")
    return {key: _checked(key, value, f"{file}: {key}") for key, value in values.items()}


def defaults_file() -> Path:
    """configs/default.yaml as this file's docstring says."""
    installed = _PACKAGE / "configs" / "default.yaml"
    return installed if installed.exists() else _PACKAGE.parent / "configs" / "default.yaml"


def _checked(key: str, value: object, origin: str) -> object:
    """`value` where it is fit for the option `key`, as the option's type. None passes where the option allows it."""
    field = _FIELDS[key]
    kind, minimum, maximum = (field.metadata[name] for name in ("kind", "minimum", "maximum"))
    choices = field.metadata["choices"]
    if value is None and field.type == kind | None:
        return None
    accepted = (int, float) if kind is float else kind
    fits = isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)
    if fits and choices:
        fits = value in choices
    elif fits and minimum is not None:
        fits = minimum <= value <= maximum and math.isfinite(value)
    if not fits:
        raise UsageError(f"{origin}: expected {_expectation(kind, minimum, maximum, choices)}, got {value!r}")
    return kind(value)


def _check_together(options: Options) -> None:
    """Raise UsageError for options that mean nothing beside the others."""
    if options.batch == "global" and (options.scale_lr != "none" or options.warmup_steps):
        raise UsageError(
            "--scale-lr and --warmup-steps need --batch per-rank: without it the batch is as large as the script says, "
            "whatever the number of ranks, and its learning rate is right as it is"
        )
    if options.warmup_steps and options.scale_lr == "none":
        raise UsageError(
            "--warmup-steps leads from a learning rate to the scaled one: expected --scale-lr linear or sqrt"
        )


def _expectation(kind: type, minimum: float | None, maximum: float, choices: tuple[str, ...]) -> str:
    if choices:
        return " or ".join(choices)
    if minimum is None:
        return _KIND_NAMES[kind]
    limits = f"from {minimum} to {maximum}" if math.isfinite(maximum) else f"of at least {minimum}"
    return f"{_KIND_NAMES[kind]} {limits}"
