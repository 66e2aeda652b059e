"""Corners: empty gradients, negated and sparse outputs, forward mode where it cannot be followed."""

import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch.autograd import forward_ad

import tilesmith
from tilesmith.core.problem import Problem
from tilesmith.runtime import cache


def test_out_dtype_with_complex_cpu_operands_is_no_key_error() -> None:
    a = torch.ones(2, 2, dtype=torch.complex64)
    with pytest.raises(NotImplementedError):
        tilesmith.matmul(a, a, out_dtype=torch.float32)


def test_mixed_types_with_out_dtype_raise_on_the_cpu_too() -> None:
    a, b = torch.ones(2, 2, dtype=torch.float16), torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="dtype"):
        tilesmith.matmul(a, b, out_dtype=torch.float32)


@pytest.mark.parametrize(("a", "b"), [((2, 3, 0), (0, 4)), ((2, 3, 4), (4, 0)), ((2, 3, 0), (0,))])
def test_gradients_of_empty_products_are_torchs(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.ones(a, requires_grad=True), torch.ones(b, requires_grad=True)
    tilesmith.matmul(x, y).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.zeros(a))
    assert y.grad is not None and torch.equal(y.grad, torch.zeros(b))


@pytest.mark.parametrize("multiply", [tilesmith.matmul, lambda x, w: tilesmith.linear(x, w.T, activation="gelu")])
@pytest.mark.parametrize("shape", [(4, 3, 7), (5, 7), (7,)], ids=str)
def test_gradients_in_batches_are_those_one_by_one(
    multiply: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    x, w = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (shape, (7, 6)))
    y = multiply(x, w)
    several = torch.randn(3, *y.shape, dtype=torch.float64)
    found = torch.autograd.grad(y, (x, w), several, retain_graph=True, is_grads_batched=True)
    for i, each in enumerate(several):
        for batched, own in zip(found, torch.autograd.grad(y, (x, w), each, retain_graph=True), strict=True):
            torch.testing.assert_close(batched[i], own)


def test_a_vectorized_hessian_is_that_of_a_loop() -> None:
    x, w = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return tilesmith.linear(x, w.T).pow(4).sum()

    both = [torch.autograd.functional.hessian(norm, x, vectorize=vectorize) for vectorize in (False, True)]
    torch.testing.assert_close(*both)


def test_a_negated_out_is_written_with_its_sign() -> None:
    storage = torch.zeros(2, 2, dtype=torch.complex64)
    out = storage.conj().imag
    tilesmith.matmul(torch.eye(2), torch.eye(2), out=out)
    assert torch.equal(out, torch.eye(2))
    assert torch.equal(storage.imag, -torch.eye(2))


@pytest.mark.parametrize("transform", ["jvp", "grad"])
def test_a_transform_inside_of_compile_is_refused_not_wrong(transform: str) -> None:
    x, w = torch.randn(2, 2), torch.randn(2, 2)

    def model(t: torch.Tensor) -> object:
        if transform == "jvp":
            return torch.func.jvp(lambda q: tilesmith.matmul(q, w), (t,), (t,))
        return torch.func.grad(lambda q: tilesmith.matmul(q, w).sum())(t)

    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.TorchRuntimeError)):
        torch.compile(model, fullgraph=True, backend="aot_eager")(x)


def test_the_operator_itself_refuses_forward_mode() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.eye(2), torch.eye(2))
        with pytest.raises(NotImplementedError, match=r"call tilesmith\.matmul"):
            torch.ops.tilesmith.matmul(x, torch.eye(2))


def test_out_with_a_dual_operand_raises_as_torch_does() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.eye(2), torch.eye(2))
        with pytest.raises(NotImplementedError):
            torch.matmul(x, torch.eye(2), out=torch.empty(2, 2))
        with pytest.raises(NotImplementedError):
            tilesmith.matmul(x, torch.eye(2), out=torch.empty(2, 2))


def test_out_in_a_dual_level_without_tangents_is_written() -> None:
    out = torch.empty(2, 2)
    with forward_ad.dual_level():
        tilesmith.matmul(torch.eye(2), torch.eye(2), out=out)
    assert torch.equal(out, torch.eye(2))


def test_a_meta_view_has_the_alignment_of_its_offset() -> None:
    real, meta = torch.zeros(64, 40)[:, 1:33], torch.zeros(64, 40, device="meta")[:, 1:33]
    b = torch.zeros(32, 8)
    assert Problem.of(real, b).a.alignment == math.gcd(4, 16)
    assert Problem.of(meta, b.to("meta")).a.alignment == Problem.of(real, b).a.alignment


def test_a_read_only_directory_warns_once_whatever_the_temporary_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = iter("abc")

    def refused(dir: Path, suffix: str) -> tuple[int, str]:  # what mkstemp does on a read-only file system
        raise OSError(30, "Read-only file system", f"{dir}/tmp{next(names)}{suffix}")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for arch in ("sm_75", "sm_80", "sm_90a"):
            cache.cubin("", arch, lambda source, arch: b"")
    assert len(caught) == 1


def test_a_sparse_out_is_named_as_such() -> None:
    with pytest.raises(NotImplementedError, match=r"layout torch\.sparse_coo"):
        tilesmith.matmul(torch.eye(2), torch.eye(2), out=torch.eye(2).to_sparse())


def test_complex_cpu_operands_go_to_torch_with_and_without_out() -> None:
    a = torch.full((2, 2), 1j, dtype=torch.complex64)
    out = torch.empty_like(a)
    tilesmith.matmul(a, a, out=out)
    assert torch.equal(out, a @ a) and torch.equal(tilesmith.matmul(a, a), a @ a)


@pytest.mark.parametrize("b_layout", ["rows", "columns"])
@pytest.mark.parametrize("a_layout", ["rows", "columns", "batch"])
def test_gradients_of_matrices_are_stored_as_torchs(a_layout: str, b_layout: str) -> None:
    """So the gradient of x @ weight.T is added to the weight's without a copy."""

    def stored(rows: int, columns: int, layout: str) -> torch.Tensor:
        if layout == "batch":
            return torch.randn(2, rows, columns).requires_grad_()
        return (torch.randn(rows, columns) if layout == "rows" else torch.randn(columns, rows).T).requires_grad_()

    def strides(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[tuple[int, ...]]:
        return [each.stride() for each in torch.autograd.grad(function(*inputs).square().sum(), inputs)]

    a, b, weight = stored(6, 5, a_layout), stored(5, 7, b_layout), stored(7, 5, b_layout)
    assert strides(tilesmith.matmul, a, b) == strides(torch.matmul, a, b)
    assert strides(tilesmith.linear, a, weight) == strides(torch.nn.functional.linear, a, weight)
