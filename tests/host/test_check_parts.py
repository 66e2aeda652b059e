"""The parts of the judge that need no process: inputs, bounds, what a model computes, the roofline, and the text."""

import math
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tilesmith.bench import precision
from tilesmith.kernelbench.check import analysis, inputs, speed, strict, watch, wire
from tilesmith.kernelbench.check.verdict import Finding, Speed, Spread, Verdict


def given() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.rand(60, 200), torch.rand(200, 40)]


class TestInputs:
    def test_normal(self) -> None:
        for x in inputs.of_kind("normal", given(), 7, k=200):
            assert x.dtype == torch.float32
            assert abs(x.mean().item()) < 0.05
            assert abs(x.std().item() - 1) < 0.05
            assert x.unique().numel() > 0.99 * x.numel()

    def test_zeros_and_ones(self) -> None:
        for x in inputs.of_kind("zeros and ones", given(), 7, k=200):
            assert x.unique().tolist() == [0, 1]
            assert abs(x.mean().item() - 0.5) < 0.05

    def test_large_is_beyond_float16_alone(self) -> None:
        a, _ = inputs.of_kind("large", given(), 7, k=200)
        assert a.abs().max() > 1e6
        half, _ = inputs.of_kind("large", [x.half() for x in given()], 7, k=200)
        assert half.isfinite().all()

    def test_few_terms(self) -> None:
        a, b = inputs.of_kind("few terms", given(), 7, k=200)
        terms = (a != 0).double() @ (b != 0).double()
        assert 1 < terms.mean().item() < 2

    def test_secret_decides(self) -> None:
        a, b, c = (inputs.of_kind("normal", given(), secret, k=200)[0] for secret in (7, 7, 8))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    @pytest.mark.parametrize("kind", list(inputs.KINDS))
    def test_structure_stays(self, kind: str) -> None:
        torch.manual_seed(0)
        square = torch.rand(50, 50)
        labels = torch.randint(0, 2, (50,)).float()
        triangle, symmetric, same, number = inputs.of_kind(kind, [square.tril(), square + square.T, labels, 3], 7, k=50)
        assert torch.equal(triangle.nan_to_num(7.0), triangle.tril().nan_to_num(7.0))
        assert torch.equal(symmetric.nan_to_num(7.0), symmetric.T.nan_to_num(7.0))
        assert torch.equal(same, labels)
        assert number == 3

    def test_a_few_values_are_not_finite(self) -> None:
        torch.manual_seed(0)
        drawn = [inputs.of_kind(inputs.NOT_FINITE, [torch.rand(200, 100)], secret, k=50)[0] for secret in range(20)]
        special = torch.stack([x[~x.isfinite()].numel() * torch.ones(()) for x in drawn])
        assert 0.5 < special.mean() < 8
        assert any(x.isnan().any() for x in drawn) and any(x.isneginf().any() for x in drawn)

    def test_layouts_keep_values(self) -> None:
        values = [*given(), torch.arange(5.0), torch.arange(6).reshape(2, 3), 2.5]
        for layout in (inputs.transposed, inputs.padded):
            for x, y in zip(values, layout(values), strict=True):
                assert torch.equal(torch.as_tensor(x), torch.as_tensor(y))
        assert [x.stride() for x in inputs.transposed(given())] == [(1, 60), (1, 200)]
        a, _ = inputs.padded(given())
        assert a.stride() == (203, 1)
        assert torch.as_strided(a, (3,), (1,), 200).isnan().all()

    def test_smaller_sizes_fit_together(self) -> None:
        smaller = inputs.smaller(given())
        assert smaller is not None and [tuple(x.shape) for x in smaller] == [(37, 125), (125, 25)]
        assert torch.equal(smaller[0], given()[0][:37, :125])

    def test_indices_keep_their_sizes(self) -> None:
        assert inputs.smaller([torch.rand(5, 5), torch.arange(5)]) is None
        assert inputs.smaller([torch.rand(5, 5), 5]) is None


