"""What ptxas makes of the kernels of the `hopper` family: nothing spills, no product waits for another, and the machine
code has the instructions that the plan asks for."""

import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass

import machine_code
import pytest
import torch
from launched import constants_of
from machine_code import assert_does_not_compile, assert_nothing_spills, complaints, instructions_of_each, total
from meta_tensors import laid_out, meta

from tilesmith.core.device import KNOWN_GPUS
from tilesmith.core.plan import Plan, Wgmma
from tilesmith.core.problem import Problem
from tilesmith.kernels import split_k_reduce
from tilesmith.kernels.hopper import constants as gemm
from tilesmith.kernels.hopper import family as hopper
from tilesmith.kernels.hopper import tiles
from tilesmith.kernels.output import Store
from tilesmith.runtime import compiler, source

H200 = KNOWN_GPUS["h200"]
LAYOUTS = ["nn", "nt", "tn", "tt"]
# How the result is stored: along rows or columns, by TMA or ("odd") by the threads, in one step along K
# ("short"), or as partial products.
OUTS = ["rows", "columns", "odd rows", "odd columns", "short rows", "short columns", "split"]
# Batch dimensions of a and b, by the rank of the batch.
BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ()), ((3,), (3,)), ((3, 1), (4,)), ((3, 1), (2, 1, 4))]


@dataclass(frozen=True)
class Case:
    """A kernel that some product needs."""

    tile: tuple[int, int]
    out: str
    wide: bool  # a float32 result
    layout: str
    dtype: torch.dtype
    cluster: int
    rank: int
    many: bool  # more tiles than blocks

    def __str__(self) -> str:
        return "{}x{} {}{}".format(*self.tile, self.out, " float32" * self.wide)

    @property
    def problem(self) -> Problem:
        m, n = (4096, 2048) if self.many else (40, 16)
        k = 64 if self.out.startswith("short") else 256
        a_batch, b_batch = BATCHES[self.rank]
        a = laid_out(*a_batch, m, k, layout=self.layout[0], dtype=self.dtype)
        b = laid_out(*b_batch, k, n, layout=self.layout[1], dtype=self.dtype)
        batch = torch.broadcast_shapes(a_batch, b_batch)
        along_m = self.out.endswith("columns")
        gap = 3 if self.out.startswith("odd") else 0
        shape = (m + gap, n) if along_m else (m, n + gap)
        out_dtype = torch.float32 if self.wide else self.dtype
        out = laid_out(*batch, *shape, layout="t" if along_m else "n", dtype=out_dtype)[..., :m, :n]
        return Problem.of(a, b, out=out, out_dtype=out_dtype)

    @property
    def configuration(self) -> hopper.Configuration:
        return hopper.Configuration(*self.tile, cluster=self.cluster, split_k=2 if self.out == "split" else 1)

    @property
    def is_suited(self) -> bool:
        return hopper.unsuited(self.problem, H200, self.configuration) is None

    @property
    def plan(self) -> Plan:
        return hopper.plan(self.problem, H200, self.configuration)


# How the kernels of a tile store. Partial products are float32 anyway.
STORES = [(out, wide) for out in OUTS for wide in (False, True) if not (out == "split" and wide)]
# The tiles that need the most registers, and those that come next.
LARGEST = [(192, 176), (128, 256), (64, 256)]
LARGE = [(192, 160), (128, 224), (128, 192)]


def cases() -> list[Case]:
    """The largest tiles with every way to store, large ones with every other, and every fifth one where registers
    abound; all else is drawn."""
    draw = random.Random(18)
    found = []
    for (i, tile), (j, (out, wide)) in itertools.product(enumerate(tiles.TILES), enumerate(STORES)):
        if (i + j) % (1 if tile in LARGEST else 2 if tile in LARGE else 5) == 0:
            layout = draw.choice(LAYOUTS if tile[1] > 8 else ["nt", "tt"])
            dtype = draw.choice([torch.bfloat16, torch.float16])
            cluster = draw.choice([1, 2] if tile[1] > 8 else [1])
            rank = draw.randrange(4) % (2 if wide else 4)  # wide results of more dimensions are partial products first
            found.append(Case(tile, out, wide, layout, dtype, cluster, rank, draw.random() < 0.5))
    return [case for case in found if case.is_suited]


CASES = cases()
READ = CASES[::2]  # those whose machine code is read


def constants(plan: Plan) -> gemm.CommonConstants:
    return constants_of(plan.product.kernel, gemm.CommonConstants)


