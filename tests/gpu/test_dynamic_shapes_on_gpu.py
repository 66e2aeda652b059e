"""Models that are compiled once for many lengths, on a GPU."""

import dynamic_shapes
import pytest
import torch

import tilesmith

LENGTHS = (17, 64, 3, 33, 100, 2, 127, 128, 255, 513)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_transformer_takes_the_routes_of_the_eager_one(backend: str, dtype: torch.dtype) -> None:
    dynamic_shapes.check_transformer("cuda", dtype, backend, layers=2, width=256, lengths=LENGTHS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_of_a_graph_for_all_lengths_have_the_bits_of_eager_ones(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    weight, bias = torch.randn(320, 256, device="cuda", dtype=dtype), torch.randn(320, device="cuda", dtype=dtype)

    def program(x: torch.Tensor) -> torch.Tensor:
        wide = tilesmith.linear(x, weight, bias, activation="relu")
        return tilesmith.matmul(wide, weight)

    compiled = torch.compile(program, dynamic=True, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in LENGTHS:
            x = torch.randn(4, length, 256, device="cuda", dtype=dtype)
            assert torch.equal(compiled(x), program(x))
