"""`tilesmith.override`: torch's own products by our kernels, here by the emulated ones on CPU tensors."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from seen import Seen
from torch import Tensor, nn

import tilesmith
from tilesmith.core.device import named
from tilesmith.core.errors import ColdCaptureError
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.override.cutover import torch_is_faster
from tilesmith.override.operators import NAMES
from tilesmith.override.routes import Routes, epilogue_of
from tilesmith.override.settings import Settings
from tilesmith.planner import choose
from tilesmith.runtime import executor

pytestmark = pytest.mark.usefixtures("emulator_cache")


@contextmanager
def ours(*arguments: object, **settings: object) -> Iterator[None]:
    with tilesmith.emulate(), tilesmith.override(*arguments, **settings):  # type: ignore[arg-type]
        yield


def registered() -> dict[str, str]:
    """The dispatcher's tables, as text that names the place where each kernel was registered."""
    return {name: torch._C._dispatch_dump_table(f"aten::{name}") for name in NAMES}


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    before = registered()
    yield
    assert registered() == before


def went() -> dict[str, tuple[int, int]]:
    """For each operator the calls that went to Tilesmith and to torch."""
    found: dict[str, tuple[int, int]] = {}
    for each in tilesmith.stats().entries:
        ours_so_far, torchs_so_far = found.get(each.operator, (0, 0))
        is_ours = each.where == "tilesmith"
        found[each.operator] = (ours_so_far + each.calls * is_ours, torchs_so_far + each.calls * (not is_ours))
    return found


def reasons() -> set[str]:
    return {each.reason for each in tilesmith.stats().entries if each.where == "torch"}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


A, B, C = torch.randn(5, 8), torch.randn(8, 4), torch.randn(5, 4)
BATCH_A, BATCH_B, BATCH_C = torch.randn(3, 5, 8), torch.randn(3, 8, 4), torch.randn(3, 5, 4)

# In doubles, and not inside of an override, which would count them.
AB, BATCH_AB = (A.double() @ B.double()).float(), (BATCH_A.double() @ BATCH_B.double()).float()


def test_products_are_computed_by_our_kernels() -> None:
    """Those of small products sum in doubles: 1 + 2**-25 - 1 is not 0."""
    a, b = torch.full((4, 3), 2.0**-13), torch.full((3, 4), 2.0**-12)
    a[:, 0], b[0] = 1.0, 1.0
    a[:, 2], b[2] = -1.0, 1.0
    exact = (a.double() @ b.double()).float()
    with ours():
        assert torch.equal(torch.mm(a, b), exact)
        assert torch.equal(a @ b, exact)
    assert went() == {"mm": (2, 0)}
    assert {each.reason for each in tilesmith.stats().entries} == {"skinny"}


def test_every_operator_with_and_without_out() -> None:
    out, batch_out = torch.empty(4, 5).t(), torch.empty(3, 5, 4)
    with ours():
        close(torch.mm(A, B), AB)
        assert torch.mm(A, B, out=out) is out
        close(out, AB)
        close(torch.bmm(BATCH_A, BATCH_B), BATCH_AB)
        assert torch.bmm(BATCH_A, BATCH_B, out=batch_out) is batch_out
        close(batch_out, BATCH_AB)
        close(torch.addmm(C, A, B), C + AB)
        assert torch.addmm(C, A, B, out=out) is out
        close(out, C + AB)
        close(torch.baddbmm(BATCH_C, BATCH_A, BATCH_B), BATCH_C + BATCH_AB)
        torch.baddbmm(BATCH_C, BATCH_A, BATCH_B, out=batch_out)
        close(batch_out, BATCH_C + BATCH_AB)
    assert went() == dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), (2, 0))


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0, 2.5), (-0.5, 1), (2, 0.25)])
@pytest.mark.parametrize("addend", [C, C[:1], C[:, :1], C[0], C[0, 0]], ids=lambda c: "x".join(map(str, c.shape)))
def test_scaled_additions(addend: Tensor, beta: float, alpha: float) -> None:
    expected = (beta * addend.double() + alpha * (A.double() @ B.double())).float()
    out = torch.empty(5, 4)
    with ours():
        close(torch.addmm(addend, A, B, beta=beta, alpha=alpha), expected)
        close(torch.addmm(addend, A, B, beta=beta, alpha=alpha, out=out), expected)
    assert went() == {"addmm": (2, 0)}


