"""Layers in the place of torch's."""

from typing import Any

import torch

from tilesmith.api import linear, pack
from tilesmith.core.accuracy import check_accuracy, resolve
from tilesmith.core.checks import check_activation
from tilesmith.core.packed import Packed
from tilesmith.torch_ops import dispatch


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` by `tilesmith.linear`, with the same parameters and the same state dict.

    In eval mode, where the weight needs no gradient, the first call packs a float32 weight on a Hopper GPU: that takes
    as much memory again, and makes later calls faster. It is packed anew when it has changed. Changes that torch does
    not count, through `weight.data`, are not seen: call `eval()` again after them. Nothing is packed under autocast or
    `torch.compile`, while a CUDA graph is captured, or where FSDP or DTensor splits the weight.

    Args:
        in_features, out_features, bias, device, dtype: as for `torch.nn.Linear`.
        activation, accuracy: as for `tilesmith.linear`.

    >>> layer = Linear(4, 2, activation="relu").eval()
    >>> bool((layer(torch.randn(3, 4)) >= 0).all())
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        accuracy: str | None = None,
    ) -> None:
        if activation is not None:
            check_activation(activation)
        check_accuracy(accuracy)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.accuracy = accuracy
        self._packed: Packed | None = None

    @classmethod
    def from_torch(
        cls, layer: torch.nn.Linear, *, activation: str | None = None, accuracy: str | None = None
    ) -> "Linear":
        """A layer that has the parameters of torch's, not copies of them.

        >>> Linear.from_torch(torch.nn.Linear(4, 2), activation="gelu")
        Linear(in_features=4, out_features=2, bias=True, activation='gelu')
        """
        made = cls(
            layer.in_features,
            layer.out_features,
            layer.bias is not None,
            device="meta",
            activation=activation,
            accuracy=accuracy,
        )
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.weight if torch.compiler.is_compiling() else self._packed_weight() or self.weight
        return linear(input, weight, self.bias, activation=self.activation, residual=residual, accuracy=self.accuracy)

    def extra_repr(self) -> str:
        chosen = {"activation": self.activation, "accuracy": self.accuracy}
        return super().extra_repr() + "".join(f", {name}={value!r}" for name, value in chosen.items() if value)

    def train(self, mode: bool = True) -> "Linear":
        self._packed = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_packed": None}

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear":
        self._packed = None
        return super()._apply(fn, recurse)  # type: ignore[no-any-return,no-untyped-call]

    def _packed_weight(self) -> Packed | None:
        """The weight as `pack` makes it, if that is allowed and of use."""
        weight = self.weight
        if self.training or not _may_be_kept(weight) or getattr(self, "_is_fsdp_managed_module", False):
            return None
        packed = self._packed
        if packed is None or not _is_of(packed, weight, resolve(self.accuracy)):
            packed = pack(weight.detach().mT, accuracy=self.accuracy)
            if packed.terms is not None:
                # Any stream may read the new terms next, and may still be reading the old ones.
                torch.cuda.synchronize(weight.device)
            self._packed = packed
        return None if packed.terms is None else packed


def _may_be_kept(weight: torch.Tensor) -> bool:
    """Whether a float32 parameter can be packed for later calls: its changes are counted, and all that a call needs of
    it is its value. A captured graph would go on to read terms that the layer has thrown away."""
    return (
        type(weight) is torch.nn.Parameter
        and weight.dtype == torch.float32
        and dispatch.is_plain(weight, weight)
        and not weight.is_inference()
        and not torch.cuda.is_current_stream_capturing()
    )


def _is_of(packed: Packed, weight: torch.Tensor, accuracy: str) -> bool:
    """Whether this is the weight that was packed, as it is now. What is packed keeps its memory, so another tensor has
    another address."""
    transposed = packed.tensor
    return (
        transposed.data_ptr() == weight.data_ptr()
        and packed.version == weight._version
        and packed.accuracy == accuracy
        and transposed.shape == weight.shape[::-1]
        and transposed.stride() == weight.stride()[::-1]
    )
