"""How exact a float32 product must be. Other types have one accuracy and ignore this."""

from typing import Final, Literal, get_args

import torch

Accuracy = Literal["fp32", "tf32", "ieee"]
ACCURACIES: Final[tuple[Accuracy, ...]] = get_args(Accuracy)


def resolve(accuracy: str | None) -> Accuracy:
    """The accuracy that a call asks for. `None` follows torch's own setting.

    >>> resolve("ieee")
    'ieee'
    """
    if accuracy is None:
        return "tf32" if _torch_float32_precision() == "tf32" else "fp32"
    if accuracy not in ACCURACIES:
        raise ValueError(f"accuracy must be one of {', '.join(map(repr, ACCURACIES))} or None, not {accuracy!r}")
    return accuracy


def may_mix(accuracy: str | None) -> bool:
    """Whether a call that asks for this accuracy may multiply float32 with 16-bit floats: it says how exactly.

    >>> may_mix("fp32"), may_mix(None)
    (True, False)
    """
    return accuracy in ("fp32", "tf32")


def _torch_float32_precision() -> str:
    # What torch.backends.cuda.matmul.fp32_precision reads, without its 2 us of Python.
    return torch._C._get_fp32_precision_getter("cuda", "matmul")