def test_an_addition_with_a_beta_of_zero_ignores_nans_and_may_be_written_to_its_addend() -> None:
    nan, addend = torch.full((5, 4), torch.nan), C.clone()
    with ours():
        close(torch.addmm(nan, A, B, beta=0), AB)
        torch.addmm(addend, A, B, out=addend)
    close(addend, C + AB)
    assert went() == {"addmm": (2, 0)}


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 2.5), (-0.5, 1)])
def test_additions_in_place(beta: float, alpha: float) -> None:
    matrix, batch, total = C.clone(), BATCH_C.clone(), C.clone()
    with ours():
        assert matrix.addmm_(A, B, beta=beta, alpha=alpha) is matrix
        assert batch.baddbmm_(BATCH_A, BATCH_B, beta=beta, alpha=alpha) is batch
        total = torch.addbmm(total, BATCH_A, BATCH_B, beta=beta, alpha=alpha)
    close(matrix, beta * C + alpha * AB)
    close(batch, beta * BATCH_C + alpha * BATCH_AB)
    close(total, beta * C + alpha * BATCH_AB.sum(0))
    assert went() == {"addmm": (1 + len(BATCH_A), 0), "baddbmm": (1, 0)}


REACHED: list[tuple[str, Callable[[], Tensor], Tensor, dict[str, int]]] = [
    ("addbmm", lambda: torch.addbmm(C, BATCH_A, BATCH_B), C + BATCH_AB.sum(0), {"addmm": 3}),
    (
        "addbmm, out",
        lambda: torch.addbmm(C, BATCH_A, BATCH_B, out=torch.empty(5, 4)),
        C + BATCH_AB.sum(0),
        {"addmm": 3},
    ),
    ("addbmm_", lambda: C.clone().addbmm_(BATCH_A, BATCH_B), C + BATCH_AB.sum(0), {"addmm": 3}),
    ("row @ matrix", lambda: A[0] @ B, AB[0], {"mm": 1}),
    ("linear of a vector", lambda: nn.functional.linear(A[0], B.T), AB[0], {"mm": 1}),
    ("linear of a vector, bias", lambda: nn.functional.linear(A[0], B.T, C[0]), AB[0] + C[0], {"addmm": 1}),
    ("inner", lambda: torch.inner(A, B.T), AB, {"mm": 1}),
    ("multi_dot", lambda: torch.linalg.multi_dot([A, B, torch.eye(4)]), AB, {"mm": 2}),
    ("tensordot", lambda: torch.tensordot(A, B, 1), AB, {"mm": 1}),
    ("einsum by a vector", lambda: torch.einsum("ij,j->i", A, B[:, 0]), AB[:, 0], {"bmm": 1}),
]


@pytest.mark.parametrize(("call", "expected", "calls"), [pytest.param(*each[1:], id=each[0]) for each in REACHED])
def test_what_torch_makes_of_other_products_is_reached(
    call: Callable[[], Tensor], expected: Tensor, calls: dict[str, int]
) -> None:
    with ours():
        close(call(), expected)
    assert went() == {operator: (count, 0) for operator, count in calls.items()}


NOT_REACHED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mv": torch.mv,
    "addmv": lambda a, v: torch.addmv(a[:, 0], a, v, beta=2, alpha=0.5),
    "addmv_": lambda a, v: a[:, 0].clone().addmv_(a, v),
    "matrix @ column": lambda a, v: a @ v,
    "batch @ column": lambda a, v: a.expand(3, 5, 8) @ v,
    "dot": lambda a, v: torch.dot(a[1], v),
    "vdot": lambda a, v: torch.vdot(a[1], v),
    "row @ column": lambda a, v: a[1] @ v,
    "outer": lambda a, v: torch.outer(a[:, 0], v),
    "addr": lambda a, v: torch.addr(a, a[:, 0], v),
}


@pytest.mark.parametrize("name", NOT_REACHED)
def test_products_by_a_column_are_torchs_to_the_bit_and_so_are_their_gradients(name: str) -> None:
    def value_and_gradients() -> tuple[Tensor, ...]:
        a, v = A.clone().requires_grad_(), B[:, 0].clone().requires_grad_()
        result = NOT_REACHED[name](a, v)
        return result.detach(), *torch.autograd.grad(result.square().sum(), (a, v))

    expected = value_and_gradients()
    with ours():
        found = value_and_gradients()
    assert all(map(torch.equal, found, expected))
    assert went() == {}


