"""Do the host tests notice a wrong line? Changes one line of the sources at a time, in a copy of the tree, and runs the
tests that are to fail then.

    python scripts/mutations.py                      # all of them: about half an hour
    python scripts/mutations.py realign 'split K'    # those whose names contain a word
    python scripts/mutations.py --tests test_emulator_recorded.py --tests test_emulator_kernels.py

It ends with 1 if a change was missed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

ROOT: Final = Path(__file__).resolve().parents[1]

# A name; a file of src/tilesmith; tests of tests/host; a line without its indentation, and what it becomes.
TABLE: Final = """
descriptor: from one swizzle atom to the next
  cuda/tile.cuh
  test_hopper_layout.py::test_every_tile_multiplies_with_edges
- return ptx::matrix_descriptor(tile, mn_major ? atom_bytes : 16, 8 * line_bytes, line_bytes);
+ return ptx::matrix_descriptor(tile, mn_major ? 8 * line_bytes : 16, 8 * line_bytes, line_bytes);
swizzle: of staged results
  cuda/tile.cuh
  test_hopper_layout.py::test_every_tile_multiplies_with_edges
- return address ^ (address >> 7 & (line_bytes / 16 - 1)) << 4;
+ return address ^ (address >> 7 & (line_bytes / 32 - 1)) << 4;
swizzle: of a float32 tile along K
  kernels/hopper/fp32_tile.cuh
  test_terms_emulated.py::test_an_a_is_split_in_registers
- offsets_[i] = (warp * 16 + row) * line_bytes + ((i * 2 + step / 2) ^ row) * 16 + step % 2 * 8;
+ offsets_[i] = (warp * 16 + row) * line_bytes + ((i * 2 + step / 2) ^ row % 4) * 16 + step % 2 * 8;
swizzle: of a float32 tile across K
  kernels/hopper/fp32_tile.cuh
  test_terms_emulated.py::test_an_a_is_split_in_registers
- (((warp % 2 * 4 + h * 2 + row / 4) ^ k) * 16 + row % 4 * sizeof(float));
+ (((warp % 2 * 4 + h * 2 + row / 4) ^ k % 4) * 16 + row % 4 * sizeof(float));
banks: places of a copied tile
  kernels/mma/copied_tile.cuh
  test_kernel_parts.py
- return (mn * depth + k) ^ quarters ^ own_group / 4 % 2 * half_line;
+ return mn * depth + k;
barrier: parity of the third round
  cuda/pipeline.cuh
  test_hopper_layout.py::test_a_ring_goes_round_many_times
- parity ^= 1;
+ parity = 1;
tiles: the last raster group
  cuda/scheduler.cuh
  test_hopper_layout.py::test_blocks_with_several_tiles_cover_all_of_them
- const int rows = min(raster_group, tiles_m - which * raster_group);
+ const int rows = raster_group;
tiles: the next column group
  cuda/column_walk.cuh
  test_hopper_layout.py::test_blocks_that_keep_their_columns_take_group_after_group
- for (; tile_.m >= schedule_.tiles_m; tile_.m -= schedule_.tiles_m) tile_.n += schedule_.column_group;
+ for (; tile_.m >= schedule_.tiles_m; tile_.m -= schedule_.tiles_m) tile_.n += 1;
split_k: where a part begins
  cuda/scheduler.cuh
  test_hopper_layout.py::test_parts_of_k_need_not_be_equal
- k_part * s.k_steps + min(k_part, s.longer_parts), s.k_steps + (k_part < s.longer_parts)};
+ k_part * s.k_steps + s.longer_parts, s.k_steps + (k_part < s.longer_parts)};
split_k: the address of a part of a batch
  kernels/hopper/sending.cuh
  test_hopper_layout.py::test_parts_of_k_need_not_be_equal
- to.batch = {{work.k_part * p.schedule.batches + work.batch}};
+ to.batch = {{work.batch * p.schedule.split_k + work.k_part}};
split_k: the order of parts
  kernels/split_k_reduce.cu
  test_hopper_layout.py::test_parts_of_k_are_added_in_their_order
