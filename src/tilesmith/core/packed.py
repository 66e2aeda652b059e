"""An operand that was split once, for many products."""

from dataclasses import dataclass

import torch

from tilesmith.core.accuracy import Accuracy

PackedPair = tuple[torch.Tensor | None, torch.Tensor | None]  # what `pack` made of a and b


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Packed:
    """What `tilesmith.pack` returns, and `tilesmith.matmul` takes in the place of a tensor."""

    tensor: torch.Tensor  # what was packed, detached
    is_first: bool  # an `a`, not a `b`
    accuracy: Accuracy | None  # of the products; None if the type has only one
    terms: torch.Tensor | None  # bytes: what kernels/fp32_split/terms.py keeps of a packed operand
    version: int | None  # of the tensor; None if torch keeps no count

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def nbytes(self) -> int:
        """What it takes of memory besides the tensor."""
        return 0 if self.terms is None else self.terms.nbytes

    def __repr__(self) -> str:
        return (
            f"Packed(shape={tuple(self.shape)}, dtype={self.dtype}, device={str(self.device)!r}, "
            f"first={self.is_first}, accuracy={self.accuracy!r}, nbytes={self.nbytes})"
        )

    def check(self, name: str, accuracy: str | None) -> None:
        """Raises if it cannot be the operand `name` of a product with this accuracy."""
        what = f"{name} has shape {list(self.shape)}, {self.dtype} on {self.device}"
        if self.is_first != (name == "a"):
            side, argument = ("second", "") if name == "b" else ("first", ", first=True")
            raise RuntimeError(
                f"{name} is packed for the other side of a product: pack a {side} operand with "
                f"tilesmith.pack({name}{argument}) ({what})"
            )
        if accuracy is not None and self.accuracy not in (None, accuracy):
            raise RuntimeError(
                f"{name} is packed for accuracy={self.accuracy!r}, and the product asks for {accuracy!r}: pack it with "
                f"tilesmith.pack({name}, accuracy={accuracy!r}) ({what})"
            )
        if self.version is not None and self.tensor._version != self.version:
            raise RuntimeError(
                f"{name} was changed in place after tilesmith.pack, which had made its copy by then: pack it again "
                f"({what})"
            )


def version_of(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def unpacked(
    a: torch.Tensor | Packed, b: torch.Tensor | Packed, accuracy: str | None
) -> tuple[torch.Tensor, torch.Tensor, PackedPair | None, str | None]:
    """The operands as tensors, what `pack` made of them, if anything, and the accuracy that they were packed for."""
    a_terms = b_terms = None
    if isinstance(a, Packed):
        a.check("a", accuracy)
        a_terms, accuracy, a = a.terms, accuracy or a.accuracy, a.tensor
    if isinstance(b, Packed):
        b.check("b", accuracy)
        b_terms, accuracy, b = b.terms, accuracy or b.accuracy, b.tensor
    return a, b, None if a_terms is None and b_terms is None else (a_terms, b_terms), accuracy