def test_an_addition_in_place_has_gradients_and_torchs_errors() -> None:
    a, b, c = (x.clone().requires_grad_() for x in (A, B, C))
    with ours():
        c.mul(1.0).addmm_(a, b).sum().backward()
        with pytest.raises(RuntimeError, match="Bad in-place call"):
            C[:1].clone().addmm_(A, B)
        shared = torch.randn(4, 4)
        shared.addmm_(shared, shared)  # torch's, whatever it is
    assert a.grad is not None and b.grad is not None and c.grad is not None
    close(a.grad, B.sum(1).expand(5, 8))
    close(b.grad, A.sum(0)[:, None].expand(8, 4))
    close(c.grad, torch.ones(5, 4))
    assert "an out in the memory of an operand" in reasons()


def test_factors_that_leave_out_the_product_or_are_not_finite_are_torchs() -> None:
    special = A.clone()
    special[0, 0], special[1, 1] = torch.nan, torch.inf
    no_product, not_finite = "a factor of 0, which leaves out the product", "a factor that is no finite float32"
    for beta, alpha, reason in ((1, 0, no_product), (2, -0.0, no_product), (1, torch.inf, not_finite)):
        torchs = torch.addmm(C, special, B, beta=beta, alpha=alpha)
        with ours():
            close(torch.addmm(C, A, B, beta=2, alpha=3), 2 * C + 3 * AB)  # which does not decide for the next one
            found = torch.addmm(C, special, B, beta=beta, alpha=alpha)
        torch.testing.assert_close(found, torchs, rtol=0, atol=0, equal_nan=True)
        assert (went(), reasons()) == ({"addmm": (1, 1)}, {reason})


LOW_A, LOW_B, LOW_C = A.bfloat16(), B.T.contiguous().bfloat16().T, C.bfloat16()


def test_wider_results_of_16_bits() -> None:
    a, b, c = LOW_A, LOW_B, LOW_C
    product = (a.double() @ b.double()).float()
    out = torch.empty(5, 4)
    with ours():
        close(torch.mm(a, b, out_dtype=torch.float32), product)
        assert torch.mm(a, b, out_dtype=torch.float32, out=out) is out
        close(out, product)
        close(torch.addmm(c, a, b, out_dtype=torch.float32), c.float() + product)
        torch.addmm(C, a, b, out_dtype=torch.float32, out=out)
        close(out, C + product)
        assert torch.equal(torch.mm(a, b), product.bfloat16())
    assert went() == {"mm": (3, 0), "addmm": (2, 0)}


def test_additions_in_16_bits_are_rounded_once() -> None:
    a, b, c = LOW_A, LOW_B, LOW_C
    exact = a.double() @ b.double()
    with ours():
        assert torch.equal(torch.addmm(c, a, b), (c.double() + exact).float().bfloat16())
        assert torch.equal(torch.addmm(c[0], a, b), (c[0].double() + exact).float().bfloat16())
        assert torch.equal(torch.addmm(c, a, b, beta=0), exact.float().bfloat16())
    assert went() == {"addmm": (3, 0)}


def test_what_is_left_has_torchs_result_and_a_reason() -> None:
    expected = {}
    for dtype in (torch.float64, torch.complex64, torch.int32):
        a, b = (A * 9).to(dtype), (B * 9).to(dtype)
        expected[dtype] = a @ b
        with ours():
            assert torch.equal(torch.mm(a, b), expected[dtype])
        assert reasons() == {f"{str(dtype).removeprefix('torch.')} is left to torch"}
    with ours():
        assert torch.mm(torch.ones(2, 0), torch.ones(0, 2)).tolist() == [[0, 0], [0, 0]]
        square = torch.eye(4) * 2
        torch.mm(square, square, out=square)  # torch's own business, whatever it does
    assert reasons() == {"an empty operand", "an out in the memory of an operand"}


def test_errors_are_torchs() -> None:
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.mm(A, A),
        lambda: torch.mm(A, BATCH_B),
        lambda: torch.mm(A, B.double()),
        lambda: torch.bmm(BATCH_A, BATCH_B[:1]),
        lambda: torch.mm(A, B, out=torch.empty(5, 4, dtype=torch.int32)),
        lambda: torch.addmm(torch.ones(3, 3), A, B),
        lambda: torch.addmm(C, A, B, alpha=1j),
        lambda: torch.addmm(C, A, B, alpha=1e40),
        lambda: torch.addmm(C, A, B, beta=-1e40, out=torch.empty(5, 4)),
        lambda: torch.mm(A, B, out_dtype=torch.float64),
    ]
    for call in calls:
        with pytest.raises((RuntimeError, NotImplementedError)) as before:
            call()
        with ours(), pytest.raises(type(before.value)) as found:
            call()
        assert str(found.value)[:60] == str(before.value)[:60]