- for (int split = turn; split < p.split_k; split += turns) {
+ for (int split = p.split_k - 1 - turn; split >= 0; split -= turns) {
batch: strides of the output
  kernels/hopper/sending.cuh
  test_hopper_layout.py::test_batches_and_broadcasting
- for (int d = 0; d < plan::batch_dims; ++d) to.matrix += to.batch.at[d] * p.out_batch_stride[d];
+ for (int d = 0; d < plan::batch_dims; ++d) to.matrix += to.batch.at[d] * p.out_batch_stride[0];
epilogue: lines past the last row
  kernels/hopper/parts/store_lines.cuh
  test_hopper_layout.py::test_outputs_with_any_strides
- const bool is_inside = lane_ < busy && first_line + line < lines_.count;
+ const bool is_inside = lane_ < busy;
epilogue: the last elements of a line
  kernels/hopper/parts/store_lines.cuh
  test_hopper_layout.py::test_chunks_of_every_width_are_stored_by_threads
- if (ends)
+ if (false)
epilogue: vectors past the last column
  kernels/hopper/parts/store_vectors.cuh
  test_hopper_layout.py::test_products_that_only_store_stay_inside_of_their_lines
- if (line < out.count && in_line < out.length)
+ if (line < out.count)
epilogue: columns that are stored directly
  kernels/hopper/parts/store_direct.cuh
  test_terms_emulated.py::test_single_steps_store_their_fragments_directly
- if (m + 8 * h < out.count && n + j < out.length)
+ if (m + 8 * h < out.count && n < out.length)
realign: the end of a line that begins within a vector
  kernels/realign.cu
  test_hopper_layout.py::test_operands_with_any_strides
- const bool holds_some = own.at < c.length && own.at + j * vector < ahead[i] + c.length;
+ const bool holds_some = own.at + j * vector < c.length;
realign: the second operand begins with a warp of its own
  kernels/realign.cu
  test_hopper_layout.py::test_operands_with_any_strides
- first -= (copy.vectors + of_warp - 1) / of_warp * of_warp;
+ first -= copy.vectors;
terms: the end of K
  kernels/fp32_split/task.cuh
  test_terms_emulated.py::test_operands_of_any_strides_are_split
- const int left = mn_major ? (at < o_.depth ? o_.rows - row : 0) : (row < o_.rows ? o_.depth - at : 0);
+ const int left = mn_major ? (at < o_.depth ? o_.rows - row : 0) : (row < o_.rows ? vector : 0);
terms: what undoes a row's scale
  kernels/fp32_split/task.cuh
  test_terms_emulated.py::test_terms_are_multiplied_in_all_layouts
- const float factor = power_of_two(-scale_exponent(sampled(shared, parity, threadIdx.x)));
+ const float factor = power_of_two(-scale_exponent(sampled(shared, parity, 0)));
terms: small products first
  kernels/hopper/term_mma.cuh
  test_emulator_recorded.py::test_the_bits_are_those_of_an_h200[planes graded]
- for (int order = orders - 1; order >= 0; --order)
+ for (int order = 0; order < orders; ++order)
rs: exponents of the parts of K
  kernels/hopper/consume_rs.cuh
  test_terms_emulated.py::test_operands_of_a_batch_and_with_swap_ab_are_split_in_registers
- int* const exponents = p.split_exponents + static_cast<long long>(work.k_part) * p.split_pitch +
+ int* const exponents = p.split_exponents +
skipped zeros: the last row block of a tile
  kernels/hopper/skip_zeros.cuh
  test_terms_emulated.py::test_skipped_zeros_add_nothing
- const int end = min((end_row + rows - 1) / rows, extents.row_blocks) * k_chunks;
+ const int end = min((end_row - 1) / rows, extents.row_blocks) * k_chunks;
skipped zeros: the last step
  kernels/hopper/skip_zeros.cuh
  test_terms_emulated.py::test_skipped_zeros_add_nothing
- const int end = (min(rows.end, columns.end) + tile_k - 1) / tile_k;
+ const int end = min(rows.end, columns.end) / tile_k;
mma: the end of K
  kernels/mma/copied_tile.cuh
  test_emulator_kernels.py::test_fp64_mma_tiles_and_layouts
- const bool is_inside = along_k ? (inside_ >> i & 1u) != 0 : across(i) < k_left;
+ const bool is_inside = along_k ? (inside_ >> i & 1u) != 0 : true;
skinny: the end of K
  kernels/fp64/skinny.cu
  test_emulator_kernels.py::test_skinny
- count = k + v % 4 < p_.k ? p_.n - n_ - v / 4 * 32 : 0;
+ count = p_.n - n_ - v / 4 * 32;
gemv: the end of a part
  kernels/fp64/gemv.cu
  test_emulator_kernels.py::test_gemv
- const int end_k = min(first_k + p.share_k, p.k);
+ const int end_k = p.k;
simt: the end of K
  kernels/simt/staged_tile.cuh
  test_emulator_kernels.py::test_simt_edges
- bool read = (inside_ >> i & 1u) && k_of(i) < k_left;
+ bool read = inside_ >> i & 1u;
range check: of the block that comes last
  kernels/hopper/consume_rs.cuh
  test_terms_emulated.py::test_an_a_is_split_in_registers
- counts.is_last = ptx::arrive(&check.arrived) == gridDim.x - 1;
+ counts.is_last = ptx::arrive(&check.arrived) == 0;
range check: scales past the last row
  kernels/hopper/rs_rows.cuh
  test_terms_emulated.py::test_nothing_depends_on_what_a_workspace_held_before
- scale_[h] = row < rows ? __int_as_float((254 << 23) - factors[h]) : 0.0f;
+ scale_[h] = __int_as_float((254 << 23) - factors[h]);
plan: copies of a batch
  kernels/realign.py
  test_hopper_layout.py::test_batches_and_broadcasting
- vectors=copy.lines * vectors_of_line * math.prod(batch_size),
+ vectors=copy.lines * vectors_of_line,
plan: alignment of a batch of results
  kernels/output.py
  test_hopper_layout.py::test_outputs_with_batches_in_any_order_of_dimensions
- for stride in out.batch_strides:
+ for stride in ():
"""


class Mutation(NamedTuple):
    """A wrong line."""

    name: str
    file: str
    tests: tuple[str, ...]
    line: str
    becomes: str


def mutations() -> Iterator[Mutation]:
    rows = TABLE.strip().splitlines()
    for name, file, tests, line, becomes in zip(*(rows[i::5] for i in range(5)), strict=True):
        assert (line[:2], becomes[:2]) == ("- ", "+ "), name
        yield Mutation(name, file.strip(), tuple(tests.strip().split(", ")), line[2:], becomes[2:])


def changed(mutation: Mutation, text: str) -> str:
    """The text of the file with the wrong line. ValueError if the right one is not there once."""
    lines = text.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.strip() == mutation.line)
    lines[at] = lines[at].replace(mutation.line, mutation.becomes)
    return "\n".join(lines) + "\n"


def is_caught(mutation: Mutation, tests: tuple[str, ...], cache: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        copy = Path(name)
        for folder in ("src", "tests"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "src" / "tilesmith" / mutation.file
        path.write_text(changed(mutation, path.read_text()))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", f"--basetemp={copy / 'pytest'}"]
        own = {"PYTHONPATH": str(copy / "src"), "TILESMITH_TESTS_EMULATOR_CACHE": cache}
        done = subprocess.run(
            [*command, *(f"tests/host/{each}" for each in tests)],
            cwd=copy,
            env={**os.environ, **own, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    if done.returncode not in (0, 1) or failed.startswith("ERROR") or "CompilationError" in failed:
        raise RuntimeError(f"{mutation.name}: the tests did not run\n{done.stdout}{done.stderr}")
    print("       ", failed[:200], flush=True)
    return done.returncode == 1


@click.command()
@click.argument("words", nargs=-1)
@click.option("--tests", multiple=True, help="Files of tests/host, in place of each mutation's own.")
def main(words: tuple[str, ...], tests: tuple[str, ...]) -> None:
    missed = []
    with tempfile.TemporaryDirectory(prefix="mutations-cache-") as cache:
        for mutation in mutations():
            if words and not any(word in mutation.name for word in words):
                continue
            start = time.monotonic()
            caught = is_caught(mutation, tests or mutation.tests, cache)
            print("caught" if caught else "MISSED", f"{time.monotonic() - start:4.0f} s ", mutation.name, flush=True)
            missed += [] if caught else [mutation.name]
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
