"""How anything of TensorFlow or Keras is replaced: checked first, wrapped once, the original kept on `__wrapped__`."""

import functools
import inspect
import sys

from matexrun.errors import PatchError

KERAS_TRIED = "Keras 3.10 and 3.15"


def check_signature(function, parameters: tuple[str, ...]) -> None:
    """Raise PatchError unless the function's first parameters are called `parameters`."""
    have = tuple(inspect.signature(function).parameters)
    if have[: len(parameters)] != parameters:
        name = f"{function.__module__}.{function.__qualname__}"
        raise PatchError(
            f"{name} has the parameters {have}, expected {parameters}: this version differs from those tried "
            f"({KERAS_TRIED}, TensorFlow 2.18 to 2.21); install one of them"
        )


def method(owner: type, name: str, parameters: tuple[str, ...]):
    """Decorator: replace `owner.name` by `wrapper(original, self, *args, **kwargs)`.

    `parameters` are the names, without self, that the method must start with. Raises PatchError.
    """

    def decorate(wrapper):
        original = owner.__dict__.get(name)
        if original is None:
            raise PatchError(f"{owner.__module__}.{owner.__qualname__} has no method {name}; tried on {KERAS_TRIED}")
        check_signature(original, ("self", *parameters))

        @functools.wraps(original)
        def replacement(self, *args, **kwargs):
            return wrapper(original, self, *args, **kwargs)

        setattr(owner, name, replacement)
        return wrapper

    return decorate


def overrides(base: type, name: str):
    """Decorator: like `method`, for `name` in `base` and in every subclass that defines it, now or later.

    The wrapper runs at each level of a chain of super() calls; it must guard against that itself. AutoGraph runs the
    wrapper as it is written, and `original` as it would have without the wrapper.
    """

    def decorate(wrapper):
        def wrap(cls):
            original = cls.__dict__.get(name)
            plain = getattr(original, "python_function", original)  # under @tf.function
            if not inspect.isfunction(plain) or getattr(plain, "_matexrun", False):
                return
            convertible = _convertible(original, plain)

            @functools.wraps(plain)
            def replacement(self, *args, **kwargs):
                return wrapper(convertible, self, *args, **kwargs)

            replacement._matexrun = True
            replacement.autograph_info__ = {}  # how TensorFlow marks what AutoGraph leaves alone (TF 2.18 to 2.21)
            setattr(cls, name, replacement)

        def walk(cls):
            wrap(cls)
            for sub in cls.__subclasses__():
                walk(sub)

        walk(base)
        own = base.__dict__.get("__init_subclass__")

        def __init_subclass__(cls, **kwargs):
            if own is not None:
                own.__func__(cls, **kwargs)
            else:
                super(base, cls).__init_subclass__(**kwargs)
            wrap(cls)

        base.__init_subclass__ = classmethod(__init_subclass__)
        return wrapper

    return decorate


def _convertible(original, plain):
    """`original` for a wrapper to call: AutoGraph, which passes over the wrapper, converts it where it is at work.

    In a step, a method under @tf.function (`plain` is what it decorates) becomes part of the step's own graph: a graph
    of its own would be kept for later steps, but not what it has captured of this one.
    """

    def call(*args, **kwargs):
        from tensorflow import __internal__

        from matexrun.inject import step

        if original is not plain and step.current() is None:
            return original(*args, **kwargs)
        autograph = __internal__.autograph
        return autograph.tf_convert(plain, autograph.control_status_ctx(), convert_by_default=False)(*args, **kwargs)

    return call


def everywhere(original, replacement, package: str) -> int:
    """Rebind every module attribute of `package` that is `original`; for functions that modules import by name.

    Returns how many there were. Raises PatchError where there was none.
    """
    count = 0
    for name, module in list(sys.modules.items()):
        if name != package and not name.startswith(package + "."):
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                setattr(module, attribute, replacement)
                count += 1
    if not count:
        raise PatchError(f"{original!r} is nowhere to be found in {package}; tried on {KERAS_TRIED}")
    return count