def test_an_out_of_another_size_is_resized_by_torch() -> None:
    out = torch.empty(0)
    with ours():
        torch.mm(A, B, out=out)
        close(out, AB)
        sparse = torch.sparse.mm(A.to_sparse(), B)
        negative = torch.mm(A.to(torch.complex64).conj().imag, B)
    close(sparse, AB)
    assert torch.equal(negative, torch.zeros(5, 4))
    assert "an out of another size, type or device" in reasons()


def test_include_exclude_and_min_flops() -> None:
    def multiply(**settings: object) -> dict[str, tuple[int, int]]:
        with ours(**settings):
            torch.mm(A, B)
            torch.bmm(BATCH_A, BATCH_B)
        return went()

    assert multiply(include="mm") == {"mm": (1, 0), "bmm": (0, 1)}
    assert reasons() == {"not in include"}
    assert multiply(exclude=["mm", "addmm"]) == {"mm": (0, 1), "bmm": (1, 0)}
    assert reasons() == {"in exclude"}
    assert multiply(include=()) == {"mm": (0, 1), "bmm": (0, 1)}
    assert multiply(include=lambda problem: problem.batches > 1) == {"mm": (0, 1), "bmm": (1, 0)}
    assert multiply(exclude=lambda problem: problem.k == 8) == {"mm": (0, 1), "bmm": (0, 1)}
    assert multiply(min_flops=2 * 5 * 8 * 4 + 1) == {"mm": (0, 1), "bmm": (1, 0)}
    assert reasons() == {"fewer than min_flops"}


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="include takes 'mm', 'addmm', 'bmm', 'baddbmm', or a function, not 'matmul'"):
        tilesmith.enable(include=["mm", "matmul"])
    with pytest.raises(ValueError, match="accuracy must be one of"), tilesmith.override("fp16"):
        pass


def test_the_accuracy_is_that_of_the_override_or_else_torchs() -> None:
    a, b = torch.randn(40, 300), torch.randn(300, 24)
    before = torch.backends.cuda.matmul.fp32_precision
    plans = {}
    for accuracy, precision in (("ieee", "tf32"), ("fp32", "tf32"), (None, "tf32"), (None, "ieee")):
        try:
            torch.backends.cuda.matmul.fp32_precision = precision
            # The plan alone: what it is called with goes to torch, after the question.
            asked: list[Problem] = []
            with ours(accuracy, exclude=lambda problem, asked=asked: asked.append(problem) or True):
                torch.mm(a, b)
            (problem,) = asked
            plans[accuracy, precision] = problem.accuracy
        finally:
            torch.backends.cuda.matmul.fp32_precision = before
    assert plans == {("ieee", "tf32"): "ieee", ("fp32", "tf32"): "fp32", (None, "tf32"): "tf32", (None, "ieee"): "fp32"}


@pytest.mark.parametrize(
    ("gpu", "dtype", "accuracy", "is_left"),
    [
        ("h200", torch.float16, "fp32", False),
        ("h200", torch.float32, "fp32", False),
        ("h200", torch.float32, "tf32", False),
        ("h200", torch.float32, "ieee", False),
        ("a100", torch.bfloat16, "fp32", True),
        ("a100", torch.float32, "fp32", False),
        ("a100", torch.float32, "tf32", True),
        ("t4", torch.float16, "fp32", True),
        ("t4", torch.bfloat16, "fp32", False),
        ("t4", torch.float32, "tf32", False),
    ],
)
def test_what_torchs_tensor_cores_do_is_left_to_them_on_other_gpus(
    gpu: str, dtype: torch.dtype, accuracy: str, is_left: bool
) -> None:
    a = torch.empty(1024, 1024, dtype=dtype, device="meta")
    reason = torch_is_faster(choose(Problem.of(a, a, accuracy=accuracy), named(gpu)))  # type: ignore[arg-type]
    assert (reason is not None) == is_left
    assert reason is None or reason.endswith(f"was not measured on {named(gpu).name}")


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ((4096, 4096), (4096, 4096), None),
        ((16, 4096, 4096), (16, 4096, 4096), None),
        ((8191, 4096), (4096, 8191), None),  # torch is slow, too
        ((200, 300, 8), (200, 8, 131), "lines that are not aligned"),
        ((8, 7, 2), (8, 2, 403), None),  # too small to matter
        ((7683, 6774), (6774, 2), "for a few rows or columns"),
        ((7683, 6774), (6774, 128), "not many rows or columns"),
        ((7683, 6774), (6774, 512), None),
        ((8192, 4096), (4096, 4), None),  # aligned as it is
        ((112, 488, 1464), (112, 1464, 280), "do not fill our tiles"),
        ((64, 1024, 1024), (64, 1024, 1024), None),
    ],
)
def test_16_bit_products_that_torch_does_faster_are_left_to_it(
    a: tuple[int, ...], b: tuple[int, ...], reason: str | None
) -> None:
    def left(dtype: torch.dtype) -> str | None:
        operands = (torch.empty(shape, dtype=dtype, device="meta") for shape in (a, b))
        return torch_is_faster(choose(Problem.of(*operands), named("h200")))

    found = left(torch.bfloat16)
    assert found is None if reason is None else found is not None and reason in found
    assert left(torch.float32) is None


