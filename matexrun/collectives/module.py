"""The text of the StableHLO module that holds one custom call. Pure: strings in, a string out."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matexrun.collectives.calls import Call

ELEMENT = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "ui8", "uint16": "ui16", "uint32": "ui32", "uint64": "ui64",
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex64": "complex<f32>", "complex128": "complex<f64>",
}  # fmt: skip
TOKEN = "tensor<1xf32>"


def tensor_type(dtype: str, shape: tuple[int, ...]) -> str:
    """`tensor<2x3xf32>` for ("float32", (2, 3))."""
    return f"tensor<{''.join(f'{dim}x' for dim in shape)}{ELEMENT[dtype]}>"


@functools.lru_cache(maxsize=1024)  # a step has a few calls; the text of one with 161 tensors takes a millisecond
def text(target: str, call: Call, in_place: bool) -> str:
    """A module whose main takes the tensors, the factor if any, and the token, and returns the tensors and the token.

    in_place: results share the memory of their operands; XLA copies first where someone else still reads them. Pays
    inside a jit cluster, where gradients are XLA's own temporaries; outside, operands are the caller's and would always
    be copied.
    """
    tensors = [tensor_type(*tensor) for tensor in zip(call.dtypes, call.shapes, strict=True)]
    factor = [tensor_type(call.factor, ())] if call.factor else []
    operands, results = tensors + factor + [TOKEN], tensors + [TOKEN]
    pairs = [(i, i) for i in range(len(tensors))] if in_place else []
    pairs.append((len(results) - 1, len(operands) - 1))
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{result}], operand_index = {operand}, "
        "operand_tuple_indices = []>"
        for result, operand in pairs
    )
    names = [f"%a{i}" for i in range(len(operands))]
    parameters = [f"{name}: {operand}" for name, operand in zip(names, operands, strict=True)]
    return f"""module @matexrun attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main({", ".join(parameters)}) -> ({", ".join(results)}) {{
    %r:{len(results)} = stablehlo.custom_call @{target}({", ".join(names)}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{call = {call.key} : i64}},
      output_operand_aliases = [{aliases}]
    }} : ({", ".join(operands)}) -> ({", ".join(results)})
    return {", ".join(f"%r#{i}" for i in range(len(results)))} : {", ".join(results)}
  }}
}}"""