def test_the_cases_cover_what_kernels_can_be_asked_for() -> None:
    def seen(*names: str) -> set[tuple[object, ...]]:
        return {tuple(getattr(case, name) for name in names) for case in CASES}

    assert seen("tile") == {(tile,) for tile in tiles.TILES}
    assert seen("out", "layout") == set(itertools.product(OUTS, LAYOUTS))
    assert seen("out", "cluster") == set(itertools.product(OUTS, (1, 2)))
    assert seen("out", "many") == set(itertools.product(OUTS, (False, True)))
    assert seen("rank", "layout") == set(itertools.product(range(4), LAYOUTS))
    assert seen("dtype", "wide") == set(itertools.product((torch.float16, torch.bfloat16), (False, True)))
    assert seen("cluster", "rank") == set(itertools.product((1, 2), range(4)))
    kernels = [constants(case.plan) for case in CASES]
    stores = {(c.out_store, c.out_along_m, c.Output == "float") for c in kernels}
    # Sums of terms alone are stored directly: see test_terms.py.
    ways = itertools.product(set(Store) - {Store.DIRECT}, (False, True), (False, True))
    assert stores == {(store, *way) for store, *way in ways if store is not Store.VECTORS or way == [False, False]}
    assert {c.batch_dims for c in kernels} == {0, 1, 3}
    assert {c.store_waits for c in kernels} == {False, True}
    assert {c.out_batch_dims for c in kernels} == {0, 1, 3}
    assert {case.tile for case in READ} == set(tiles.TILES)
    assert {(case.out, case.wide) for case in READ} == set(STORES)


def test_only_the_tallest_tiles_leave_results_to_others() -> None:
    """They have too few registers for float32 in lines that start anywhere."""
    left = {(tile, out) for tile, (out, wide) in itertools.product(LARGEST, STORES) if wide} - {
        (case.tile, case.out) for case in CASES if case.wide
    }
    assert left == {((192, 176), out) for out in OUTS if out.startswith("odd")}


@pytest.mark.parametrize("case", [case for case in CASES if case not in READ], ids=str)
def test_no_kernel_spills_or_makes_products_wait(case: Case) -> None:
    assert_nothing_spills(case.plan.product)


@pytest.mark.parametrize(("out", "wide"), STORES)
def test_the_machine_code_is_what_the_plan_asks_for(out: str, wide: bool) -> None:
    cases = [case for case in READ if (case.out, case.wide) == (out, wide)]
    read = instructions_of_each([case.plan.product.kernel for case in cases])
    for case, found in zip(cases, read, strict=True):
        assert_nothing_spills(case.plan.product)
        assert_is_what_the_plan_asks_for(case, found)


def assert_is_what_the_plan_asks_for(case: Case, found: Counter[str]) -> None:
    c = constants(case.plan)
    # The tensor cores' instruction, in the tile's width and the operands' type, four of them for a step along K.
    products = rf"HGMMA\.64x{case.tile[1]}x16\.F32" + (r"\.BF16" if case.dtype == torch.bfloat16 else "")
    assert total(found, products) > 0
    assert total(found, products) == total(found, r"HGMMA.*")
    assert total(found, products) % 4 == 0
    # TMA: a box for A and one for each panel of B, or more of them for each copy of the loop.
    loads = rf"UTMALDG\.{2 + c.batch_dims}D"
    assert total(found, loads) >= 1
    assert total(found, rf"{loads}(\.MULTICAST)?") == total(found, r"UTMALDG.*")
    assert (total(found, rf"{loads}\.MULTICAST") > 0) == (case.cluster > 1)
    stores = rf"UTMASTG\.{2 + c.out_batch_dims}D"
    assert (total(found, stores) > 0) == (c.out_store == Store.BOXES)
    assert total(found, stores) == total(found, r"UTMASTG.*")
    assert (total(found, r"STG\..*") > 0) == (c.out_store != Store.BOXES)
    # Registers change hands once.
    assert total(found, r"USETMAXREG\.DEALLOC.*") == total(found, r"USETMAXREG\.TRY_ALLOC.*") == 1
    # The grid lets its successor start, and waits for its predecessor.
    assert total(found, r"PREEXIT") == total(found, r"ACQBULK") == 1
    assert (total(found, r"UCGABAR_ARV") > 0) == (case.cluster > 1)
    assert total(found, r"(LDL|STL)\b.*") == 0
    assert total(found, r"LDG\..*") == 0  # operands come by TMA alone


