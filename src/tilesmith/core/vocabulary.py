"""The words that calls and commands share. This imports nothing, so that the command line can ask for its help without
torch."""

from typing import Final, Literal, get_args

Accuracy = Literal["fp32", "tf32", "ieee"]
ACCURACIES: Final[tuple[Accuracy, ...]] = get_args(Accuracy)

ACTIVATIONS: Final = ("relu", "gelu", "gelu_tanh", "silu")

# The types of operands, by torch's names, each with those that the result may have; its default is the first.
OUT_DTYPES: Final[dict[str, tuple[str, ...]]] = {
    "float64": ("float64",),
    "float32": ("float32",),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int8", "int32"),
    "uint8": ("uint8", "int32"),
    "int16": ("int16", "int32"),
    "int32": ("int32",),
    "int64": ("int64",),
}
