"""XLA's foreign function interface (FFI) through ctypes: register a Python function as the target of a custom call.

The C structs are those of the TensorFlow wheel's `include/xla/ffi/api/c_api.h`. Layouts of API 0.1 and 0.2 are the same
for what is used here; any other version is refused (`load` says why), and the caller falls back to numpy_function.
Knows neither MPI nor what the registered functions do.
"""

import ctypes as c
import pathlib
import traceback
from collections.abc import Callable

from matexrun.errors import EnvironmentError_, MatexrunError

KNOWN_VERSIONS = ((0, 1), (0, 2))  # TensorFlow 2.18 .. 2.21


def _struct(name: str, *fields: tuple[str, type], has_header: bool = True) -> type[c.Structure]:
    header = [("struct_size", c.c_size_t), ("extension", c.c_void_p)] if has_header else []
    return type(name, (c.Structure,), {"_fields_": header + list(fields)})


_Version = _struct("ApiVersion", ("major", c.c_int), ("minor", c.c_int))
_Api = _struct(
    "Api",
    ("version", _Version),
    ("internal", c.c_void_p),
    ("error_create", c.c_void_p),
    ("error_get_message", c.c_void_p),
    ("error_destroy", c.c_void_p),
    ("handler_register", c.c_void_p),  # more follow; they are not used
)
_ErrorCreate = _struct("ErrorCreateArgs", ("message", c.c_char_p), ("code", c.c_int))
_ErrorGetMessage = _struct("ErrorGetMessageArgs", ("error", c.c_void_p), ("message", c.c_char_p))
_Span = _struct("ByteSpan", ("pointer", c.c_char_p), ("length", c.c_size_t), has_header=False)
_Bundle = _struct(
    "HandlerBundle", *[(stage, c.c_void_p) for stage in ("instantiate", "prepare", "initialize", "execute")],
    has_header=False,
)  # fmt: skip
_Register = _struct(
    "HandlerRegisterArgs", ("name", _Span), ("platform", _Span), ("bundle", _Bundle), ("traits", c.c_uint32)
)
_Extension = _struct(
    "ExtensionBase", ("struct_size", c.c_size_t), ("type", c.c_int), ("next", c.c_void_p), has_header=False
)
_Metadata = _struct(
    "Metadata", ("struct_size", c.c_size_t), ("version", _Version), ("traits", c.c_uint32), has_header=False
)
_MetadataExtension = _struct(
    "MetadataExtension", ("base", _Extension), ("metadata", c.POINTER(_Metadata)), has_header=False
)
_Buffer = _struct("Buffer", ("dtype", c.c_int), ("data", c.c_void_p), ("rank", c.c_int64), ("dims", c.c_void_p))
_Scalar = _struct("Scalar", ("dtype", c.c_int), ("value", c.POINTER(c.c_int64)), has_header=False)
_Buffers = _struct("ArgsOrRets", ("size", c.c_int64), ("types", c.c_void_p), ("items", c.POINTER(c.POINTER(_Buffer))))
_Attributes = _struct(
    "Attrs", ("size", c.c_int64), ("types", c.c_void_p), ("names", c.c_void_p), ("items", c.POINTER(c.POINTER(_Scalar)))
)
_Frame = _struct(
    "CallFrame",
    ("api", c.c_void_p),
    ("context", c.c_void_p),
    ("stage", c.c_int),
    ("arguments", _Buffers),
    ("results", _Buffers),
    ("attributes", _Attributes),
)
_Handler = c.CFUNCTYPE(c.c_void_p, c.POINTER(_Frame))

_METADATA_EXTENSION = 1
_FAILED_PRECONDITION, _INTERNAL = 9, 13  # absl's status codes

_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
_SYMBOLS = ("XLA_FFI_GetApi", "_ZN3xla3ffi12GetXlaFfiApiEv")  # TensorFlow 2.21; 2.18 .. 2.20

_api = None
_handlers = []  # XLA keeps the addresses for the life of the process


