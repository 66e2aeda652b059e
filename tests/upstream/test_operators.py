"""PyTorch's operators and modules under an override on a GPU, with the samples that its developers wrote down."""

import pytest
import torch
import upstream_samples
from upstream_judge import FLOOR, Tally, judge_entry, judge_errors
from upstream_samples import FLOATS, MODULES, OPERATORS, dtypes_of

import tilesmith

_OPERATORS, _MODULES = upstream_samples.operators(), upstream_samples.modules()

# Whatever a release of torch adds or drops, these are there, and ours.
_SURE_OPERATORS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "nn.functional.linear", "linalg.multi_dot"}
_SURE_MODULES = {"Linear", "Bilinear", "RNNCell", "GRU", "MultiheadAttention", "TransformerEncoderLayer"}


def _cases(names: tuple[str, ...], database: dict[str, object], dtypes: tuple[torch.dtype, ...] | None) -> list[object]:
    return [
        pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")
        for name in names
        if name in database
        for dtype in dtypes or dtypes_of(database[name], "cuda")
    ]


def _others(names: tuple[str, ...], database: dict[str, object]) -> list[str]:
    return [name for name in database if name not in names]


def test_the_databases_have_what_the_lane_is_for() -> None:
    assert set(_OPERATORS) >= _SURE_OPERATORS
    assert set(_MODULES) >= _SURE_MODULES


@pytest.mark.parametrize(("name", "dtype"), _cases(OPERATORS, _OPERATORS, None))
def test_operators(name: str, dtype: torch.dtype, tally: Tally) -> None:
    judge_entry(_OPERATORS[name], "cuda", dtype, tilesmith.override, tally)
    assert not tally.complaints, "\n".join(tally.complaints)
    assert tally.ours or name not in _SURE_OPERATORS or dtype not in FLOOR


@pytest.mark.parametrize(("name", "dtype"), _cases(MODULES, _MODULES, FLOATS))
def test_modules(name: str, dtype: torch.dtype, tally: Tally) -> None:
    judge_entry(_MODULES[name], "cuda", dtype, tilesmith.override, tally)
    assert not tally.complaints, "\n".join(tally.complaints)
    assert tally.ours or name not in _SURE_MODULES or dtype not in FLOOR


@pytest.mark.parametrize("name", _others(OPERATORS, _OPERATORS))
def test_other_operators(name: str, tally: Tally) -> None:
    """Most of them reach no product. What one does is compared, and the summary has its name."""
    for dtype in FLOATS:
        judge_entry(_OPERATORS[name], "cuda", dtype, tilesmith.override, tally, is_listed=False)
    assert not tally.complaints, "\n".join(tally.complaints)


@pytest.mark.parametrize("name", _others(MODULES, _MODULES))
def test_other_modules(name: str, tally: Tally) -> None:
    for dtype in FLOATS:
        judge_entry(_MODULES[name], "cuda", dtype, tilesmith.override, tally, is_listed=False)
    assert not tally.complaints, "\n".join(tally.complaints)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name in _OPERATORS])
def test_errors_of_operators(name: str, tally: Tally) -> None:
    judge_errors(_OPERATORS[name], "cuda", tilesmith.override, tally)
    assert not tally.complaints, "\n".join(tally.complaints)


@pytest.mark.parametrize("name", [name for name in MODULES if name in _MODULES])
def test_errors_of_modules(name: str, tally: Tally) -> None:
    judge_errors(_MODULES[name], "cuda", tilesmith.override, tally)
    assert not tally.complaints, "\n".join(tally.complaints)
