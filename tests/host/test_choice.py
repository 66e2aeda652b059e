"""The configuration that `hopper` chooses without making all candidates is the cheapest of them, and no family is left
out that could be cheaper."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.core.device import named
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.problem import Problem
from tilesmith.kernels import FAMILIES
from tilesmith.kernels.hopper import family as hopper

SIZES = st.one_of(st.integers(1, 9000), st.sampled_from([1, 8, 64, 65, 256, 4096]))


@settings(max_examples=150, deadline=None)
@given(
    shape=st.tuples(SIZES, SIZES, SIZES),
    batch=st.sampled_from([(), (), (3,), (2, 5)]),
    transposed=st.tuples(st.booleans(), st.booleans()),
    dtypes=st.sampled_from([("float32", "fp32"), ("float32", "tf32"), ("bfloat16", "fp32"), ("float16", "fp32")]),
    out=st.sampled_from([None, torch.float32]),
    has_residual=st.booleans(),
    skips_zeros=st.booleans(),
)
def test_the_chosen_configuration_is_the_cheapest_candidate(
    shape: tuple[int, int, int],
    batch: tuple[int, ...],
    transposed: tuple[bool, bool],
    dtypes: tuple[str, str],
    out: torch.dtype | None,
    has_residual: bool,
    skips_zeros: bool,
) -> None:
    m, k, n = shape
    dtype, gpu = getattr(torch, dtypes[0]), named("H200")

    def empty(rows: int, columns: int, is_transposed: bool = False) -> torch.Tensor:
        lines = (columns, rows) if is_transposed else (rows, columns)
        tensor = torch.empty(*batch, *lines, dtype=dtype, device="meta")
        return tensor.mT if is_transposed else tensor

    problem = Problem.of(
        empty(m, k, transposed[0]),
        empty(k, n, transposed[1]),
        accuracy="tf32" if dtypes[1] == "tf32" else "fp32",
        out_dtype=out,
        epilogue=Epilogue(residual=empty(m, n)) if has_residual and out is None else None,
        skips_zeros=skips_zeros,
    )
    if hopper.rejects(problem, gpu) is None:
        chosen = hopper.cheapest(problem, gpu)
        best = min(hopper.candidates(problem, gpu), key=lambda candidate: candidate.cycles, default=None)
        assert (chosen and (chosen.name, chosen.cycles)) == (best and (best.name, best.cycles))
    for family in FAMILIES:
        if family.min_cycles is not None and family.rejects(problem, gpu) is None:
            assert all(family.min_cycles(problem, gpu) <= each.cycles for each in family.candidates(problem, gpu))


def test_what_is_kept_of_one_product_is_not_taken_for_another() -> None:
    """Results across the lines of tiles of many matrices have the same kernels, whether aligned or not, and another
    cost."""
    gpu = named("H200")
    for m in (2944, 2946, 2944):
        a, b = torch.empty(m, 1408, dtype=torch.float16, device="meta"), torch.empty(1408, 1, device="meta")
        problem = Problem.of(a, b, may_mix=True)
        chosen = hopper.cheapest(problem, gpu)
        assert chosen is not None and chosen.cycles == chosen.plan().cost.cycles
