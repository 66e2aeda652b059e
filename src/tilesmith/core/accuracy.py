"""How exact a float32 product must be. Other types have one accuracy and ignore this.

A call says `accuracy="fp32"`, or None to follow torch's setting at that time. Where the call arrives, that becomes a
`Numerics`, once, and everything below reads only that.
"""

from dataclasses import dataclass
from typing import Final

import torch

from tilesmith.core.vocabulary import ACCURACIES as ACCURACIES
from tilesmith.core.vocabulary import Accuracy as Accuracy

_MIXING: Final = ("fp32", "tf32")


@dataclass(frozen=True, slots=True, eq=False)
class Numerics:
    """What the `accuracy` of a call comes to.

    There are five of them, made below: they are compared by identity, so that a key with one in it is hashed at once.
    """

    accuracy: Accuracy
    may_mix: bool  # float32 with 16-bit floats


def may_mix(accuracy: str | None) -> bool:
    """Whether a call that asks for this accuracy may multiply float32 with 16-bit floats: it says how exactly.

    >>> may_mix("fp32"), may_mix(None)
    (True, False)
    """
    return accuracy in _MIXING


_ASKED: Final[dict[str, Numerics]] = {accuracy: Numerics(accuracy, may_mix(accuracy)) for accuracy in ACCURACIES}
_FOLLOWED_TF32: Final = Numerics("tf32", may_mix(None))
DEFAULT: Final = Numerics("fp32", may_mix(None))  # what None comes to where torch has no setting
_FLOAT32: Final = torch.float32

# What torch.backends.cuda.matmul.fp32_precision reads, without its 2 us of Python.
_torch_precision = torch._C._get_fp32_precision_getter


def numerics(accuracy: str | None, dtype: torch.dtype = torch.float32) -> Numerics:
    """The numerics of a call that asks for this accuracy. `dtype` is that of its first operand: only for float32 does
    None ask for torch's setting.

    >>> numerics("ieee")
    Numerics(accuracy='ieee', may_mix=False)
    """
    if accuracy is None:
        is_tf32 = dtype is _FLOAT32 and _torch_precision("cuda", "matmul") == "tf32"
        return _FOLLOWED_TF32 if is_tf32 else DEFAULT
    if accuracy not in ACCURACIES:
        check_accuracy(accuracy)
    return _ASKED[accuracy]


def resolve(accuracy: str | None) -> Accuracy:
    """The accuracy of a float32 product that asks for this one. `None` follows torch's own setting.

    >>> resolve("ieee")
    'ieee'
    """
    return numerics(accuracy).accuracy


def check_accuracy(accuracy: str | None) -> None:
    """Raises for a name that is not one of ACCURACIES."""
    if accuracy is not None and accuracy not in ACCURACIES:
        raise ValueError(f"accuracy must be one of {', '.join(map(repr, ACCURACIES))} or None, not {accuracy!r}")
