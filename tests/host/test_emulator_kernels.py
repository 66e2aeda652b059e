"""Kernels in the emulator, in every layout, with edges, batches, splits, clusters and several orders of threads: of
integers, or close to float64. test_emulator_recorded.py has those of float32 on the tensor cores, to the last bit."""

import pytest
import torch
from emulated import H200, assert_close, assert_exact, integers, normal, plan_named, sm90_plan

from tilesmith.emulator import run
from tilesmith.kernels import sm90
from tilesmith.planner import packing
from tilesmith.problem import Problem

Configuration = sm90.Configuration

pytestmark = pytest.mark.usefixtures("emulator_cache")

SEEDS = [None, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int8])
def test_simt_types(dtype: torch.dtype) -> None:
    a, b = integers(37, 45, dtype=dtype), integers(45, 61, dtype=dtype, seed=1)
    assert_exact(plan_named(a, b, "simt", "t4"), a, b)


@pytest.mark.parametrize("seed", SEEDS)
def test_simt_batches_and_layouts(seed: int | None) -> None:
    a, b = integers(2, 1, 40, 70, dtype=torch.float64), integers(3, 33, 70, dtype=torch.float64).mT
    assert_exact(plan_named(a, b, "simt"), a, b, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["rows", "odd", "columns"])
def test_exact(layout: str, seed: int | None) -> None:
    a, b = normal(40, 72), normal(72, 60, seed=1)
    if layout == "odd":
        a, b = a[1:, 1:], b[1:, 1:]
    elif layout == "columns":
        a, b = a.T.contiguous().T, b.T.contiguous().T
    assert_close(plan_named(a, b, "exact 16x16"), a, b, 1e-7, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_thin_and_its_cluster(seed: int | None) -> None:
    a, b = normal(7, 300), normal(300, 200, seed=1)
    plan = plan_named(a, b, "thin")
    assert plan.product.cluster > 1
    assert_close(plan, a, b, 1e-7, seed)


def test_dot() -> None:
    a, b = normal(1, 3000), normal(70, 3000, seed=1).T
    assert_close(plan_named(a, b, "dot"), a, b, 1e-7)


KINDS = {
    "edges": ((100, 136), (136, 200), Configuration(128, 96)),
    "odd": ((101, 135), (135, 201), Configuration(64, 64)),
    "cluster": ((260, 136), (136, 136), Configuration(128, 128, cluster=2)),
    "cluster, odd": ((261, 71), (71, 71), Configuration(64, 64, cluster=2)),
    "three consumers": ((400, 136), (136, 200), Configuration(192, 160, cluster=2)),
    "three consumers, odd": ((201, 135), (135, 201), Configuration(192, 176)),
    "split": ((100, 520), (520, 72), Configuration(64, 64, splits=3)),
    "few rows": ((16, 300), (300, 136), Configuration(64, 16, swap=True)),
    "batch": ((3, 72, 72), (3, 72, 104), Configuration(64, 64)),
    "more tiles than buffers": ((130, 640), (640, 264), Configuration(128, 256)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sm90_of_16_bits(kind: str) -> None:
    a_shape, b_shape, c = KINDS[kind]
    a, b = integers(*a_shape), integers(*b_shape, seed=1)
    for seed in SEEDS:
        assert_exact(sm90_plan(a, b, c), a, b, seed)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(True, False), (False, True), (True, True)])
def test_sm90_layouts(a_transposed: bool, b_transposed: bool, seed: int | None) -> None:
    a, b = integers(72, 136, dtype=torch.bfloat16), integers(136, 80, dtype=torch.bfloat16, seed=1)
    a = a.T.contiguous().T if a_transposed else a
    b = b.T.contiguous().T if b_transposed else b
    assert_exact(sm90_plan(a, b, Configuration(64, 64), torch.float32), a, b, seed)


def test_packed_planes() -> None:
    a, b = normal(72, 200), normal(200, 72, seed=1)
    pack = packing(Problem.of(torch.empty(1, 200), b, packed=(False, True)), H200)
    assert pack is not None
    planes = run(pack, torch.empty(1, 200), b)
    plan = sm90.plan(Problem.of(a, b, packed=(False, True)), H200, Configuration(128, 64, cluster=2))
    out = run(plan, a, b, packed=(None, planes))
    torch.testing.assert_close(out, run(sm90_plan(a, b, Configuration(128, 64, cluster=2)), a, b), rtol=0, atol=0)
