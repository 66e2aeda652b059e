"""float32 products: the promise that their error is no larger than that of torch's own, on data of every kind; and that
they are exact where float32 is, in every tile, layout and way to store."""

import gc
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from guarded import Guarded, assert_exact, contiguous_strides, few_sms
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from launched import constants_of

import tilesmith
from tilesmith.bench.distributions import DISTRIBUTIONS, operands
from tilesmith.core.device import KNOWN_GPUS, installed
from tilesmith.core.problem import Problem
from tilesmith.kernels.family import Candidate
from tilesmith.kernels.fp64 import gemv, skinny
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.mma import fp32 as fp32_mma
from tilesmith.kernels.mma.family import FP64
from tilesmith.kernels.mma.tiles import TILES_OF_DOUBLES, Cut, Tile
from tilesmith.planner import candidates, choose
from tilesmith.runtime.executor import CompiledPlan, compiled

LAYOUTS = ["nn", "nt", "tn", "tt"]
ORDINARY = ["uniform", "normal", "rectified", "graded rows", "graded columns"]


def as_on_an_a100(problem: Problem) -> list[CompiledPlan]:
    """What warps of a GPU without wgmma multiply, compiled for this one."""
    plans = [candidate.plan() for candidate in fp32_mma.candidates(problem, KNOWN_GPUS["a100"])]
    return [compiled(replace(plan, device=installed(0)), 0) for plan in plans]


