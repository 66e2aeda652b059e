"""Products of float32 with 16-bit floats: as accurate as torch's product of the same values in float32."""

import itertools

import pytest
import torch
from guarded import Guarded

import tilesmith
from tilesmith.bench.distributions import operands
from tilesmith.core.device import installed
from tilesmith.core.problem import Problem
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.runtime.executor import compiled

NARROW = [torch.float16, torch.bfloat16]
TYPES = [pair for narrow in NARROW for pair in ((torch.float32, narrow), (narrow, torch.float32))]
Types = tuple[torch.dtype, torch.dtype]


def assert_promise(ours: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    theirs = torch.matmul(a.float(), b.float())
    assert ours.dtype == torch.float32
    for is_kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(is_kind(ours), is_kind(theirs)), f"{is_kind.__name__} elsewhere"
    finite = torch.isfinite(theirs)
    if not finite.any():
        return  # float16 has infinities where the distribution is wide
    exact = a.double() @ b.double()
    size = exact[finite].norm()
    norm, torch_norm = (((x.double() - exact)[finite].norm() / size).item() for x in (ours, theirs))
    assert norm <= max(torch_norm, 3e-7), f"norm {norm:.2e}, torch {torch_norm:.2e}"


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize(
    "name", ["uniform", "normal", "graded rows", "graded slices of K", "outliers", "sparse", "infinities and NaNs"]
)
def test_no_more_error_than_torch_in_float32(name: str, types: Types) -> None:
    for m, k, n in ((300, 20, 200), (300, 64, 200), (300, 515, 200), (5, 1000, 700), (1024, 4096, 512)):
        a, b = (x.to(dtype) for x, dtype in zip(operands(name, m, k, n, "cuda"), types, strict=True))
        for x, y in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
            assert_promise(tilesmith.matmul(x, y, accuracy="fp32"), x, y)


def integers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Such that sums of thousands of products are exact in float32. Those of float32 need both of their terms."""
    values = torch.randint(-1, 2, shape, device="cuda") * (4097 if dtype == torch.float32 else 1)
    return values.to(dtype)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_integers_are_exact_in_every_kind_of_configuration(layout: str, types: Types) -> None:
    for a_shape, b_shape in (
        ((260, 200), (200, 330)),
        ((137, 1501), (1501, 263)),
        ((20, 5000), (5000, 301)),
        ((128 * 140, 64), (64, 520)),  # one step, and B stays
        ((3, 1, 131, 67), (2, 67, 71)),
    ):
        a, b = (
            x.mT.contiguous().mT if order == "t" else x
            for x, order in zip((integers(a_shape, types[0]), integers(b_shape, types[1])), layout, strict=True)
        )
        expected = (a.double() @ b.double()).float()
        problem = Problem.of(a, b, may_mix=True)
        kinds = {}
        for c in tiles.configurations(problem, installed(0)):
            if hopper.unsuited(problem, installed(0), c) is None:
                kinds[c.swap_ab, c.split_k > 1, c.cluster, c.tile_m, c.tile_n > 128] = c
        assert kinds
        for c in kinds.values():
            result = compiled(hopper.plan(problem, installed(0), c), 0)(a, b)
            torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=f"{c}")


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("strides", [(301, 1), (1, 205), (700, 2), (3, 700)], ids=str)
def test_strides_of_any_kind(strides: tuple[int, int], types: Types) -> None:
    """And nothing is read or written outside of the operands."""
    guarded = [Guarded.empty((200, 300), strides, dtype, 1) for dtype in types]
    for each in guarded:
        each.tensor.normal_()
    a, b = guarded[0].tensor, guarded[1].tensor.T
    assert_promise(tilesmith.matmul(a, b, accuracy="fp32"), a, b)
    for each in guarded:
        each.assert_outside_untouched()


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_tf32_is_as_exact_as_its_planes(types: Types) -> None:
    a, b = (torch.randn(512, 512, device="cuda").to(dtype) for dtype in types)
    exact = a.double() @ b.double()
    norm = ((tilesmith.matmul(a, b, accuracy="tf32").double() - exact).norm() / exact.norm()).item()
    assert norm <= 4e-4


def test_a_float32_operand_may_be_packed() -> None:
    a, b = torch.randn(300, 700, device="cuda").bfloat16(), torch.randn(700, 500, device="cuda")
    packed = tilesmith.pack(b, accuracy="fp32")
    assert_promise(tilesmith.matmul(a, packed, accuracy="fp32"), a, b)
    first = tilesmith.pack(b.T, first=True, accuracy="fp32")
    assert_promise(tilesmith.matmul(first, a.T, accuracy="fp32"), b.T, a.T)


def test_the_accuracy_must_be_given_each_time() -> None:
    """Also after a call that gave it."""
    a, b = torch.randn(128, 128, device="cuda"), torch.randn(128, 128, device="cuda").bfloat16()
    for x, y in ((a, b), (b, a)):
        for _ in range(2):
            tilesmith.matmul(x, y, accuracy="fp32")
            with pytest.raises(RuntimeError, match="same dtype"):
                tilesmith.matmul(x, y)
            with pytest.raises(RuntimeError, match="same dtype"):
                tilesmith.matmul(x, y, accuracy="ieee")
