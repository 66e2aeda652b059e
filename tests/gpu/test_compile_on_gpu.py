"""Compiled programs on a GPU: whose kernels run, that they compute what float64 does, and that nothing breaks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

import tilesmith

BF16, FP32 = torch.bfloat16, torch.float32


class Block(nn.Module):
    """All that a launch takes with a product: bias, residual, relu, gelu in both ways, silu."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate, self.other = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.back = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        x = x + self.down(functional.gelu(self.up(x), approximate="tanh"))
        x = x + self.back(functional.silu(self.gate(x)) * self.other(x))
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def made(dtype: torch.dtype, rows: int = 96) -> tuple[Block, Tensor]:
    model = Block().to("cuda", dtype)
    return model, torch.randn(4, rows, 256, device="cuda").to(dtype)


def results(model: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The output, and the gradients of all parameters and of x."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = run(x)
    y.square().mean().backward()
    gradients = [each.grad for each in (*model.parameters(), x) if each.grad is not None]
    return [y.detach().double(), *(each.double() for each in gradients)]


def assert_no_worse(model: nn.Module, x: Tensor, ours: list[Tensor], torchs: list[Tensor]) -> None:
    """Beside torch's own compiled program, by the norm of what differs from float64."""
    exact_model = deepcopy(model).double()
    exact = results(exact_model, exact_model, x.double())
    for found, other, truth in zip(ours, torchs, exact, strict=True):
        norm = truth.norm()
        assert (found - truth).norm() / norm <= 1.5 * (other - truth).norm() / norm + 2e-6


def of_compiled_programs() -> dict[str, int]:
    """Calls by operator, of products that were compiled as ours or came by the dispatcher."""
    found: dict[str, int] = {}
    for each in tilesmith.stats().entries:
        if each.where == "tilesmith":
            found[each.operator] = found.get(each.operator, 0) + each.calls
    return found


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [(BF16, "default"), (BF16, "reduce-overhead"), (BF16, "max-autotune-no-cudagraphs"), (FP32, "default")],
    ids=str,
)
def test_training_is_as_exact_as_torchs(dtype: torch.dtype, mode: str) -> None:
    model, x = made(dtype)
    torchs = results(model, torch.compile(model), x)
    torch._dynamo.reset()
    with tilesmith.override():
        compiled = torch.compile(model, fullgraph=True, mode=mode)
        for _ in range(3):  # with reduce-overhead: as it is, captured, replayed
            torch.compiler.cudagraph_mark_step_begin()
            ours = results(model, compiled, x)
    assert_no_worse(model, x, ours, torchs)
    assert of_compiled_programs().keys() == {"mm", "addmm"}


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_what_follows_is_in_the_launches(dtype: torch.dtype) -> None:
    model, x = made(dtype)
    with torch.no_grad(), tilesmith.override():
        _, (code,) = run_and_get_code(torch.compile(model, fullgraph=True), x)
    for activation in ("relu", "gelu", "gelu_tanh"):
        assert f"activation='{activation}'" in code
    assert "extern_kernels.mm" not in code
    assert "extern_kernels.addmm" not in code
    assert code.count("has_residual=True") == 2  # of two kinds: those of `down` are one
    assert "layouts=" in code


def test_dynamic_shapes_are_compiled_once() -> None:
    model, _ = made(BF16)
    with tilesmith.override(), torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for rows in (96, 33, 200):
            x = made(BF16, rows)[1]
            found = results(model, compiled, x)
            exact_model = deepcopy(model).double()
            for each, truth in zip(found, results(exact_model, exact_model, x.double()), strict=True):
                assert (each - truth).norm() <= 0.05 * truth.norm()


def test_gradients_of_weights_in_float32() -> None:
    """Autocast: products in bfloat16, weights and gradients in float32."""
    model, x = made(FP32)

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=BF16):
            return model(x)  # type: ignore[no-any-return]

    torchs = results(model, torch.compile(run), x)
    torch._dynamo.reset()
    with tilesmith.override():
        ours = results(model, torch.compile(run, fullgraph=True), x)
    assert_no_worse(model, x, ours, torchs)
    assert all(each.dtype == FP32 for each in model.parameters())


def test_a_vocabulary_that_inductor_pads() -> None:
    """Logits are as long as they are, and their gradient is copied once, to lines that are aligned."""
    model, x = nn.Linear(768, 5003, bias=False).to("cuda", BF16), torch.randn(2, 512, 768, device="cuda").to(BF16)
    with inductor_config.patch(force_shape_pad=True):
        torchs = results(model, torch.compile(model), x)
        torch._dynamo.reset()
        with tilesmith.override():
            ours, codes = run_and_get_code(results, model, torch.compile(model, fullgraph=True), x)
    assert_no_worse(model, x, ours, torchs)
    assert "(5008, 1)" in "".join(codes)
    assert ours[0].is_contiguous()


def test_a_program_without_an_override_is_inductors() -> None:
    model, x = made(BF16)
    with torch.no_grad():
        with tilesmith.override():
            torch.compile(model)(x)
        torch._dynamo.reset()
        _, (code,) = run_and_get_code(torch.compile(model), x)
    assert "tilesmith" not in code


def test_a_backend_of_its_own() -> None:
    from tilesmith.inductor.backend import backend

    model, x = made(BF16)
    torchs = results(model, torch.compile(model), x)
    torch._dynamo.reset()
    ours = results(model, torch.compile(model, backend=backend, fullgraph=True), x)
    assert_no_worse(model, x, ours, torchs)


def test_what_is_left_is_torchs_when_it_runs_too() -> None:
    a = torch.randn(7683, 6774, device="cuda", dtype=BF16)
    b = torch.randn(6774, 2, device="cuda", dtype=BF16)
    program = torch.compile(lambda a, b: torch.cumsum(a @ b, 0))
    with torch.no_grad():
        with tilesmith.override():  # Inductor may time padded products, which are ours
            _, (code,) = run_and_get_code(program, a, b)
        with tilesmith.override():
            found = program(a, b)
    assert "tilesmith" not in code
    assert found.shape == (7683, 2)
    assert {each.where for each in tilesmith.stats().entries} <= {"torch"}


SCRIPT = """
import json, sys, torch, tilesmith
from torch._dynamo.utils import counters
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).cuda().bfloat16()
x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
tilesmith.enable()
y = torch.compile(model, fullgraph=True)(x)
y.float().square().mean().backward()
print(json.dumps({
    "hits": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
    "misses": counters["inductor"]["fxgraph_cache_miss"],
    "graph breaks": sum(counters["graph_break"].values()),
    "ours": tilesmith.stats().calls("tilesmith"),
    "sum": y.double().sum().item(),
}))
"""


def test_a_second_process_compiles_from_the_cache(tmp_path: Path) -> None:
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def run() -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]

    first, second = run(), run()
    assert first["misses"] > 0
    assert second["misses"] == 0
    assert second["hits"] > 0
    assert first["graph breaks"] == second["graph breaks"] == 0
    assert first["ours"] == second["ours"] > 0
    assert first["sum"] == second["sum"]
