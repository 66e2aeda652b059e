"""At home in PyTorch: streams, graphs, threads, gradients, compiled code, errors. Whole programs are in
test_programs_on_gpu.py."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from guarded import assert_same
from operator_arguments import OF_MATMUL, OF_MATMUL_OUT, arguments, arguments_with_out
from torch.library import opcheck

import tilesmith
from tilesmith.runtime import executor, loading
from tilesmith.torch_ops import dispatch
from tilesmith.torch_ops import matmul as op


def ints(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, whose products are exact in every type."""
    return torch.randint(-4, 5, shape, device="cuda").to(dtype)


def test_plain_calls_skip_the_dispatcher_and_others_do_not() -> None:
    a, b = ints(4, 4), ints(4, 4)
    assert dispatch.is_plain(a, b)
    assert not dispatch.is_plain(a.requires_grad_(), b)
    with torch.no_grad():
        assert dispatch.is_plain(a, b)
    with torch.autocast("cuda"):
        assert not dispatch.is_plain(b, b)
    assert not dispatch.is_plain(b, b.cpu())
    assert not dispatch.is_plain(b.to_sparse(), b)


def test_the_current_stream_is_used() -> None:
    a, b = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
    expected = tilesmith.matmul(a, b)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        result = tilesmith.matmul(a, b)
        done = stream.record_event()
    assert not done.query(), "the product did not wait for its stream"
    stream.synchronize()
    assert_same(result, expected)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    executor._compiled.clear()
    monkeypatch.setattr(loading, "_functions", {})


@pytest.mark.usefixtures("nothing_loaded")
def test_warmup_takes_shapes_and_suffices_for_a_capture() -> None:
    tilesmith.warmup([((48, 40), (40, 56)), ((2, 9, 8), (8, 4))], dtype=torch.bfloat16)
    a, b = ints(48, 40, dtype=torch.bfloat16), ints(40, 56, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tilesmith.matmul(a, b)
    graph.replay()
    assert_same(result, torch.matmul(a, b))


@pytest.mark.usefixtures("nothing_loaded")
def test_a_cold_kernel_inside_a_capture_is_an_error_that_names_warmup() -> None:
    a, b = ints(48, 40), ints(40, 56)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with pytest.raises(tilesmith.ColdCaptureError, match=r"tilesmith\.warmup"), torch.cuda.graph(graph):
        tilesmith.matmul(a, b)
    assert_same(tilesmith.matmul(a, b), torch.matmul(a, b))  # and nothing is left broken


@pytest.mark.usefixtures("nothing_loaded")
def test_many_threads_and_streams_at_once() -> None:
    start = threading.Barrier(8)

    def work(seed: int) -> bool:
        start.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            right = True
            for i in range(60):
                size = 16 * (1 + (seed + i) % 4)
                a, b = ints(size, 40), ints(40, size)
                right &= torch.equal(tilesmith.matmul(a, b), torch.matmul(a, b))
            return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_thread_that_made_no_cuda_call_yet_can_multiply() -> None:
    a, b = ints(40, 40), ints(40, 40)
    tilesmith.matmul(a, b)
    with ThreadPoolExecutor(1) as pool:
        assert_same(pool.submit(tilesmith.matmul, a, b).result(), torch.matmul(a, b))


@pytest.mark.parametrize("name", OF_MATMUL)
def test_opcheck_with_arguments_of_every_kind(name: str) -> None:
    opcheck(op.matmul, *arguments(name, "cuda"))


@pytest.mark.parametrize("name", OF_MATMUL_OUT)
def test_opcheck_of_out_with_arguments_of_every_kind(name: str) -> None:
    opcheck(op.matmul_out, *arguments_with_out(name, "cuda"))


def test_compile_with_dynamic_shapes_and_out() -> None:
    def model(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return tilesmith.matmul(x, w, out=out) * 2

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (8, 24, 40):
        x, w, out = ints(rows, 16), ints(16, 32), torch.empty(rows, 32, device="cuda")
        assert_same(compiled(x, w, out), 2 * torch.matmul(x, w))
        assert_same(out, torch.matmul(x, w))


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 2), (2, 1)], ids=str)
def test_vmap(in_dims: tuple[int | None, int | None]) -> None:
    a = ints(6, 6, 6) if in_dims[0] is not None else ints(6, 6)
    b = ints(6, 6, 6) if in_dims[1] is not None else ints(6, 6)
    assert_same(torch.vmap(tilesmith.matmul, in_dims)(a, b), torch.vmap(torch.matmul, in_dims)(a, b))


def test_a_negated_view_is_read_with_its_sign() -> None:
    z = torch.complex(ints(8, 8), ints(8, 8))
    imaginary = z.conj().imag
    assert imaginary.is_neg()
    assert_same(tilesmith.matmul(imaginary, ints(8, 8).fill_(1)), torch.matmul(imaginary, ints(8, 8).fill_(1)))


def test_out_may_overlap_an_operand() -> None:
    a, b = ints(32, 32), ints(32, 32)
    expected = torch.matmul(a, b)
    assert_same(tilesmith.matmul(a, b, out=a), expected)


def test_out_of_another_shape_is_resized_with_a_warning() -> None:
    a, b, out = ints(4, 5), ints(5, 6), ints(2, 2)
    with pytest.warns(UserWarning, match="was resized"):
        tilesmith.matmul(a, b, out=out)
    assert_same(out, torch.matmul(a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(tilesmith.matmul(a, b, out=torch.empty(0, device="cuda")), out)


def raised(call: object) -> BaseException:
    assert callable(call)
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def test_bad_operands_raise_what_torch_raises() -> None:
    f32 = ints(3, 4)
    cases: list[tuple[torch.Tensor, torch.Tensor]] = [
        (f32, ints(5, 6)),
        (f32, ints(4, 6, dtype=torch.float64)),
        (f32, torch.ones(4, 6)),
        (torch.ones(3, 4), ints(4, 6)),
        (f32.bool(), ints(4, 6).bool()),
        (torch.tensor(1.0, device="cuda"), f32),
        (ints(2, 3, 4), ints(3, 4, 5)),
        (ints(4), ints(5)),
    ]
    for a, b in cases:
        ours, torchs = raised(lambda a=a, b=b: tilesmith.matmul(a, b)), raised(lambda a=a, b=b: torch.matmul(a, b))
        assert isinstance(ours, RuntimeError) and isinstance(torchs, RuntimeError)
        assert type(ours) is type(torchs), (ours, torchs)


def test_unsupported_kinds_say_so() -> None:
    a = ints(4, 4)
    with pytest.raises(NotImplementedError, match="complex64"):
        tilesmith.matmul(a.to(torch.complex64), a.to(torch.complex64))
    with pytest.raises(NotImplementedError, match="sparse_coo"):
        tilesmith.matmul(a.to_sparse(), a)
    with pytest.raises(RuntimeError, match=r"torch\.float64"):
        tilesmith.matmul(a, a, out_dtype=torch.float64)
    with pytest.raises(ValueError, match="exact"):
        tilesmith.matmul(a, a, accuracy="exact")


def test_the_out_operator_itself_refuses_an_out_of_another_shape() -> None:
    a, out = ints(4, 4), ints(2, 2)
    before = out.clone()
    with pytest.raises(RuntimeError, match=r"out has shape \[2, 2\]"):
        op.matmul_out(a, a, out=out)
    assert_same(out, before)
