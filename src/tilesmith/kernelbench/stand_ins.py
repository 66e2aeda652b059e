"""Operators of ours that stand for functions of torch while a model runs without memory. They have the same arguments
and know nothing but sizes; a written forward calls torch's own.

`nn.LSTM`, `nn.GRU` and `nn.RNN` call one function of torch each, of which every step would be written down. That of
batch norm takes torch a millisecond without memory, and networks have hundreds of them.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

_RECURRENT: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LIBRARY: Final = torch.library.Library("tilesmith_stand_ins", "DEF")
_SETTINGS: Final = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_BIDIRECTIONAL: Final = 4  # of the settings


def stand_in(function: Any) -> Callable[..., Any] | None:
    """What is called instead of a function or an operation of torch; None if it is called itself."""
    return _operators.get(function)


def torchs_own(operator: Any) -> str | None:
    """The operation of torch that a stand-in stands for."""
    return _torchs.get(operator)


def _lstm(x: Tensor, states: list[Tensor], parameters: list[Tensor], *settings: Any) -> tuple[Tensor, ...]:
    hidden, cell = states
    return (*_others(x, hidden, parameters, *settings), torch.empty_like(cell))


def _others(x: Tensor, hidden: Tensor, parameters: list[Tensor], *settings: Any) -> tuple[Tensor, Tensor]:
    """What the last layer gives in every step, and the state after the last one."""
    width = hidden.shape[-1] * (1 + settings[_BIDIRECTIONAL])
    return x.new_empty((*x.shape[:-1], width)), torch.empty_like(hidden)


def _recurrent(name: str) -> Any:
    states, results = ("Tensor[] hx", "Tensor, Tensor, Tensor") if name == "lstm" else ("Tensor hx", "Tensor, Tensor")
    _LIBRARY.define(f"{name}(Tensor input, {states}, Tensor[] params, {_SETTINGS}) -> ({results})")
    fake = _lstm if name == "lstm" else _others
    torch.library.register_fake(f"{_LIBRARY.ns}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, _LIBRARY.ns), name).default


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training:
        functional._verify_batch_size(input.size())  # type: ignore[attr-defined]
    given = input, weight, bias, running_mean, running_var, training, momentum, eps, torch.backends.cudnn.enabled
    return _norm(*given)  # type: ignore[no-any-return]


def _norm_operator() -> Any:
    _LIBRARY.define(str(torch.ops.aten.batch_norm.default._schema).removeprefix("aten::"))
    name = f"{_LIBRARY.ns}::batch_norm"
    torch.library.register_fake(name, lambda x, *_: torch.empty_like(x), lib=_LIBRARY)
    return getattr(torch.ops, _LIBRARY.ns).batch_norm.default


_made: Final = {name: _recurrent(name) for name in _RECURRENT}
_norm: Final = _norm_operator()
_operators: Final[dict[Any, Callable[..., Any]]] = {
    functional.batch_norm: _batch_norm,
    torch.ops.aten.batch_norm.default: _norm,
    **{getattr(torch, name): operator for name, operator in _made.items()},
    **{getattr(torch.ops.aten, name).input: operator for name, operator in _made.items()},
}
_torchs: Final = {_norm: "batch_norm.default", **{operator: f"{name}.input" for name, operator in _made.items()}}
