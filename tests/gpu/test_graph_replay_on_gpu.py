"""Short products that come again with the same buffers, and so are launched as a recorded graph: they compute anew."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tilesmith
from tilesmith.bench.errors import error
from tilesmith.runtime import executor, graph_replay

pytestmark = pytest.mark.gpu

# One launch, two, four, and five: with a split K.
SHAPES = (
    (torch.float32, 64, 64, 64),
    (torch.bfloat16, 63, 63, 63),
    (torch.float32, 900, 700, 800),
    (torch.float32, 256, 8192, 256),
)
OFTEN = 3 * graph_replay._MIN_LAUNCHES


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    executor._compiled.clear()
    yield


def recorded() -> int:
    return sum(len(each._graphs) for each in executor._compiled.values())


def is_right(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    return error(out, a, b).norm < (1e-6 if a.dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize(("dtype", "m", "k", "n"), SHAPES)
def test_new_values_in_the_same_buffers(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    a, b = torch.empty(m, k, device="cuda", dtype=dtype), torch.empty(k, n, device="cuda", dtype=dtype)
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    for i in range(OFTEN):
        a.normal_()
        b.normal_()
        out.fill_(float("nan"))
        tilesmith.matmul(a, b, out=out)
        assert is_right(out, a, b), i
    assert recorded() == 1
    a[0, 0] = float("inf")  # the bf16x3 scheme, which the recording has as well
    tilesmith.matmul(a, b, out=out)
    assert not out[0].isfinite().any() and out[1:].isfinite().all()


def test_new_factors_and_addends() -> None:
    a, b, c = (torch.randn(96, 96, device="cuda") for _ in "abc")
    with tilesmith.override():
        for i in range(OFTEN):
            c.normal_()
            beta = 1.0 if i % 2 else 0.5
            torch.testing.assert_close(torch.addmm(c, a, b, beta=beta), beta * c + (a.double() @ b.double()).float())


@pytest.mark.parametrize(("dtype", "m", "k", "n"), SHAPES)
def test_a_capture_has_the_launches_themselves(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    a, b = torch.randn(m, k, device="cuda").to(dtype), torch.randn(k, n, device="cuda").to(dtype)
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    for _ in range(OFTEN):
        tilesmith.matmul(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilesmith.matmul(a, b, out=out)
    a.normal_()
    out.fill_(float("nan"))
    graph.replay()
    assert is_right(out, a, b)


@pytest.mark.parametrize(("dtype", "m", "k", "n"), SHAPES)
def test_other_streams(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    """Each has its own workspace: of realigned operands, of terms, and of partial products."""
    a, b = torch.randn(m, k, device="cuda").to(dtype), torch.randn(k, n, device="cuda").to(dtype)
    outs = [torch.empty(m, n, device="cuda", dtype=dtype) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in outs]
    for i in range(OFTEN):
        a.normal_()
        torch.cuda.synchronize()
        for stream, out in zip(streams, outs, strict=True):
            with torch.cuda.stream(stream):
                out.fill_(float("nan"))
                tilesmith.matmul(a, b, out=out)
        torch.cuda.synchronize()
        assert all(is_right(out, a, b) for out in outs), i
    assert recorded() == len(outs)


def test_threads_on_one_stream() -> None:
    """They borrow one workspace after the other, and take turns with what is recorded."""
    inputs = [(torch.randn(n, 301, device="cuda").half(), torch.randn(301, 203, device="cuda").half()) for n in (7, 90)]

    def multiply(a: torch.Tensor, b: torch.Tensor) -> bool:
        results = [tilesmith.matmul(a, b) for _ in range(200)]
        return all(is_right(out, a, b) for out in results[::20])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(multiply, *zip(*(3 * inputs), strict=True)))


def test_what_is_not_used_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replay, "_MAX_GRAPHS", len(graph_replay._all) + 2)
    monkeypatch.setattr(graph_replay, "_MIN_UNUSED_SECONDS", 0.0)
    a, b = torch.randn(64, 65, device="cuda"), torch.randn(65, 66, device="cuda")
    outs = [torch.empty(64, 66, device="cuda") for _ in range(12)]
    for _ in range(3):
        for out in outs:
            for _ in range(OFTEN):
                out.fill_(float("nan"))
                tilesmith.matmul(a, b, out=out)
                assert is_right(out, a, b)
    assert 0 < recorded() <= graph_replay._MAX_GRAPHS