def load() -> c.Structure:
    """The table of functions that TensorFlow exports. Raises EnvironmentError_ where it is missing or unknown."""
    global _api
    if _api is None:
        api = _find()
        version = (api.version.major, api.version.minor)
        if version not in KNOWN_VERSIONS or api.struct_size < c.sizeof(_Api):
            known = ", ".join(f"{major}.{minor}" for major, minor in KNOWN_VERSIONS)
            raise EnvironmentError_(
                f"this TensorFlow has version {version[0]}.{version[1]} of XLA's FFI API; matexrun knows {known}"
            )
        _api = api
    return _api


def _find() -> c.Structure:
    import tensorflow as tf

    folder = pathlib.Path(tf.__file__).parent
    for library in _LIBRARIES:
        for symbol in _SYMBOLS:
            try:
                function = getattr(c.CDLL(str(folder / library)), symbol)
            except (OSError, AttributeError):
                continue
            function.restype = c.POINTER(_Api)
            return function().contents
    raise EnvironmentError_(f"TensorFlow {tf.__version__} does not export XLA's FFI API; TensorFlow 2.18 or later does")


def describe() -> str:
    """One line for --doctor: the version found, or why the interface can't be used."""
    try:
        version = load().version
    except EnvironmentError_ as error:
        return str(error)
    return f"XLA FFI API {version.major}.{version.minor}"


def register(name: str, body: Callable[[int, list[int], list[int]], None]) -> None:
    """Make `body(attribute, operands, results)` the target of custom calls to `name` on the host.

    attribute: the value of the call's only attribute, an i64.  operands, results: addresses of the buffers.
    An exception of `body` becomes the error status of the call, and so an exception of TensorFlow.
    """
    api = load()

    def handler(frame):
        try:
            frame = frame.contents
            if frame.extension and c.cast(frame.extension, c.POINTER(_Extension)).contents.type == _METADATA_EXTENSION:
                metadata = c.cast(frame.extension, c.POINTER(_MetadataExtension)).contents.metadata.contents
                metadata.version.major, metadata.version.minor = api.version.major, api.version.minor
                metadata.traits = 0
                return None
            attribute = frame.attributes.items[0].contents.value[0]
            body(attribute, _addresses(frame.arguments), _addresses(frame.results))
        except MatexrunError as error:
            return _error(str(error), _FAILED_PRECONDITION)
        except BaseException:  # nothing may propagate into C++
            return _error(f"{name}: {traceback.format_exc()}", _INTERNAL)
        return None

    callback = _Handler(handler)
    _handlers.append(callback)
    encoded = name.encode()
    arguments = _Register(
        struct_size=_Register.traits.offset + _Register.traits.size,  # as C computes it, without trailing padding
        name=_Span(encoded, len(encoded)),
        platform=_Span(b"Host", 4),
    )
    arguments.bundle.execute = c.cast(callback, c.c_void_p).value
    error = _function(api.handler_register, _Register)(c.byref(arguments))
    if error:
        raise EnvironmentError_(f"XLA refused the custom call {name}: {_message(error)}")


def _addresses(buffers) -> list[int]:
    items = buffers.items
    return [items[i].contents.data for i in range(buffers.size)]


def _function(address: int, argument: type[c.Structure]):
    return c.CFUNCTYPE(c.c_void_p, c.POINTER(argument))(address)


def _error(message: str, code: int) -> int:
    arguments = _ErrorCreate(message=message.encode(errors="replace"), code=code)
    arguments.struct_size = _ErrorCreate.code.offset + _ErrorCreate.code.size
    return _function(load().error_create, _ErrorCreate)(c.byref(arguments))


def _message(error: int) -> str:
    arguments = _ErrorGetMessage(error=error)
    arguments.struct_size = c.sizeof(_ErrorGetMessage)
    c.CFUNCTYPE(None, c.POINTER(_ErrorGetMessage))(load().error_get_message)(c.byref(arguments))
    return (arguments.message or b"").decode(errors="replace")
