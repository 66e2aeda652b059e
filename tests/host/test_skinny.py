"""The `skinny` family: how a product is divided among blocks, and what ptxas makes of its kernels."""

import itertools
from collections import Counter

import pytest
import torch
from launched import constants_of, parameters_of
from machine_code import assert_does_not_compile_with, assert_nothing_spills, instructions_of_each, total

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Kernel, KernelLaunch, Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.fp64 import skinny

H200 = KNOWN_GPUS["h200"]


def laid_out(rows: int, columns: int, across: bool, aligned: bool) -> torch.Tensor:
    if across:
        return laid_out(columns, rows, False, aligned).T
    pitch = -(-columns // 4) * 4 + (0 if aligned else 1)
    return torch.empty(rows, pitch, device="meta")[:, :columns]


def planned(m: int, k: int, n: int, *, b_along_k: bool = False, b_aligned: bool = True, a_along_k: bool = True) -> Plan:
    a, b = laid_out(m, k, not a_along_k, True), laid_out(k, n, b_along_k, b_aligned)
    problem = Problem.of(a, b)
    assert skinny.rejects(problem, H200) is None
    return skinny.plan(problem, H200)


def constants(kernel: Kernel) -> skinny.Constants:
    return constants_of(kernel, skinny.Constants)


@pytest.mark.parametrize("m", [1, 8, 9, 16])
@pytest.mark.parametrize(("k", "n"), itertools.product((1, 17, 1000, 8192, 65536), (1, 80, 1024, 8192, 50000)))
def test_blocks_cover_the_product_once(m: int, k: int, n: int) -> None:
    n = max(m, n)
    plan = planned(m, k, n)
    stage = plan.product
    p = parameters_of(stage, skinny.Parameters)
    share_k, column_blocks = p.share_k, p.column_blocks
    c = constants(stage.kernel)
    columns = 64 * c.column_warps
    shares = stage.cluster * plan.split_k
    assert stage.grid == (column_blocks * shares, 1, 1)
    assert (column_blocks - 1) * columns < n <= column_blocks * columns
    assert share_k % 16 == 0
    assert shares * share_k >= k
    assert shares == 1 or (share_k - 16) * shares < k
    assert stage.kernel.threads // 32 % c.column_warps == 0


@pytest.mark.parametrize(("m", "k", "n"), [(1, 8192, 8192), (16, 8192, 8192), (16, 1024, 1024), (4, 4096, 11008)])
def test_large_products_fill_the_gpu_in_one_launch(m: int, k: int, n: int) -> None:
    plan = planned(m, k, n)
    assert len(plan.launches) == 1
    assert plan.product.grid[0] >= 0.9 * H200.sm_count


def test_a_long_sum_of_few_columns_is_cut_into_parts() -> None:
    plan = planned(1, 65536, 80)
    assert [stage.kernel.entry for stage in plan.launches] == ["skinny", "split_k_reduce"]
    assert plan.split_k > 1


SHAPES = [(1, 8192, 8192), (5, 64, 64), (8, 65536, 80), (16, 8192, 8192), (12, 1024, 1024), (9, 40, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_machine_code_is_what_the_plan_asks_for(shape: tuple[int, int, int]) -> None:
    """In half of the ways in which operands lie, the next shape in the others. Each has any two of them together."""
    ways = [way for way in itertools.product((False, True), repeat=3) if (sum(way) + SHAPES.index(shape)) % 2 == 0]
    stages = [
        planned(*shape, b_along_k=b_along_k, b_aligned=b_aligned, a_along_k=a_along_k).product
        for b_along_k, b_aligned, a_along_k in ways
    ]
    read = instructions_of_each([stage.kernel for stage in stages])
    for stage, (_, b_aligned, a_along_k), found in zip(stages, ways, read, strict=True):
        assert_is_as_planned(stage, b_aligned, a_along_k, found)


def assert_is_as_planned(stage: KernelLaunch, b_aligned: bool, a_along_k: bool, found: Counter[str]) -> None:
    c = constants(stage.kernel)
    assert_nothing_spills(stage)
    assert c.blocks_per_sm * (stage.kernel.shared_bytes + 1024) <= H200.shared_bytes_per_sm

    assert total(found, r"(LDL|STL)\b.*") == 0
    # One step along K: four tiles of 16 columns, each with all rows.
    assert total(found, r"DMMA\.16x8x16") == total(found, r"DMMA.*") == 4 * c.row_groups
    if not c.epilogue.any:
        assert total(found, r"F2F\.F64\.F32") == 4 * (8 + c.row_groups)
        assert total(found, r"LDG\..*") == 0
    # Operands come by asynchronous copies alone: whole vectors where lines are aligned, around the first cache.
    assert (total(found, r"LDGSTS\.E\.BYPASS.*\.128") > 0) == b_aligned
    assert (total(found, r"LDGSTS\.E\.128") > 0) == c.a_vectors == a_along_k
    assert (total(found, r"LDGSTS\.E") > 0) == (not (b_aligned and a_along_k))
    # The grid lets its successor start, and waits for its predecessor.
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1
    assert total(found, r"UCGABAR_ARV") > 0  # where there is a cluster, which the kernel does not know


def test_the_kernels_that_are_read_have_clusters_and_blocks_of_all_kinds() -> None:
    products = [planned(*shape).product for shape in SHAPES]
    kinds = {(constants(each.kernel).row_groups, each.cluster > 1) for each in products}
    assert kinds == set(itertools.product((1, 2), (False, True)))
    assert {constants(each.kernel).column_warps for each in products} == {1, 2}
    assert all(parameters_of(each, skinny.Parameters).cluster == each.cluster for each in products)


def test_a_product_with_a_wrong_size_does_not_compile() -> None:
    assert_does_not_compile_with(planned(4, 32, 48).product.kernel, "shared_bytes", 16)
