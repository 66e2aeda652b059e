"""Bugs planted into copies of the kernels: each is caught, with a message that names the place."""

from collections.abc import Callable, Iterator

import pytest
import torch
from emulated import H200, assert_exact, hopper_plan, integers, normal, plan_named

from tilesmith.core.epilogue import Epilogue
from tilesmith.core.errors import EmulationError
from tilesmith.core.problem import Problem
from tilesmith.emulator import run
from tilesmith.kernels.hopper import family as hopper
from tilesmith.runtime.source import headers

Configuration = hopper.Configuration

pytestmark = pytest.mark.usefixtures("emulator_cache")


def planted(file: str, old: str, new: str) -> dict[str, str]:
    text = headers()[file]
    assert old in text
    return {file: text.replace(old, new, 1)}


def half(replaced: dict[str, str]) -> None:
    a, b = integers(72, 1000), integers(1000, 72, seed=1)
    assert_exact(hopper_plan(a, b, Configuration(128, 64)), a, b, replaced=replaced)


def half_of_many_chunks(replaced: dict[str, str]) -> None:
    a, b = integers(72, 72), integers(72, 256, seed=1)
    assert_exact(hopper_plan(a, b, Configuration(128, 256)), a, b, replaced=replaced)


def half_with_residual(replaced: dict[str, str]) -> None:
    a, b = integers(72, 72), integers(72, 256, seed=1)
    residual = integers(72, 256, seed=2)
    epilogue = Epilogue(residual=residual)
    plan = hopper.plan(Problem.of(a, b, epilogue=epilogue), H200, Configuration(128, 128))
    run(plan, a, b, epilogue=epilogue, replaced=replaced)


def split(replaced: dict[str, str]) -> None:
    a, b = integers(64, 300), integers(300, 72, seed=1)
    run(hopper_plan(a, b, Configuration(64, 64, split_k=3)), a, b, replaced=replaced)


def raw(replaced: dict[str, str]) -> None:
    a, b = normal(64, 200), normal(200, 72, seed=1)
    run(hopper_plan(a, b, Configuration(64, 128, rs=True)), a, b, replaced=replaced)


def terms(replaced: dict[str, str]) -> None:
    a, b = normal(64, 200), normal(200, 72, seed=1)
    run(hopper_plan(a, b, Configuration(64, 64)), a, b, replaced=replaced)


def simt(replaced: dict[str, str]) -> None:
    a, b = integers(37, 45, dtype=torch.float64), integers(45, 33, dtype=torch.float64, seed=1)
    assert_exact(plan_named(a, b, "simt"), a, b, replaced=replaced)


def fp64_mma(replaced: dict[str, str]) -> None:
    a, b = normal(40, 300), normal(300, 40, seed=1)
    run(plan_named(a, b, "fp64_mma 16x16"), a, b, replaced=replaced)