def test_on_a_gpu_a_product_is_prepared_once_but_not_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The routes of CUDA tensors, with CPU tensors and without a launch."""
    made: list[str] = []
    is_capturing = True

    def compiled(plan: Plan, index: int) -> Callable[[Tensor, Tensor], Tensor]:
        if is_capturing:
            raise ColdCaptureError("not loaded yet")
        made.append(plan.name)
        return torch.mm

    monkeypatch.setattr("tilesmith.core.device.installed", lambda index: named("h200"))
    monkeypatch.setattr("tilesmith.runtime.executor.compiled", compiled)
    routes = Routes(Settings(), executor.CUDA)
    assert routes.find("mm", A, B)[0] is None
    is_capturing = False
    run, count = routes.find("mm", A, B)
    assert run is torch.mm and made == ["skinny"]
    assert routes.find("mm", A.clone(), B.clone()) == (run, count)
    assert made == ["skinny"]
    assert routes.find("addmm", A, B, None, None, C, (1, 1))[1] is not count
    assert made == ["skinny", "skinny"]


def test_on_a_gpu_a_plain_sum_has_a_way_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decided as any other, and launches with the same buffers."""
    launched: list[tuple[int, ...]] = []
    is_capturing = True

    def compiled(plan: Plan, index: int) -> executor.CompiledPlan:
        if is_capturing:
            raise ColdCaptureError("not loaded yet")
        return executor.CompiledPlan(plan, 0, "launches")  # type: ignore[arg-type]

    def launch(self: executor.CompiledPlan, stream: int, buffers: tuple[int, ...]) -> None:
        launched.append(buffers)

    result = torch.empty(A.shape[0], B.shape[1])
    monkeypatch.setattr("tilesmith.core.device.installed", lambda index: named("h200"))
    monkeypatch.setattr("tilesmith.runtime.executor.compiled", compiled)
    monkeypatch.setattr("tilesmith.runtime.executor.CompiledPlan._launch", launch)
    monkeypatch.setattr("tilesmith.runtime.workspace.empty_strided", lambda *layout: result)
    for name in ("_cuda_getDevice", "_cuda_isCurrentStreamCapturing", "_cuda_getCurrentRawStream"):
        monkeypatch.setattr(torch._C, name, lambda *_: 0, raising=False)
    routes = Routes(Settings(), executor.CUDA)
    assert routes.find("addmm", A, B, None, None, C)[0] is None
    is_capturing = False
    for c in (C, C[0], C[:, :1]):
        add, count = routes.find("addmm", A, B, None, None, c)
        run, same_count = routes.find("addmm", A, B, None, None, c, (1, 1))
        assert add is not None and run is not None and count is same_count
        assert routes.find("addmm", A, B, None, None, c) == (add, count)
        assert add(A, B, c) is run(A, B, None, None, epilogue_of((c, 1, 1))) is result
        short, long = launched[-2:]
        assert short == long and c.data_ptr() in short


def test_enable_and_disable() -> None:
    before = registered()
    with tilesmith.emulate():
        tilesmith.enable()
        assert registered() != before
        torch.mm(A, B)
        tilesmith.enable(include="bmm")
        torch.mm(A, B)
        with tilesmith.override():
            tilesmith.disable()
            torch.mm(A, B)
        assert went() == {"mm": (2, 1)}
        torch.mm(A, B)
        tilesmith.disable()
    assert registered() == before
    assert went() == {"mm": (2, 1)}