class TestPrecision:
    @pytest.mark.parametrize("name", ["tf32", "fp16", "bf16"])
    @pytest.mark.parametrize("k", [16, 1000, 4000])
    @pytest.mark.parametrize("to_integer", [torch.trunc, torch.round])
    def test_narrow_operands_have_their_class(self, name: str, k: int, to_integer: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(0)
        a, b = inputs.of_kind("few terms", [torch.rand(50, k), torch.rand(k, 50)], 3, k)
        a, b = a.double(), b.double()
        product = precision.narrowed(a, name, to_integer) @ precision.narrowed(b, name, to_integer)
        error = analysis.error([product], [a @ b], [a.abs() @ b.abs()])
        found = precision.classify(error, precision.bounds_of_product(k, 0.0), torch.float32)
        assert found == {"fp16": "tf32"}.get(name, name)  # range alone tells them apart

    @pytest.mark.parametrize("k", [1, 64, 5000])
    def test_a_chain_of_float32_is_float32(self, k: int) -> None:
        torch.manual_seed(0)
        a, b = torch.rand(20, k), torch.rand(k, 20)
        product = torch.zeros(20, 20)
        for i in range(k):
            product += a[:, i, None] * b[i]
        exact = a.double() @ b.double()
        error = analysis.error([product], [exact], [exact])
        assert precision.classify(error, precision.bounds_of_product(k, 0.0), torch.float32) == "fp32"

    def test_bounds_get_wider_from_class_to_class(self) -> None:
        for bounds in (
            precision.bounds_of_product(4096, 1e-3),
            precision.bounds_of_model(1e-7, {"tf32": 1e-4, "fp16": 1e-4, "bf16": 1e-3}),
        ):
            in_order = [bounds[name] for name in precision.CLASSES[1:-1]]
            assert in_order == sorted(in_order)

    def test_error(self) -> None:
        exact, scale = torch.tensor([1.0, 2.0, math.inf]).double(), torch.tensor([1.0, 4.0, 1.0]).double()
        assert analysis.error([torch.tensor([1.0, 2.5, math.inf])], [exact], [scale]) == 0.125
        assert math.isnan(analysis.error([torch.tensor([1.0, math.nan, math.inf])], [exact], [scale]))
        assert analysis.error([torch.tensor([0.5])], [torch.zeros(1).double()], [torch.zeros(1).double()]) == math.inf


class TestAnalysis:
    def test_product(self) -> None:
        a, b = torch.rand(3, 10, 20).double(), torch.rand(20, 5).double()
        with analysis.Products() as seen:
            torch.matmul(a, b)
        assert (seen.k, seen.flops, seen.is_product) == (20, 2 * 3 * 10 * 20 * 5, True)

    def test_zeros_spare_operations(self) -> None:
        with analysis.Products() as seen:
            torch.diag(torch.ones(50)) @ torch.ones(50, 30)
        assert seen.flops == 2 * 50 * 30

    def test_layer_is_more_than_a_product(self) -> None:
        linear, x = nn.Linear(8, 4), torch.rand(2, 8)
        with analysis.Products() as seen:
            linear(x).relu()
        assert (seen.k, seen.is_product, seen.others) == (8, False, {"relu"})

    def test_narrow_operands(self) -> None:
        a = torch.tensor([[1 + 2.0**-9]]).double()
        with analysis.Narrow("bf16"):
            assert (a @ a).item() == 1.0
        assert (a @ a).item() > 1.0


class TestWatch:
    def test_operations(self) -> None:
        assert watch.operations(lambda: torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(3, 4))).count("bmm") == 1

    def test_replaced_functions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = watch.Untouched()
        assert before.changed() == []
        monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda self, other: 0.0)
        monkeypatch.setattr(time, "time", lambda: 0.0)
        assert before.changed() == ["Event.elapsed_time", "time.time"]

    @pytest.mark.parametrize(
        ("kernel", "is_library"),
        [
            ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNN", True),
            ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(cutlass::Params)", True),
            ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32", True),
            ("ampere_sgemm_128x64_nn", True),
            ("void gemv2T_kernel_val<int, int, float, float>(cublasGemvParams)", True),
            ("my_gemm_kernel(float const*, float const*, float*)", False),
            ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", False),
        ],
    )
    def test_kernels_of_libraries_by_name(self, kernel: str, is_library: bool) -> None:
        assert bool(strict._LIBRARY_KERNEL.search(kernel)) == is_library


class TestSpeed:
    H200 = SimpleNamespace(
        major=9,
        minor=0,
        multi_processor_count=132,
        clock_rate=1_980_000,
        memory_clock_rate=3_201_000,
        memory_bus_width=6144,
        L2_cache_size=60 * 2**20,
    )

    def test_roofline_of_a_large_product_is_the_tensor_cores(self) -> None:
        work = {"flops": 2.0 * 8192**3, "read": 2 * 4.0 * 8192**2, "written": 4.0 * 8192**2}
        half = speed.roofline_ms(self.H200, work, "bf16")
        expected = 8192**3 / (132 * 2048 * 1.98e9) * 1e3
        assert half == pytest.approx(expected)
        assert speed.roofline_ms(self.H200, work, "fp32") == pytest.approx(3 * expected)

    def test_roofline_of_a_thin_product_is_the_memory(self) -> None:
        work = {"flops": 2.0 * 10**8, "read": 4e8, "written": 4e4}
        assert speed.roofline_ms(self.H200, work, "fp32") == pytest.approx(4e8 / 4.917e12 * 1e3, rel=1e-3)

    def test_unknown_gpu_has_none(self) -> None:
        unknown = SimpleNamespace(major=5, minor=2)
        assert speed.roofline_ms(unknown, {"flops": 1.0, "read": 1.0, "written": 1.0}, "fp32") is None


class TestText:
    def test_speed(self) -> None:
        spread = Spread(median=2.0, lower=1.5, upper=2.5, mean=2.1)
        timed = Speed(spread, {"fp32": Spread(4.0, 3.0, 5.0, 4.2)}, 10.0, 1.0, 50.0, "NVIDIA H200", "SM clock 1980 MHz")
        text = Verdict("strict", (Finding("builds", True),), "fp32", timed).describe()
        assert "speed on NVIDIA H200: 2.0000 ms (1.5000 to 2.5000), 10.0 TFLOP/s" in text
        assert "torch in fp32: 4.0000 ms (3.0000 to 5.0000), 2.00 times the candidate's" in text
        assert "roofline 1.0000 ms, of which this is 50 %" in text
        assert "2.1000 ms (mean)" in Verdict("official", (Finding("builds", True),), None, timed).describe()

    def test_nothing_tried_is_not_right(self) -> None:
        assert not Verdict("strict", ()).right
        assert not Verdict("strict", (Finding("builds", None),)).right

    def test_long_errors_are_cut(self) -> None:
        lines = wire.first_useful_lines("\n".join(["first", "x" * 10_000, *(f"error {i}" for i in range(100))]))
        assert lines.splitlines() == ["first", *(f"error {i}" for i in range(11))]
