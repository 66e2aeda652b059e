"""Recurrent layers, each as one operation. Traced as they are, every step of theirs would be written down.

`nn.LSTM`, `nn.GRU` and `nn.RNN` call one function of torch each. While a model runs without memory, an operator of ours
stands in its place, which has the same arguments and knows nothing but sizes. A written forward calls torch's own.
"""

from typing import Any, Final

import torch
from torch import Tensor

_NAMES: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LIBRARY: Final = torch.library.Library("tilesmith_recurrent", "DEF")
_SETTINGS: Final = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_BIDIRECTIONAL: Final = 4  # of the settings


def stand_in(function: Any) -> Any:
    """The operator for a function or an operation of torch that runs a recurrent layer; None for all others."""
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


def _operator(name: str) -> Any:
    states, results = ("Tensor[] hx", "Tensor, Tensor, Tensor") if name == "lstm" else ("Tensor hx", "Tensor, Tensor")
    _LIBRARY.define(f"{name}(Tensor input, {states}, Tensor[] params, {_SETTINGS}) -> ({results})")
    fake = _lstm if name == "lstm" else _others
    torch.library.register_fake(f"{_LIBRARY.ns}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, _LIBRARY.ns), name).default


_made: Final = {name: _operator(name) for name in _NAMES}
_operators: Final = {
    **{getattr(torch, name): operator for name, operator in _made.items()},
    **{getattr(torch.ops.aten, name).input: operator for name, operator in _made.items()},
}
_torchs: Final = {operator: f"{name}.input" for name, operator in _made.items()}
