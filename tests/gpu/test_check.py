"""The judge on the GPU: a right kernel with its speed, and the tricks that only a GPU can show."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from candidates import HONEST, UNINITIALISED, naive

from tilesmith.core.device import installed
from tilesmith.kernelbench.check import sanitizer
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.strict import L2_UNTOUCHED, OWN_KERNELS, POSSIBLE, UNTOUCHED
from tilesmith.kernelbench.check.verdict import PRECISION, Verdict
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import recognize
from tilesmith.kernelbench.write import written

PROBLEM = """
import torch
from torch import nn
M, K, N = 512, 384, 256
class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
def get_inputs():
    return [torch.rand(M, K), torch.rand(K, N)]
def get_init_inputs():
    return []
"""

# Without a kernel of its own, so that nothing has to be compiled.
PLAIN = """
import ctypes
import torch
from torch import nn
SIDE = torch.cuda.Stream()
def product(a, b):
    return (a[:, :, None] * b[None]).sum(1)
def cut(x):
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
class ModelNew(nn.Module):
    def forward(self, a, b):
        {body}
"""
BODIES = {
    "right": "return product(a, b)",
    "tf32": "return product(cut(a), cut(b))",
    "library": "return torch.matmul(a, b)",
    "stale memory": "return torch.empty(a.shape[0], b.shape[1], device='cuda')",
    "clock": "torch.cuda.Event.elapsed_time = lambda self, end: 1e-6; return product(a, b)",
    "keeps L2": "ctypes.CDLL('libcuda.so.1').cuCtxSetLimit(6, ctypes.c_size_t(2**20)); return product(a, b)",
    "other stream": """
        with torch.cuda.stream(SIDE):
            return product(a, b)
    """.strip(),
}


def judge_of(problem: str, folders: pytest.TempPathFactory) -> Iterator[Judge]:
    path = folders.mktemp("problem") / "problem.py"
    path.write_text(problem)
    with Judge(path) as judge:
        yield judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    yield from judge_of(PROBLEM, tmp_path_factory)


def judged(judge: Judge, folder: Path, source: str, *, accuracy: str = "fp32", sanitize: bool = False) -> Verdict:
    path = folder / "candidate.py"
    path.write_text(source)
    return judge(path, accuracy=accuracy, sanitize=sanitize)


def plain(name: str) -> str:
    return PLAIN.format(body=BODIES[name])


def failed(verdict: Verdict) -> list[str]:
    return [each.name for each in verdict.findings if each.passed is False]


def test_a_kernel_that_is_right_has_a_speed(judge: Judge, tmp_path: Path) -> None:
    verdict = judged(judge, tmp_path, naive("0"), sanitize=True)
    assert failed(verdict) == []
    assert verdict.precision == "fp32"
    assert verdict.finding(POSSIBLE).passed
    assert verdict.finding(sanitizer.NAME).passed is (None if sanitizer.find() is None else True)
    assert verdict.speed is not None and list(verdict.speed.torch) == ["fp32"]
    assert 0 < verdict.speed.candidate.lower <= verdict.speed.candidate.median <= verdict.speed.candidate.upper
    assert verdict.speed.roofline_percent is None or 0 < verdict.speed.roofline_percent < 100


@pytest.fixture(scope="module")
def large_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Of a product that keeps the GPU busy."""
    yield from judge_of(PROBLEM.replace("512, 384, 256", "2048, 2048, 2048"), tmp_path_factory)


@pytest.mark.parametrize(("name", "least", "most"), [("tiled", 0.08, 0.35), ("register-blocked", 0.15, 0.7)])
def test_honest_kernels_pass_with_their_honest_ratio(
    large_judge: Judge, tmp_path: Path, name: str, least: float, most: float
) -> None:
    verdict = judged(large_judge, tmp_path, HONEST[name])
    assert failed(verdict) == []
    assert verdict.precision == "fp32"
    assert verdict.speed is not None
    assert least < verdict.speed.torch["fp32"].median / verdict.speed.candidate.median < most


def test_our_own_module_passes_and_is_faster(large_judge: Judge, tmp_path: Path) -> None:
    problem = ProblemFile.read(large_judge.problem)
    verdict = judged(large_judge, tmp_path, written(problem, recognize(problem), installed(0), "fp32"))
    assert failed(verdict) == []
    assert verdict.precision == "fp32"
    assert verdict.speed is not None and verdict.speed.torch["fp32"].median / verdict.speed.candidate.median > 2


def test_sums_that_begin_with_what_shared_memory_has(judge: Judge, tmp_path: Path) -> None:
    assert "given inputs" in failed(judged(judge, tmp_path, UNINITIALISED))


def test_official(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text(plain("library"))
    verdict = judge(tmp_path / "candidate.py", mode="official")
    assert verdict.right
    assert verdict.speed is not None and 0.3 < verdict.speed.torch["fp32"].mean / verdict.speed.candidate.mean < 3


def test_an_illegal_address_is_a_verdict(judge: Judge, tmp_path: Path) -> None:
    verdict = judged(judge, tmp_path, naive("(1ll << 40)"))
    assert "CUDA error" in verdict.finding("given inputs").detail
    assert verdict.finding("given inputs").passed is False
    assert verdict.finding("large").passed is None


def test_a_kernel_that_does_not_build(judge: Judge, tmp_path: Path) -> None:
    verdict = judged(judge, tmp_path, naive("nothing"))
    assert failed(verdict) == ["builds"]
    assert 'identifier "nothing" is undefined' in verdict.finding("builds").detail


def test_tf32_is_timed_beside_tf32(judge: Judge, tmp_path: Path) -> None:
    assert failed(judged(judge, tmp_path, plain("tf32"))) == [PRECISION]
    verdict = judged(judge, tmp_path, plain("tf32"), accuracy="tf32")
    assert verdict.right
    assert verdict.speed is not None
    assert list(verdict.speed.torch) == ["fp32", "tf32"]


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("library", OWN_KERNELS),
        ("stale memory", "given inputs"),
        ("clock", UNTOUCHED),
        ("keeps L2", L2_UNTOUCHED),
        ("other stream", "given inputs"),
    ],
)
def test_tricks(judge: Judge, tmp_path: Path, name: str, finding: str) -> None:
    verdict = judged(judge, tmp_path, plain(name))
    assert finding in failed(verdict)
    assert verdict.speed is None


def test_the_same_without_a_trick(judge: Judge, tmp_path: Path) -> None:
    assert failed(judged(judge, tmp_path, plain("right"))) == []