def errors(product: torch.Tensor, a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> tuple[float, float]:
    """comp and norm over the elements of a mask."""
    exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    wrong = (product.double() - exact).abs()[where]
    comp = torch.where(wrong == 0, 0.0, wrong / scale[where]).max() if wrong.numel() else torch.zeros(())
    size = exact[where].norm()
    return comp.item(), (wrong.norm() / size).item() if wrong.norm() > 0 else 0.0


def norm_is_promised_of_planes(name: str, m: int, k: int, n: int) -> bool:
    """Where few terms cancel, terms may lose more than torch does in a small product, and in a few elements chance
    decides who loses more; the families of doubles have both: see docs/accuracy.md."""
    return m * n >= 100 and (name != "cancelling" or k >= 100)


def assert_promise(
    ours: torch.Tensor, theirs: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, in_norm: bool = True
) -> None:
    """No more error than torch has, down to the floor; infinities and NaNs in the same places."""
    for is_kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(is_kind(ours), is_kind(theirs)), f"{is_kind.__name__} elsewhere"
    finite = torch.isfinite(theirs)
    (comp, norm), (torch_comp, torch_norm) = errors(ours, a, b, finite), errors(theirs, a, b, finite)
    assert comp <= max(torch_comp, 1e-6), f"comp {comp:.2e}, torch {torch_comp:.2e}"
    assert not in_norm or norm <= max(torch_norm, 3e-7), f"norm {norm:.2e}, torch {torch_norm:.2e}"


def is_for_tensor_cores(a: torch.Tensor, b: torch.Tensor) -> bool:
    return hopper.rejects(Problem.of(a, b), installed(0)) is None


def in_tensor_cores(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """By the `hopper` family, also where others are faster."""
    offers = hopper.candidates(Problem.of(a, b), installed(0))
    return compiled(min(offers, key=lambda candidate: candidate.cycles).plan(), 0)(a, b)


@pytest.mark.parametrize("k", [1, 2, 3, 17, 33, 64, 65, 200, 515, 1000, 4096])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_more_error_than_torch_on_data_of_every_kind(name: str, k: int) -> None:
    for m, n in ((300, 200), (5, 700)):
        a, b = operands(name, m, k, n, "cuda", seed=k)
        theirs = torch.matmul(a, b)
        assert_promise(tilesmith.matmul(a, b), theirs, a, b)
        if is_for_tensor_cores(a, b):
            in_norm = norm_is_promised_of_planes(name, m, k, n)
            assert_promise(in_tensor_cores(a, b), theirs, a, b, in_norm=in_norm)


@pytest.mark.parametrize("shape", [(64, 65536, 64), (1, 65536, 80), (2048, 2048, 1500), (3, 20000, 3)], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_more_error_than_torch_at_large_sizes(name: str, shape: tuple[int, int, int]) -> None:
    a, b = operands(name, *shape, "cuda")
    assert_promise(tilesmith.matmul(a, b), torch.matmul(a, b), a, b)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_transposed_operands_keep_the_promise(name: str) -> None:
    """Their scales come from other samples."""
    a, b = operands(name, 257, 700, 191, "cuda")
    theirs = torch.matmul(a, b)
    for x, y in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
        assert_promise(in_tensor_cores(x, y), theirs, a, b)


@pytest.mark.parametrize("k", [1, 2, 17, 33, 64, 200, 515, 1000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_sums_of_doubles_keep_the_promise_everywhere(name: str, k: int) -> None:
    """Also in norm, where terms cancel; and they are rounded once."""
    a, b = operands(name, 150, k, 90, "cuda", seed=k)
    theirs, rounded = torch.matmul(a, b), (a.double() @ b.double()).float()
    for candidate in FP64.candidates(Problem.of(a, b), installed(0)):
        ours = compiled(candidate.plan(), 0)(a, b)
        assert_promise(ours, theirs, a, b)
        # Doubles that are summed in another order may be on the other side of a tie.
        assert name != "cancelling" or (ours != rounded).double().mean().item() < 1e-3


@pytest.mark.parametrize("k", [65, 96, 128, 200, 515, 1000, 4096])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_terms_that_warps_multiply_keep_the_promise(name: str, k: int) -> None:
    """By each plan of a GPU without wgmma."""
    for m, n in ((300, 200), (17, 700)):
        a, b = operands(name, m, k, n, "cuda", seed=k)
        theirs, in_norm = torch.matmul(a, b), norm_is_promised_of_planes(name, m, k, n)
        for x, y in ((a, b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
            for product in as_on_an_a100(Problem.of(x, y)):
                out = torch.full((m, n), float("nan"), device="cuda")
                assert_promise(product(x, y, out), theirs, a, b, in_norm=in_norm)


LONG = [(64, 65536, 64), (300, 30000, 300), (1000, 20000, 1000), (2048, 2048, 1500), (257, 700, 191)]


@pytest.mark.parametrize("shape", LONG, ids=str)
def test_long_sums_of_terms_keep_the_promise_and_repeat_their_bits(shape: tuple[int, int, int]) -> None:
    for name in ORDINARY:
        a, b = operands(name, *shape, "cuda")
        theirs = torch.matmul(a, b)
        for product in as_on_an_a100(Problem.of(a, b)):
            first = product(a, b)
            assert_promise(first, theirs, a, b)
            for _ in range(3):
                assert torch.equal(product(a, b), first)


RAW = [
    (hopper.Configuration(128, 128, cluster=2, split_k=3, rs=True), 300, 1028, 128),
    (hopper.Configuration(64, 64, swap_ab=True, rs=True), 40, 2000, 1000),
    (hopper.Configuration(128, 32, split_k=2, swap_ab=True, rs=True), 30, 1500, 520),
    (hopper.Configuration(64, 128, rs=True), 136, 400, 260),
]


@pytest.mark.parametrize(("c", "m", "k", "n"), RAW, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_product_splits_a_itself_as_accurately(name: str, c: hopper.Configuration, m: int, k: int, n: int) -> None:
    a, b = operands(name, m, k, n, "cuda")
    theirs = torch.matmul(a, b)
    for x, y in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
        problem = Problem.of(x, y)
        assert hopper.unsuited(problem, installed(0), c) is None
        product = compiled(hopper.plan(problem, installed(0), c), 0)
        first = product(x, y)
        assert_promise(first, theirs, a, b)
        torch.testing.assert_close(product(x, y), first, rtol=0, atol=0, equal_nan=True)


def test_what_is_next_to_values_that_need_the_wide_scheme() -> None:
    """The product of zeros is zero, though it is not what the ordinary scheme computes then. Infinities and NaNs are
    found in A even where the first launch does not multiply."""
    c, m, k, n = RAW[0]
    a, b = operands("graded slices of K", m, k, n, "cuda")
    product = compiled(hopper.plan(Problem.of(a, b), installed(0), c), 0)
    out = torch.full((m, n), float("nan"), device="cuda")
    product(torch.zeros_like(a), b, out)
    torch.testing.assert_close(out, torch.zeros_like(out), rtol=0, atol=0)
    a[3, 5], a[17, 700], a[200, k - 1] = float("nan"), float("inf"), float("-inf")
    assert_promise(product(a, b), torch.matmul(a, b), a, b)


@pytest.mark.parametrize(
    "c",
    [
        hopper.Configuration(128, 64, cluster=2, split_k=2, rs=True),
        hopper.Configuration(64, 96, rs=True),
        hopper.Configuration(128, 128, swap_ab=True, rs=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("a_batch", "b_batch"), [((3,), (3,)), ((), (4,)), ((3,), ())], ids=str)
def test_batches_whose_a_is_split_by_the_product(
    a_batch: tuple[int, ...], b_batch: tuple[int, ...], c: hopper.Configuration
) -> None:
    """One matrix decides the scheme of all."""
    m, k, n = 140, 600, 200
    for name in ("normal", "graded slices of K", "infinities and NaNs"):
        a, b = (
            torch.stack([operands("normal", m, k, n, "cuda", seed)[side] for seed in range(math.prod(batch))])
            for side, batch in enumerate((a_batch, b_batch))
        )
        a[-1], b[-1] = operands(name, m, k, n, "cuda")
        a, b = a.view(*a_batch, m, k), b.view(*b_batch, k, n)
        problem = Problem.of(a, b)
        assert hopper.unsuited(problem, installed(0), c) is None
        product = compiled(hopper.plan(problem, installed(0), c), 0)
        ours, theirs = product(a, b), torch.matmul(a, b)
        for index in itertools.product(*(range(size) for size in ours.shape[:-2])):
            x, y = (t.expand(*ours.shape[:-2], *t.shape[-2:])[index] for t in (a, b))
            assert_promise(ours[index], theirs[index], x, y)
        torch.testing.assert_close(product(a, b), ours, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["uniform", "normal", "lognormal", "outliers", "exponents within 20"])
def test_tf32_has_no_more_error_than_torchs(name: str) -> None:
    """In every family, and also where torch splits K, which matters on uniform values."""
    before = torch.backends.cuda.matmul.fp32_precision
    families: set[str] = set()
    shapes = [(512, 512, 512), (300, 1111, 200), (1024, 4096, 256), (64, 8192, 2048), (512, 16384, 512)]
    for m, k, n in (*shapes, (333, 4096, 1001)):
        a, b = operands(name, m, k, n, "cuda")
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        theirs = torch.matmul(a, b)
        torch.backends.cuda.matmul.fp32_precision = before
        everywhere = torch.ones_like(theirs, dtype=torch.bool)
        for y in (b, b.T.contiguous().T):
            offers: dict[str, Candidate] = {}
            for each in sorted(candidates(Problem.of(a, y, accuracy="tf32"), installed(0)), key=lambda x: x.cycles):
                offers.setdefault(each.name.partition(" ")[0], each)
            for family, offer in offers.items():
                ours = compiled(offer.plan(), 0)(a, y)
                (comp, norm), (torch_comp, torch_norm) = (errors(x, a, b, everywhere) for x in (ours, theirs))
                assert norm <= 1.01 * torch_norm, family
                assert comp <= 1.2 * torch_comp, family  # the largest of many errors of one distribution
            families |= offers.keys()
    assert families >= {"hopper", "hopper_tf32", "tf32_mma", "fp64_mma"}


@pytest.mark.parametrize("k", [65, 200, 515, 1000, 4096])
def test_one_term_that_warps_multiply_is_tf32(k: int) -> None:
    """By each plan of a GPU without wgmma; and what is not ordinary has three products."""
    for (m, n), scale in itertools.product(((300, 200), (17, 700)), (1.0, 1e30)):
        a, b = operands("normal", m, k, n, "cuda", seed=k)
        a = a * scale
        for x, y in ((a, b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
            for product in as_on_an_a100(Problem.of(x, y, accuracy="tf32")):
                first = torch.full((m, n), float("nan"), device="cuda")
                norm = errors(product(x, y, first), a, b, torch.ones_like(first, dtype=torch.bool))[1]
                assert norm <= (3.2e-4 if scale == 1.0 else 2e-5)
                assert torch.equal(product(x, y), first)


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    """A quarter of the blocks of a matrix, the rest zero."""
    rows, columns = (math.ceil(size / 100) for size in x.shape)
    kept = torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)) < 0.25
    mask = kept.repeat_interleave(100, 0).repeat_interleave(100, 1)
    return x * mask[: x.shape[0], : x.shape[1]].to(x.device)


SPARSE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "upper triangles": (torch.triu, torch.triu),
    "lower triangles": (torch.tril, torch.tril),
    "a lower by an upper triangle": (torch.tril, torch.triu),
    "an upper triangle by all": (torch.triu, torch.clone),
    "blocks": (in_blocks, in_blocks),
    "nothing by all": (torch.zeros_like, torch.clone),
    "all": (torch.clone, torch.clone),
}


@pytest.mark.parametrize(
    "c",
    [
        hopper.Configuration(128, 128, cluster=2),
        hopper.Configuration(128, 192, cluster=2),
        hopper.Configuration(64, 64),
        hopper.Configuration(128, 128),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SPARSE)
def test_skipping_zeros_changes_nothing(name: str, c: hopper.Configuration) -> None:
    of_a, of_b = SPARSE[name]
    for distribution in ("uniform", "graded slices of K", "infinities and NaNs"):
        a, b = operands(distribution, 700, 900, 520, "cuda")
        a, b = of_a(a), of_b(b)
        for x, y in itertools.product((a, a.T.contiguous().T), (b, b.T.contiguous().T)):
            plans = [
                hopper.plan(Problem.of(x, y, skips_zeros=skips), device, c)
                for skips, device in ((False, installed(0)), (True, installed(0)), (True, few_sms()))
            ]
            skips_zeros = [constants_of(plan.product.kernel, gemm.TermConstants).skips_zeros for plan in plans]
            assert skips_zeros == [False, True, True]
            all_steps, *others = (compiled(plan, 0) for plan in plans)
            expected = all_steps(x, y)
            for product in others:
                out = torch.full_like(expected, float("nan"))
                product(x, y, out)
                torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def integers(rows: int, columns: int, layout: str = "n", most: int = 4) -> Guarded:
    strides = (columns, 1) if layout == "n" else (1, rows)
    return placed((rows, columns), strides, 0, most)


def placed(shape: Sequence[int], strides: Sequence[int], shift: int = 0, most: int = 4) -> Guarded:
    guarded = Guarded.empty(shape, strides, torch.float32, shift)
    guarded.tensor.copy_(torch.randint(-most, most + 1, tuple(shape), device="cuda").float())
    return guarded


def assert_exact_on_few_sms(c: hopper.Configuration, a: Guarded, b: Guarded, strides: Sequence[int]) -> None:
    out = Guarded.empty(torch.matmul(a.tensor, b.tensor).shape, strides, torch.float32)
    problem = Problem.of(a.tensor, b.tensor, out=out.tensor)
    assert hopper.unsuited(problem, few_sms(), c) is None
    assert_exact(hopper.plan(problem, few_sms(), c), a, b, out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", tiles.PROMOTED_TILES, ids=lambda tile: "{}x{}".format(*tile))
def test_every_tile_and_layout_is_exact_on_integers(tile: tuple[int, int], layout: str) -> None:
    if tile[1] == 8:
        layout = layout[0] + "t"  # no product instruction has so narrow a B by rows
    for (m, k, n), cluster in (((264, 200, 296), 1), ((137, 195, 521), 2)):
        c = hopper.Configuration(*tile, cluster=cluster if tile[1] > 8 else 1)
        assert_exact_on_few_sms(c, integers(m, k, layout[0]), integers(k, n, layout[1]), (n, 1))


@pytest.mark.parametrize(
    ("c", "m", "k", "n"),
    [
        (hopper.Configuration(128, 256), 1000, 64, 1536),  # one step along K, and B stays
        (hopper.Configuration(128, 128), 1000, 40, 1024),
        (hopper.Configuration(128, 256), 999, 33, 1001),
        (hopper.Configuration(64, 32, split_k=3), 136, 700, 200),
        (hopper.Configuration(128, 128, cluster=2, split_k=5), 300, 1001, 263),
        (hopper.Configuration(64, 16, cluster=2, swap_ab=True), 9, 1000, 520),
        (hopper.Configuration(128, 96, split_k=7, swap_ab=True), 90, 999, 521),
        (hopper.Configuration(64, 96), 70, 70000, 100),  # K chunks of K
        (hopper.Configuration(64, 32, rs=True), 200, 1000, 96),
        (hopper.Configuration(128, 96, cluster=2, split_k=2, rs=True), 300, 900, 200),
        (hopper.Configuration(64, 16, swap_ab=True, rs=True), 12, 1000, 520),
        (hopper.Configuration(128, 128, split_k=2, swap_ab=True, rs=True), 120, 1024, 528),
    ],
    ids=str,
)
def test_every_kind_is_exact_on_integers(c: hopper.Configuration, m: int, k: int, n: int) -> None:
    for layout, strides in itertools.product(("nn", "tt"), ((n, 1), (n + 3, 1), (1, m))):
        assert_exact_on_few_sms(c, integers(m, k, layout[0]), integers(k, n, layout[1]), strides)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((3, 136, 200), (3, 200, 264)), ((136, 200), (5, 200, 263)), ((2, 1, 3, 70, 72), (4, 1, 72, 40))),
        ((137, 199), (5, 199, 263)),  # an A that TMA cannot read
    ],
    ids=str,
)
def test_batches_are_exact_on_integers(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Split before the product, and by the product itself."""
    x, y = placed(a, contiguous_strides(a)), placed(b, contiguous_strides(b))
    strides = contiguous_strides(torch.matmul(x.tensor, y.tensor).shape)
    for c in (hopper.Configuration(128, 64, cluster=2), hopper.Configuration(64, 96, split_k=2)):
        assert_exact_on_few_sms(replace(c, split_k=1), x, y, strides)
        if a != (137, 199) and len(a) <= 3:
            assert_exact_on_few_sms(replace(c, rs=True), x, y, strides)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_few_rows_are_exact_on_integers(rows: int, layout: str) -> None:
    for k, n, few_are_columns in itertools.product((1, 70, 515, 2000), (1, 7, 132, 1001), (False, True)):
        m, n = (n, rows) if few_are_columns else (rows, n)
        a, b = integers(m, k, layout[0]), integers(k, n, layout[1])
        for strides in ((n, 1), (1, m), (2 * n + 1, 2)):
            out = Guarded.empty((m, n), strides, torch.float32)
            problem = Problem.of(a.tensor, b.tensor, out=out.tensor)
            assert skinny.rejects(problem, installed(0)) is None
            assert_exact(skinny.plan(problem, installed(0)), a, b, out)


@pytest.mark.parametrize("lines", [1, 3, 8, 131, 2048])
def test_a_matrix_by_a_vector_is_exact_on_integers(lines: int) -> None:
    for k, pad, spread, vector_first in itertools.product((1, 70, 1024, 9001), (0, 1, 4), (1, 2), (False, True)):
        if vector_first:
            a, b = placed((1, k), (1, spread)), placed((k, lines), (1, k + pad))
        else:
            a, b = placed((lines, k), (k + pad, 1)), placed((k, 1), (spread, 1))
        m, n = (1, lines) if vector_first else (lines, 1)
        for strides in ((n, 1), (2 * n + 1, 3)):
            out = Guarded.empty((m, n), strides, torch.float32)
            problem = Problem.of(a.tensor, b.tensor, out=out.tensor)
            assert gemv.rejects(problem, installed(0)) is None
            assert_exact(gemv.plan(problem, installed(0)), a, b, out)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_matrix_by_a_vector_keeps_the_promise(name: str) -> None:
    for lines, k in ((5, 3), (300, 1000), (20, 300_000)):
        a, b = operands(name, lines, k, 1, "cuda")
        assert_promise(compiled(gemv.plan(Problem.of(a, b), installed(0)), 0)(a, b), torch.matmul(a, b), a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", TILES_OF_DOUBLES, ids=str)
def test_every_tile_of_doubles_is_exact_on_integers(tile: Tile, layout: str) -> None:
    sizes = [(64, 64, 64), (128, 512, 128), (137, 195, 101), (1, 1, 1), (70, 16, 132), (33, 17, 31), (18, 1030, 70)]
    for (m, k, n), (pad, shift) in itertools.product(sizes, ((0, 0), (3, 0), (4, 0), (4, 1))):
        a, b = (
            placed((rows, columns), (columns + pad, 1) if each == "n" else (1, rows + pad), shift)
            for (rows, columns), each in zip(((m, k), (k, n)), layout, strict=True)
        )
        for strides in ((n, 1), (n + 3, 1), (n + 4, 1), (1, m), (1, m + 4), (2 * n + 1, 2)):
            out = Guarded.empty((m, n), strides, torch.float32, shift)
            problem = Problem.of(a.tensor, b.tensor, out=out.tensor)
            assert FP64.rejects(problem, installed(0)) is None
            assert_exact(FP64.plan(problem, installed(0), Cut(tile)), a, b, out)


@pytest.mark.parametrize("tile", TILES_OF_DOUBLES, ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 136, 200), (3, 200, 64)),
        ((37, 99), (5, 99, 63)),
        ((2, 1, 3, 70, 72), (4, 1, 72, 40)),
        ((3, 1, 7, 33), (1, 4, 33, 9)),
        ((70_000, 2, 3), (70_000, 3, 2)),
    ],
    ids=str,
)
def test_batches_of_doubles_are_exact_on_integers(tile: Tile, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = placed(a, contiguous_strides(a)), placed(b, contiguous_strides(b))
    shape = torch.matmul(x.tensor, y.tensor).shape
    out = Guarded.empty(shape, contiguous_strides(shape), torch.float32)
    assert_exact(FP64.plan(Problem.of(x.tensor, y.tensor, out=out.tensor), installed(0), Cut(tile)), x, y, out)


@pytest.mark.parametrize("tile", TILES_OF_DOUBLES, ids=str)
@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (0, 0), (40, 0), (70, 2), (2, 150)])
def test_doubles_of_operands_that_repeat_or_skip_are_exact_on_integers(tile: Tile, strides: tuple[int, int]) -> None:
    storage = placed((10_000,), (1,))
    a = storage.tensor.as_strided((70, 35), strides)
    b = integers(35, 50)
    problem = Problem.of(a, b.tensor)
    expected = (a.double() @ b.tensor.double()).float()
    ours = compiled(FP64.plan(problem, installed(0), Cut(tile)), 0)(a, b.tensor)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    expected = (b.tensor.T.double() @ a.T.double()).float()
    problem = Problem.of(b.tensor.T, a.T)
    ours = compiled(FP64.plan(problem, installed(0), Cut(tile)), 0)(b.tensor.T, a.T)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_integers_up_to_2_to_the_11_are_exact() -> None:
    a, b = integers(300, 40, most=2047), integers(40, 300, most=1)
    torch.testing.assert_close(in_tensor_cores(a.tensor, b.tensor), a.tensor @ b.tensor, rtol=0, atol=0)


PARTS = 8  # of the 200 examples: most of their time goes into compiling, which parts do at the same time


@pytest.mark.parametrize("part", range(PARTS))
def test_random_shapes_and_strides_keep_the_promise(part: int) -> None:
    @seed(part)
    @settings(max_examples=200 // PARTS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        m=st.one_of(st.integers(1, 20), st.integers(1, 400)),
        k=st.one_of(st.integers(1, 70), st.integers(1, 3000)),
        n=st.one_of(st.integers(1, 20), st.integers(1, 400)),
        name=st.sampled_from(sorted(DISTRIBUTIONS)),
        transposed=st.tuples(st.booleans(), st.booleans()),
        pads=st.tuples(*[st.sampled_from([0, 0, 1, 3, 4])] * 2),
        shifts=st.tuples(*[st.sampled_from([0, 0, 1])] * 2),
    )
    def check(
        m: int,
        k: int,
        n: int,
        name: str,
        transposed: tuple[bool, bool],
        pads: tuple[int, int],
        shifts: tuple[int, int],
    ) -> None:
        placed_operands = []
        for x, across, pad, shift in zip(operands(name, m, k, n, "cuda"), transposed, pads, shifts, strict=True):
            strides = (1, x.shape[0] + pad) if across else (x.shape[1] + pad, 1)
            placed_operands.append(Guarded.empty(x.shape, strides, torch.float32, shift))
            placed_operands[-1].tensor.copy_(x)
        a, b = (guarded.tensor for guarded in placed_operands)
        theirs = torch.matmul(a, b)
        assert_promise(tilesmith.matmul(a, b), theirs, a, b)
        if is_for_tensor_cores(a, b):
            in_norm = norm_is_promised_of_planes(name, m, k, n)
            assert_promise(in_tensor_cores(a, b), theirs, a, b, in_norm=in_norm)
        for guarded in placed_operands:
            guarded.assert_outside_untouched()

    check()


def test_a_graph_finds_out_anew_what_its_operands_are_like() -> None:
    """Which scheme multiplies is decided on the GPU, each time."""
    a, b = (torch.randn(500, 500, device="cuda") for _ in range(2))
    problem = Problem.of(a, b)
    plan = hopper.plan(problem, installed(0), hopper.Configuration(128, 128))
    product = compiled(plan, 0)
    result = torch.empty(500, 500, device="cuda")
    product(a, b, result)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(a, b, result)
    for name in ("normal", "graded slices of K", "infinities and NaNs", "uniform", "exponents within 60", "normal"):
        x, y = operands(name, 500, 500, 500, "cuda")
        a.copy_(x)
        b.copy_(y)
        result.fill_(float("nan"))
        graph.replay()
        assert_promise(result, torch.matmul(a, b), a, b)


@pytest.mark.parametrize("name", [*ORDINARY, "graded slices of K", "infinities and NaNs"])
def test_a_result_never_moves_between_runs(name: str) -> None:
    for m, k, n in ((300, 500, 400), (8, 4096, 2048), (64, 32768, 64)):
        a, b = operands(name, m, k, n, "cuda")
        first = tilesmith.matmul(a, b)
        for _ in range(5):
            torch.testing.assert_close(tilesmith.matmul(a, b), first, rtol=0, atol=0, equal_nan=True)


def test_the_workspace_does_not_grow() -> None:
    a, b = torch.randn(1700, 1900, device="cuda"), torch.randn(1900, 1800, device="cuda")
    plan = choose(Problem.of(a, b), installed(0))
    assert plan.workspace_bytes > 0
    tilesmith.matmul(a, b)
    torch.cuda.synchronize()
    gc.collect()  # what other tests left is not to go in between
    before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    for _ in range(1000):
        tilesmith.matmul(a, b)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_reserved(), torch.cuda.memory_allocated()) == before


@pytest.mark.parametrize(
    ("a", "b"), [((400, 300), (300, 500)), ((5, 370, 700), (700, 350)), ((401, 2949), (2949, 333))], ids=str
)
def test_gradients_keep_the_promise(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.randn(a, device="cuda").requires_grad_(), torch.randn(b, device="cuda").requires_grad_()
    result = tilesmith.matmul(x, y)
    weight = torch.randn_like(result)
    result.backward(weight)
    exact_x, exact_y = x.detach().double().requires_grad_(), y.detach().double().requires_grad_()
    torch.matmul(exact_x, exact_y).backward(weight.double())
    for ours, right in ((x.grad, exact_x.grad), (y.grad, exact_y.grad)):
        assert ours is not None and right is not None
        assert ((ours.double() - right).norm() / right.norm()).item() <= 1e-6