def around(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> Plan:
    problem = Problem.of(a, b, out=out, out_dtype=None if out is None else out.dtype)
    return hopper.plan(problem, H200, hopper.Configuration(64, 64, split_k=2))


def odd(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return meta(*shape[:-1], shape[-1] + 1, dtype=dtype)[..., :-1]


BFLOAT16, FLOAT16 = meta(128, 128, dtype=torch.bfloat16), meta(128, 128, dtype=torch.float16)
AROUND = {
    "one copy": around(odd(64, 128), meta(128, 64, dtype=torch.bfloat16)),
    "two copies": around(odd(64, 128), odd(128, 64)),
    "copies of a batch": around(odd(3, 64, 128), odd(3, 128, 64)),
    "copies of three dimensions": around(odd(3, 1, 64, 128), odd(2, 1, 4, 128, 64)),
    "vectors": around(FLOAT16, FLOAT16),
    "elements": around(FLOAT16, FLOAT16, odd(128, 128, dtype=torch.float16)),
    "float32": around(BFLOAT16, BFLOAT16, meta(128, 128, dtype=torch.float32)),
    "float32 elements": around(BFLOAT16, BFLOAT16, meta(128, 256, dtype=torch.float32)[:, ::2]),
}


@pytest.mark.parametrize("plan", AROUND.values(), ids=AROUND)
def test_copies_and_reductions_do_not_spill_and_move_vectors(plan: Plan) -> None:
    launches = [launch for launch in plan.launches if launch is not plan.product]
    assert launches
    read = instructions_of_each([launch.kernel for launch in launches])
    for launch, found in zip(launches, read, strict=True):
        assert_nothing_spills(launch)
        assert total(found, r"(LDL|STL)\b.*") == 0
        assert total(found, r"LDG\.E(\.EF)?\.128.*") > 0
        assert total(found, r"ACQBULK") == 1
        if launch.kernel.entry == "realign":
            assert total(found, r"STG\.E\.128.*") > 0
        else:
            c = constants_of(launch.kernel, split_k_reduce.Constants)
            vector, single = ("STG.E.128", "STG.E") if c.Output == "float" else ("STG.E.64", "STG.E.U16")
            assert (total(found, re.escape(vector)), total(found, re.escape(single))) == (1, 4)
            assert total(found, r"STG\..*") == 5


# The tests of these tests: what they look for can be seen.


def test_kernels_that_are_read_together_are_read_like_each_alone() -> None:
    kernels = [launch.kernel for launch in AROUND["two copies"].launches if not launch.multiplies]
    assert len(kernels) == 2
    assert instructions_of_each(kernels) == [
        machine_code.instructions_in(machine_code.disassembled(kernel)) for kernel in kernels
    ]


def test_products_that_wait_for_each_other_show_in_the_log() -> None:
    text = f"""#include "ptx/wgmma.cuh"
    {source._wgmma(Wgmma(8, torch.bfloat16, False, False))}
    extern "C" __global__ void f(float* x, unsigned long long a, unsigned long long b, int n) {{
      float sum[4] = {{}};
      for (int i = 0; i < n; ++i) {{
        tilesmith::ptx::wgmma_fence();
        tilesmith::ptx::wgmma(sum, a + i, b, true);
        tilesmith::ptx::wgmma_commit();
        sum[i & 1] += 1.0f;
      }}
      tilesmith::ptx::wgmma_wait<0>();
      for (int i = 0; i < 4; ++i) x[i] = sum[i];
    }}"""
    _, log = compiler._compile(text, "sm_90a", "--ptxas-options=-v")
    assert any("C75" in line and "serialized" in line for line in complaints(log))


def test_a_warning_of_the_compiler_shows_in_the_log() -> None:
    _, log = compiler._compile('extern "C" __global__ void f() { int unused; }', "sm_90a", "--ptxas-options=-v")
    assert complaints(log) != []


LOOP = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LDS.128 R4, [R0] ;
.L_x_0:
        /*0020*/                   WARPGROUP.ARRIVE ;
        /*0030*/                   HGMMA.64x8x16.F32 R24, R4, gdesc[UR8], R24, gsb0 ;
        /*0040*/                   {during} ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, {left} ;
        /*0060*/                   {after} ;
        /*0070*/                   ISETP.NE.AND P0, PT, R0, RZ, PT ;
        /*0080*/               @P0 BRA `(.L_x_0) ;
        /*0090*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00a0*/                   LDS.128 R4, [R0] ;
        /*00b0*/                   EXIT ;
.L_x_1:
        /*00c0*/                   BRA `(.L_x_1);
"""


@pytest.mark.parametrize(
    ("during", "after", "left", "found"),
    [
        ("LDS.128 R8, [R0]", "MOV R4, R8", "0x0", []),
        ("LDS.128 R4, [R0]", "MOV R8, R9", "0x0", ["LDS.128 R4, [R0]"]),
        ("@!P1 MOV R7, R9", "MOV R8, R9", "0x0", ["@!P1 MOV R7, R9"]),
        ("LDS.64 R2, [R0]", "MOV R8, R9", "0x0", []),
        ("LDS.128 R2, [R0]", "MOV R8, R9", "0x0", ["LDS.128 R2, [R0]"]),
        ("CS2R R6, SRZ", "MOV R8, R9", "0x0", ["CS2R R6, SRZ"]),
        ("CS2R.32 R3, SR_CLOCKLO", "MOV R8, R9", "0x0", []),
        ("IMAD.WIDE.U32 R2, R8, 0x4, R4", "MOV R8, R9", "0x0", []),
        ("IMAD.WIDE.U32 R3, R8, 0x4, R4", "MOV R8, R9", "0x0", ["IMAD.WIDE.U32 R3, R8, 0x4, R4"]),
        ("SHFL.BFLY PT, R5, R8, 0x1, 0x1f", "MOV R8, R9", "0x0", ["SHFL.BFLY PT, R5, R8, 0x1, 0x1f"]),
        ("FADD R25, R24, R24", "MOV R8, R9", "0x0", ["FADD R25, R24, R24"]),  # a sum
        ("STS.128 [R4], R4", "FSETP.GE.AND P1, PT, R4, R5, PT", "0x1", []),
        ("R2UR UR4, R4", "STG.E desc[UR14][R4.64], R5", "0x1", []),
        # Not all are waited for: what comes after this wait, or around the loop, is too early.
        ("NOP", "F2FP.F16.F32.PACK_AB R4, R8, R9", "0x1", ["F2FP.F16.F32.PACK_AB R4, R8, R9"]),
        ("NOP", "BRA `(.L_x_1)", "0x0", []),
    ],
)
def test_registers_that_are_written_while_products_may_read_them_are_found(
    during: str, after: str, left: str, found: list[str]
) -> None:
    text = LOOP.format(during=during, after=after, left=left)
    assert machine_code.overwritten_operands(text) == found
    assert machine_code.products_of_registers(text) == 1


def test_registers_that_are_written_around_a_loop_before_the_wait_are_found() -> None:
    """The products of one round are waited for in the next one, where the registers have been written already."""
    text = """
.L_x_0:
        /*0000*/                   LDS.128 R4, [R0] ;
        /*0010*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0020*/                   HGMMA.64x8x16.F32 R24, R{a}, gdesc[UR8], R24, gsb0 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/                   BRA `(.L_x_0) ;
.L_x_2:
        /*0050*/                   EXIT ;
"""
    assert machine_code.overwritten_operands(text.replace("{a}", "4")) == ["LDS.128 R4, [R0]"]
    assert machine_code.overwritten_operands(text.replace("{a}", "8")) == []
    of_descriptors = text.replace("R{a}, gdesc[UR8]", "gdesc[UR8]")
    assert machine_code.overwritten_operands(of_descriptors) == []
    assert machine_code.products_of_registers(of_descriptors) == 0


@pytest.mark.parametrize(("left", "found"), [("0x1", ["MOV R8, R2"]), ("0x0", [])])
def test_products_are_waited_for_by_groups(left: str, found: list[str]) -> None:
    """A wait for all groups but one leaves the second one under way."""
    text = f"""
        /*0000*/                   HGMMA.64x8x16.F32 R24, R4, gdesc[UR8], RZ, !UPT ;
        /*0010*/                   HGMMA.64x8x16.F32 R24, R4, gdesc[UR8], R24, gsb0 ;
        /*0020*/                   HGMMA.64x8x16.F32 R28, R8, gdesc[UR8], RZ, !UPT, gsb0 ;
        /*0030*/                   WARPGROUP.DEPBAR.LE gsb0, {left} ;
        /*0040*/                   MOV R4, R2 ;
        /*0050*/                   MOV R8, R2 ;
        /*0060*/                   EXIT ;
"""
    assert machine_code.overwritten_operands(text) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shared_bytes", CASES[0].plan.product.kernel.shared_bytes + difference) for difference in (-16, 16)),
        *(("threads", 256), ("b_extent", 100), ("tile_m", 64), ("stages", 3), ("chunk", 24)),
    ],
)
def test_constants_that_contradict_each_other_do_not_compile(name: str, value: int) -> None:
    text = source.render(CASES[0].plan.product.kernel)
    assert_does_not_compile(text, re.sub(rf"\b{name} = \d+;", f"{name} = {value};", text))


def test_parameters_of_another_size_do_not_compile() -> None:
    for launch in AROUND["two copies"].launches:
        size, text = len(launch.parameters.packed()), source.render(launch.kernel)
        assert_does_not_compile(text, text.replace(f"(Parameters) == {size}", f"(Parameters) == {size + 8}"))


def test_a_tile_that_the_product_instruction_does_not_fit_does_not_compile() -> None:
    text = source.render(CASES[0].plan.product.kernel)
    wrong = text.replace(f"tile_n = {constants(CASES[0].plan).tile_n};", "tile_n = 100;")
    assert_does_not_compile(text, wrong, r"float \[50\]")