def test_scopes_nest_and_end_after_exceptions() -> None:
    with ours("ieee"):
        torch.mm(A, B)
        with pytest.raises(ZeroDivisionError), tilesmith.override(include=()):
            torch.mm(A, B)
            1 / 0  # noqa: B018
        torch.mm(A, B)
    assert went() == {"mm": (2, 1)}
    with ours():
        assert went() == {}  # an outermost scope counts anew


def test_without_emulation_cpu_tensors_are_torchs() -> None:
    expected = A @ B
    before = registered()
    with tilesmith.override():  # of a torch without CUDA: nothing
        assert torch.equal(A @ B, expected)
        if not torch.backends.cuda.is_built():
            assert registered() == before
    with ours(), ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: A @ B).result()  # in a thread that is not in emulate
    assert torch.equal(found, expected)
    assert reasons() == {"on the CPU, outside of tilesmith.emulate"}


def test_another_override_before_ours_is_the_previous_kernel_and_stays() -> None:
    library = torch.library.Library("aten", "IMPL")
    marked = torch.zeros(1)
    library.impl("mm", lambda a, b: marked, "CPU", allow_override=True)
    try:
        with ours():
            assert torch.mm(A.double(), B.double()).shape == (1,)
            assert torch.mm(A, B).shape == (5, 4)
        assert torch.mm(A, B).shape == (1,)
    finally:
        library._destroy()


def test_a_predicate_may_multiply() -> None:
    def is_large(problem: Problem) -> bool:
        return bool((torch.ones(3, 3) @ torch.ones(3, 3)).sum() == 27)

    with ours(include=is_large):
        close(torch.mm(A, B), AB)
    assert went() == {"mm": (1, 1)}
    assert reasons() == {"called while another product was planned"}


def test_many_threads() -> None:
    def work(_: int) -> None:
        for _ in range(5):
            with ours():
                close(torch.mm(A, B), AB)

    with ours(), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4
    assert went() == {"mm": (20, 0)}


def test_scopes_may_begin_and_end_while_other_threads_multiply() -> None:
    """In a process of its own: what went wrong here was memory that had been freed."""
    script = """
import threading, time, torch, tilesmith
a, b = torch.randn(5, 8), torch.randn(8, 4)
expected, wrong, done = a @ b, [], threading.Event()

def work():
    while not done.is_set():
        if not torch.equal(torch.mm(a, b), expected):
            wrong.append(1)

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
end, scopes = time.monotonic() + 1.5, 0
with tilesmith.emulate():
    while time.monotonic() < end:
        with tilesmith.override():
            scopes += 1
done.set()
for thread in threads:
    thread.join()
assert not wrong and scopes > 50
"""
    environment = os.environ | {"PYTHONPATH": str(Path(tilesmith.__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_times_on_request() -> None:
    with ours():
        torch.mm(A, B)
        assert [each.seconds for each in tilesmith.stats().entries] == [None]
        assert "ms" not in str(tilesmith.stats())
        with tilesmith.override(times=True):
            torch.mm(A, B)
            torch.mm(A.double(), B.double())
    assert all(each.seconds is not None and 0 < each.seconds < 10 for each in tilesmith.stats().entries)
    assert "calls  ms" in str(tilesmith.stats()).splitlines()[0]


def test_compiled_programs() -> None:
    linear, x = nn.Linear(8, 4), A.clone().requires_grad_()
    compiled = torch.compile(lambda x: torch.relu(linear(x)) @ C.T, backend="aot_eager", fullgraph=True)
    expected = torch.relu(linear(x)) @ C.T
    with ours():
        found = compiled(x)
        found.sum().backward()
    close(found, expected)
    torch.testing.assert_close(x.grad, torch.autograd.grad(expected.sum(), x)[0], rtol=1e-4, atol=1e-4)
    assert went()["addmm"] == (1, 0) and went()["mm"][0] >= 4 and went()["mm"][1] == 0
    calls = sum(left + taken for left, taken in went().values())
    with torch._dynamo.config.patch(error_on_recompile=True):
        close(compiled(x), expected)
        assert sum(left + taken for left, taken in went().values()) == calls  # by torch: nobody counted
        with ours():
            close(compiled(x), expected)
    assert went() == {"addmm": (1, 0), "mm": (1, 0)}


def test_dispatch_modes_see_torchs_operators() -> None:
    with ours(), Seen() as seen:
        close(torch.mm(A, B), AB)
    assert seen.calls[0][0] == "aten.mm.default"
    assert went() == {"mm": (1, 0)}
