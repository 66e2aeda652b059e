"""The model of the tensor cores' sums, which the emulator's arithmetic is held to, against those of the GPU."""

import numpy as np
import pytest
import torch
from tensor_core_model import WGMMA_K, tensor_core_step

import tilesmith
from tilesmith.core.device import installed
from tilesmith.core.problem import Problem
from tilesmith.planner import choose


@pytest.mark.parametrize("depth", [16, 64])
@pytest.mark.parametrize("spread", [0, 4, 12])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_the_models_to_the_last_bit(dtype: torch.dtype, spread: int, depth: int) -> None:
    """Of numbers whose exponents are within `spread` of 0."""
    generator = torch.Generator().manual_seed(depth + spread)

    def numbers(rows: int, columns: int) -> torch.Tensor:
        exponents = torch.randint(-spread, spread + 1, (rows, columns), generator=generator)
        return torch.ldexp(torch.randn(rows, columns, generator=generator), exponents).to(dtype)

    a, b = numbers(128, depth), numbers(depth, 128)
    plan = choose(Problem.of(a.cuda(), b.cuda(), out_dtype=torch.float32), installed(0))
    assert plan.name.startswith("hopper ") and plan.split_k == 1

    ours = tilesmith.matmul(a.cuda(), b.cuda(), out_dtype=torch.float32).cpu().numpy()
    total = np.zeros((128, 128))
    x, y = a.double().numpy(), b.double().numpy()
    for k in range(0, depth, WGMMA_K):
        total = tensor_core_step(total, x[:, k : k + WGMMA_K], y[k : k + WGMMA_K], str(dtype).removeprefix("torch."))
    differs = ours != total
    assert not differs.any(), f"{differs.mean():.2%} differ, by at most {np.abs(ours / total - 1).max():.1e}"
