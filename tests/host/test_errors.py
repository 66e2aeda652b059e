"""Bad input: torch's exception types, messages that name what is wrong, and nothing written."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilesmith
from tilesmith.core.problem import OUT_DTYPES, Problem

Tensors = tuple[torch.Tensor, torch.Tensor]


def ones(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def raised(call: Callable[[], object]) -> Exception:
    """The exception that a call ends with."""
    with pytest.raises(Exception) as info:
        call()
    return info.value


def assert_names(error: Exception, *parts: object) -> None:
    message = str(error)
    assert [part for part in map(str, parts) if part not in message] == [], message


MISMATCHED = [
    *(((2, 3), (4, 5)), ((3,), (4,)), ((3,), (4, 5)), ((2, 3), (4,)), ((2, 2, 3), (2, 4, 5))),
    *(((2, 2, 3), (3, 3, 5)), ((2, 1, 2, 3), (3, 2, 3, 5, 4)), ((0, 3), (4, 0))),
]
SCALARS = [((), (2, 2)), ((2, 2), ()), ((), ()), ((), (2,))]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("a", "b"), MISMATCHED + SCALARS)
def test_shapes_without_a_product_raise_what_torch_raises(a: tuple[int, ...], b: tuple[int, ...], device: str) -> None:
    ours = raised(lambda: tilesmith.matmul(ones(*a, device=device), ones(*b, device=device)))
    torchs = raised(lambda: torch.matmul(ones(*a), ones(*b)))
    assert type(ours) is type(torchs)


@pytest.mark.parametrize(
    ("a", "b", "parts"),
    [
        ((2, 3), (4, 5), ["2x3", "4x5", "inner dimensions 3 and 4"]),
        ((3,), (4,), ["3 and 4"]),
        ((2, 3), (4,), ["2x3", "3 and 4"]),
        ((7, 2, 3), (7, 4, 5), ["7x2x3", "7x4x5"]),
        ((2, 2, 3), (6, 3, 5), ["tensor a (2)", "tensor b (6)", "[2]", "[6]"]),
        ((2, 6, 2, 3), (2, 5, 3, 5), ["tensor a (6)", "tensor b (5)", "dimension 1", "[2, 6]", "[2, 5]"]),
        ((), (2, 2), ["0D and 2D", "at least 1D"]),
        ((2,), (), ["1D and 0D", "at least 1D"]),
    ],
)
def test_a_shape_error_names_the_shapes(a: tuple[int, ...], b: tuple[int, ...], parts: list[str]) -> None:
    for call in (tilesmith.matmul, Problem.of):
        error = raised(lambda call=call: call(ones(*a, device="meta"), ones(*b, device="meta")))  # type: ignore[misc]
        assert_names(error, *parts)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float16),
        (torch.float32, torch.int32),
        (torch.int8, torch.uint8),
    ],
)
def test_mixed_types_raise_what_torch_raises_and_are_named(a: torch.dtype, b: torch.dtype) -> None:
    torchs = raised(lambda: torch.matmul(ones(2, 3, dtype=a), ones(3, 4, dtype=b)))
    assert type(raised(lambda: tilesmith.matmul(ones(2, 3, dtype=a), ones(3, 4, dtype=b)))) is type(torchs)
    ours = raised(lambda: tilesmith.matmul(ones(2, 3, dtype=a, device="meta"), ones(3, 4, dtype=b, device="meta")))
    assert type(ours) is type(torchs)
    assert_names(ours, a, b, "[2, 3]", "[3, 4]", "meta")


def test_mixed_devices_are_named() -> None:
    a, b = ones(2, 3), ones(3, 4, device="meta")
    error = raised(lambda: tilesmith.matmul(a, b))
    assert type(error) is RuntimeError
    assert_names(error, "a is on cpu", "b is on meta", "[2, 3]", "[3, 4]")
    assert_names(raised(lambda: tilesmith.matmul(b.T, a.T)), "a is on meta", "b is on cpu")


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint64, torch.float8_e4m3fn]
)
def test_a_type_without_a_kernel_is_named_with_those_that_have_one(dtype: torch.dtype) -> None:
    a, b = ones(2, 3, dtype=dtype, device="meta"), ones(3, 4, dtype=dtype, device="meta")
    for call in (tilesmith.matmul, Problem.of):
        error = raised(lambda call=call: call(a, b))  # type: ignore[misc]
        assert type(error) is NotImplementedError
        assert_names(error, dtype, "[2, 3]", "[3, 4]", "meta", *(str(d).removeprefix("torch.") for d in OUT_DTYPES))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.uint32])
def test_a_type_that_torch_cannot_multiply_raises_what_torch_raises(dtype: torch.dtype) -> None:
    a = ones(2, 2, dtype=dtype)
    assert type(raised(lambda: tilesmith.matmul(a, a))) is type(raised(lambda: torch.matmul(a, a)))


def not_dense() -> list[tuple[torch.Tensor, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that these are old, or new
        return [
            (torch.eye(3).to_sparse(), "torch.sparse_coo"),
            (torch.eye(3).to_sparse_csr(), "torch.sparse_csr"),
            (torch.eye(3).to_mkldnn(), "torch._mkldnn"),
            (torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8), "quantized"),
        ]


@pytest.mark.parametrize("out", [None, torch.zeros(3, 3)], ids=["result", "out"])
@pytest.mark.parametrize("kind", range(4), ids=["coo", "csr", "mkldnn", "quantized"])
def test_sparse_and_quantised_tensors_are_not_implemented_and_named(kind: int, out: torch.Tensor | None) -> None:
    operand, name = not_dense()[kind]
    first = raised(lambda: tilesmith.matmul(operand, torch.eye(3), out=out))
    second = raised(lambda: tilesmith.matmul(torch.eye(3), operand, out=out))
    assert [type(first), type(second)] == [NotImplementedError] * 2
    assert_names(first, "a has", name, "[3, 3]", operand.dtype, "cpu")
    assert_names(second, "b has", name, "[3, 3]", operand.dtype, "cpu")


@pytest.mark.parametrize("wrong", [None, 1.0, [[1.0]], "a"])
def test_what_is_no_tensor_is_a_type_error(wrong: Any) -> None:
    right = ones(2, 2)
    first, second = raised(lambda: tilesmith.matmul(wrong, right)), raised(lambda: tilesmith.matmul(right, wrong))
    assert type(first) is type(raised(lambda: torch.matmul(wrong, right))) is TypeError
    assert type(second) is type(raised(lambda: torch.matmul(right, wrong))) is TypeError
    assert_names(first, "'a'", type(wrong).__name__)
    assert_names(second, "'b'", type(wrong).__name__)
    if wrong is not None:
        third = raised(lambda: tilesmith.matmul(right, right, out=wrong))
        assert type(third) is type(raised(lambda: torch.matmul(right, right, out=wrong))) is TypeError
        assert_names(third, "'out'", type(wrong).__name__)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("accuracy", ["FP32", "", "bf16", "high"])
def test_an_unknown_accuracy_is_a_value_error_with_the_known_ones(accuracy: str, device: str) -> None:
    a = ones(2, 2, device=device)
    for out in (None, torch.empty_like(a)):
        error = raised(lambda out=out: tilesmith.matmul(a, a, accuracy=accuracy, out=out))  # type: ignore[misc]
        assert type(error) is ValueError
        assert_names(error, repr(accuracy), "'fp32'", "'tf32'", "'ieee'")


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16),
        (torch.int8, torch.int64),
        (torch.int64, torch.int32),
        (torch.bfloat16, torch.bool),
    ],
)
def test_an_impossible_out_dtype_is_named_with_the_possible_ones(
    dtype: torch.dtype, out_dtype: torch.dtype, device: str
) -> None:
    a = ones(2, 2, dtype=dtype, device=device)
    error = raised(lambda: tilesmith.matmul(a, a, out_dtype=out_dtype))
    assert type(error) is RuntimeError
    assert_names(error, f"out_dtype {out_dtype}", dtype, *OUT_DTYPES[dtype])


def test_warming_up_without_a_gpu_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(tilesmith.UnavailableError, match="needs an NVIDIA GPU"):
        tilesmith.warmup([((2, 3), (3, 4))])


def bad_outs() -> dict[str, tuple[torch.Tensor, list[str]]]:
    """Outputs for the product of two 2x2 float32 matrices, and what the message must name."""
    return {
        "type": (ones(2, 2, dtype=torch.float64), ["torch.float32", "torch.float64"]),
        "narrower type": (ones(2, 2, dtype=torch.bfloat16), ["torch.float32", "torch.bfloat16"]),
        "device": (ones(2, 2, device="meta"), ["out is on meta", "cpu"]),
        "internal overlap": (ones(1).expand(2, 2), ["single memory location", "[2, 2]", "[0, 0]"]),
        "requires grad": (ones(2, 2).requires_grad_(), ["automatic differentiation", "requires grad"]),
    }


@pytest.mark.parametrize("name", bad_outs())
def test_a_wrong_out_raises_what_torch_raises(name: str) -> None:
    a = torch.eye(2) * 5
    out, parts = bad_outs()[name]
    before = out.detach().clone()
    ours = raised(lambda: tilesmith.matmul(a, a, out=out))
    assert type(ours) is type(raised(lambda: torch.matmul(a, a, out=bad_outs()[name][0])))
    assert_names(ours, *parts)
    assert out.is_meta or torch.equal(out, before)


def test_out_with_operands_that_require_grad_raises_what_torch_raises() -> None:
    a, b, out = torch.eye(2, requires_grad=True), torch.eye(2), torch.full((2, 2), 9.0)
    for x, y in ((a, b), (b, a)):
        ours = raised(lambda x=x, y=y: tilesmith.matmul(x, y, out=out))  # type: ignore[misc]
        assert type(ours) is type(raised(lambda x=x, y=y: torch.matmul(x, y, out=out)))  # type: ignore[misc]
    assert bool((out == 9).all())
    with torch.no_grad():
        assert torch.equal(tilesmith.matmul(a, b, out=out), torch.eye(2))


@pytest.mark.parametrize("shape", [(3,), (5, 5), (2, 3, 4)])
def test_an_out_of_another_shape_is_resized_with_torchs_warning(shape: tuple[int, ...]) -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4)
    ours, torchs = torch.full(shape, 9.0), torch.full(shape, 9.0)
    with pytest.warns(UserWarning, match="resized") as our_warnings:
        assert tilesmith.matmul(a, b, out=ours) is ours
    with pytest.warns(UserWarning, match="resized"):
        torch.matmul(a, b, out=torchs)
    assert torch.equal(ours, torchs)
    assert ours.stride() == torchs.stride()
    assert our_warnings[0].filename == __file__
    assert_names(our_warnings[0].message, list(shape), [2, 4])  # type: ignore[arg-type]


def test_an_empty_out_is_resized_in_silence() -> None:
    out = torch.empty(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilesmith.matmul(torch.eye(2), torch.eye(2), out=out)
    assert torch.equal(out, torch.eye(2))


def bad_calls() -> dict[str, Callable[[torch.Tensor], object]]:
    """Calls that must fail, each with a 2x2 float32 `out`."""
    a = torch.eye(2)
    return {
        "inner dimensions": lambda out: tilesmith.matmul(a, ones(3, 2), out=out),
        "inner dimensions and another shape": lambda out: tilesmith.matmul(a, ones(3, 5), out=out),
        "batch dimensions": lambda out: tilesmith.matmul(ones(2, 2, 2), ones(3, 2, 2), out=out),
        "scalar": lambda out: tilesmith.matmul(torch.tensor(1.0), a, out=out),
        "mixed types": lambda out: tilesmith.matmul(a, a.double(), out=out),
        "mixed devices": lambda out: tilesmith.matmul(a, a.to("meta"), out=out),
        "bool": lambda out: tilesmith.matmul(a.bool(), a.bool(), out=out),
        "sparse": lambda out: tilesmith.matmul(a.to_sparse(), a, out=out),
        "accuracy": lambda out: tilesmith.matmul(a, a, accuracy="none", out=out),
        "impossible out_dtype": lambda out: tilesmith.matmul(a, a, out_dtype=torch.float64, out=out),
        "another out_dtype": lambda out: tilesmith.matmul(a.half(), a.half(), out=out),
        "another shape of the wrong type": lambda out: tilesmith.matmul(ones(3, 2).double(), a.double(), out=out),
        "no tensor": lambda out: tilesmith.matmul(a, None, out=out),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("name", bad_calls())
def test_nothing_is_written_or_resized_when_a_call_fails(name: str) -> None:
    out = torch.full((2, 2), 9.0)
    address = out.data_ptr()
    raised(lambda: bad_calls()[name](out))
    assert torch.equal(out, torch.full((2, 2), 9.0))
    assert out.data_ptr() == address