# What is done wrong; what runs it, and the file; the text there, and what it becomes; and what the message says.
TABLE = r"""
no wait for a full stage
  half pipeline.cuh
- ptx::barrier_wait(full[at.stage], at.parity);
+
  mma\.cuh:\d+.* reads 16 bytes of shared memory at \d+ that nobody has written
no wait for an empty stage
  half pipeline.cuh
- ptx::barrier_wait(empty[at.stage], at.parity ^ 1);
+
  pipeline\.cuh:\d+.* arrives at the mbarrier at \d+, which has all its arrivals
no wait for the last product
  half kernels/hopper/parts/mma.cuh
- ptx::wgmma_wait<0>();\n    ring_
+ ring_
  reads the sums of a product that it has not waited for|mma\.cuh:\d+.* under way when its warpgroup ends
no wait before a stage is released
  half kernels/hopper/parts/mma.cuh
- ptx::wgmma_wait<1>();
+
  tile\.cuh:\d+.* writes 16 bytes of shared memory at \d+ that an asynchronous operation is reading
no fence of registers
  raw kernels/hopper/rs_mma.cuh
- ptx::wgmma_fence();\n#pragma unroll\n      for
+ for
  rs_mma\.cuh:\d+.* a product of registers that were written with no wgmma.fence since \(its A\)
no fence between proxies
  half kernels/hopper/parts/store_boxes.cuh
- ptx::async_proxy_fence();
+ ;
  store_boxes\.cuh:\d+.* thread \d+ has written with no fence.proxy.async since
no fence of barriers
  half pipeline.cuh
- ptx::barrier_init_fence();
+
  gemm\.cu:\d+.* the mbarrier at \d+ was initialised with no fence since
no wait for a store
  half_of_many_chunks kernels/hopper/parts/store_boxes.cuh
- ptx::tma_store_wait_read<stores_since<which>>();
+ ;
  store_boxes\.cuh:\d+.* writes 16 bytes of shared memory at \d+ that an asynchronous operation is reading
no wait for the last store
  half kernels/hopper/parts/store_boxes.cuh
- void drain() const {\n    if (issues())\n      ptx::tma_store_wait_read<0>();
+ void drain() const {\n
  store_boxes\.cuh:\d+.* under way when the block ends
no barrier before a staged residual is read
  half_with_residual kernels/hopper/parts/deliver_with_residual.cuh
- residual.stage(lent, line);\n      __syncwarp();
+ residual.stage(lent, line);
  tile_residual\.cuh:\d+.* reads 4 bytes of shared memory at \d+ that nobody has written
more bytes expected than come
  half pipeline.cuh
- expect(full[at.stage], bytes)
+ expect(full[at.stage], bytes + 16)
  deadlock: .*mbarrier at \d+, parity 0: 0 of 1 arrivals and 16 bytes are missing at cuda/pipeline\.cuh:\d+
fewer bytes expected than come
  half pipeline.cuh
- expect(full[at.stage], bytes)
+ expect(full[at.stage], bytes - 16)
  deadlock: .*0 of 1 arrivals are missing, and 16 bytes came that it did not expect
a stage that is not released
  half kernels/hopper/parts/mma.cuh
- ring_.release(previous_, thread_);\n    advance
+ advance
  deadlock: .*block \(0, 0, 0\) threads 0-31: the mbarrier at \d+, parity 0: 2 of 2 arrivals
fewer stages than a step of terms takes
  terms pipeline.cuh
- if (++stage == stages) {
+ if (++stage == 1) {
  deadlock: .*threads 128-255: the mbarrier at \d+, parity 1: 1 of 1 arrivals
a wrong width of the swizzle
  half tile.cuh
- 8 * line_bytes, line_bytes
+ 8 * line_bytes, line_bytes / 2
  mma\.cuh:\d+.* that an asynchronous copy has not delivered yet
an edge off by one
  simt kernels/simt/simt.cu
- if (row >= m)
+ if (row > m)
  simt\.cu:\d+: writes 8 bytes of global memory outside of every buffer: \d+ past the end of out
a stray store
  simt kernels/simt/simt.cu
-   int buffer = 0;
+   int buffer = 0;\n  if (threadIdx.x == 7)\n    shared_bytes[plan::shared_bytes + 5] = 1;
  thread 7 at kernels/simt/simt\.cu:\d+: writes 1 bytes of shared memory, 5 past the end of the block's
no barrier
  simt kernels/simt/simt.cu
- __syncthreads();\n\n
+ \n
  simt\.cu:.* reads \d+ bytes of shared memory at \d+ that nobody has written
a barrier for most
  simt kernels/simt/simt.cu
-   int buffer = 0;
+   int buffer = 0;\n  if (threadIdx.x != 77)\n    __syncthreads();\n  else\n    __syncwarp();
  deadlock: .*threads 77-77: 1 of 32 lanes are at __syncwarp at kernels/simt/simt\.cu:\d+
no wait for copies
  fp64_mma kernels/mma/mma.cu
- ptx::copy_wait<steps_ahead - 1>();
+
  copied_tile\.cuh:\d+.* that an asynchronous copy has not delivered yet
no wait for the launch before
  split kernels/split_k_reduce.cu
- ptx::grid_dependency_wait();
+
  split_k_reduce\.cu:\d+: reads workspace before it waits for the launches before its own
a crash
  simt kernels/simt/simt.cu
-   int buffer = 0;
+   int buffer = 0;\n  if (threadIdx.x == 9)\n    __builtin_trap();
  thread 9 at kernels/simt/simt\.cu:\d+: the emulated kernel got signal
"""


def bugs() -> Iterator[tuple[str, tuple[Callable[[dict[str, str]], None], dict[str, str], str]]]:
    """Names, and what runs each, the file as it is then, and the message."""
    runs = {
        run.__name__: run for run in (half, half_of_many_chunks, half_with_residual, split, raw, terms, simt, fp64_mma)
    }
    rows = TABLE.strip("\n").splitlines()
    for name, where, old, new, message in zip(*(rows[i::5] for i in range(5)), strict=True):
        run, file = where.split()
        texts = (text[2:].replace("\\n", "\n") for text in (old, new))
        yield name, (runs[run], planted(file, *texts), message.strip())


BUGS = dict(bugs())


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    run, replaced, message = BUGS[bug]
    with pytest.raises(EmulationError, match=f"(?s){message}"):
        run(replaced)


def test_a_wrong_swizzle_shows_in_the_result() -> None:
    with pytest.raises(AssertionError, match="not equal"):
        half(planted("tile.cuh", "(address >> 7 &", "(address >> 8 &"))


def test_a_file_that_no_kernel_has_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match=r"'ptx/barrier\.cuh'"):
        simt({"ptx/barrier.cuh": ""})
