"""The emulator against an H200: small products of every kind of kernel have the same bits, in whatever order threads
run."""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
import recorded_products
from recorded_products import PRODUCTS, Recorded, bits

import tilesmith
from tilesmith.emulator.run import run

pytestmark = pytest.mark.usefixtures("emulator_cache")

SOURCES = Path(tilesmith.__file__).parent

# What differs from another one only in its size, its layout, its batch or the blocks that share it: its sums are the
# same, and the tests of its kernel have all of these.
TWINS: Final = {
    "simt batch": "simt float32",
    **dict.fromkeys(("exact NT", "exact tN", "exact tt", "exact batch"), "exact nn"),
    "thin columns": "thin",
    "outer odd": "outer",
    **dict.fromkeys(("bfloat16 nt", "bfloat16 tn", "bfloat16 tt", "bfloat16 transposed"), "bfloat16 nn"),
    "bfloat16 batch": "bfloat16 nn",
    **dict.fromkeys(("float16 nt", "float16 tn"), "float16 realigned"),
    **dict.fromkeys(("planes Nt", "planes tN", "planes TT", "planes cluster", "planes batch"), "planes nn"),
    **dict.fromkeys(("tf32 wgmma tt", "tf32 wgmma tn", "tf32 wgmma TN"), "tf32 wgmma nn"),
    "half mma NT": "half mma nn",
    **dict.fromkeys(("large halves nt", "large halves tn", "large halves tt"), "large halves nn"),
    **dict.fromkeys(("terms Nt", "terms tN", "terms TT", "terms batch"), "terms nn"),
    **dict.fromkeys(("one term Nt", "one term tN"), "one term split"),
}
COMPARED = [each for each in PRODUCTS if each.name not in TWINS]


@pytest.fixture(scope="module")
def on_h200() -> dict[str, npt.NDArray[np.generic]]:
    return recorded_products.load()


@pytest.mark.parametrize("product", COMPARED, ids=lambda each: each.name)
def test_the_bits_are_those_of_an_h200(product: Recorded, on_h200: dict[str, npt.NDArray[np.generic]]) -> None:
    plan, a, b = product.on_cpu()
    for seed in (None, 1):
        np.testing.assert_array_equal(bits(run(plan, a, b, seed=seed)), on_h200[product.name])


def sources(product: Recorded) -> set[str]:
    return {launch.kernel.source for launch in product.on_cpu()[0].launches}


def test_every_kernel_source_is_among_them() -> None:
    used = {source for product in COMPARED for source in sources(product)}
    assert used == {str(path.relative_to(SOURCES)) for path in SOURCES.glob("kernels/**/*.cu")}


def test_what_is_left_out_is_computed_as_another_one_is() -> None:
    by_name = {each.name: each for each in PRODUCTS}
    compared = {each.name for each in COMPARED}
    for name, twin in TWINS.items():
        one, other = by_name[name], by_name[twin]
        assert twin in compared
        assert sources(one) - {"kernels/turn.cu"} <= sources(other)
        for about in ("dtype", "b_dtype", "out_dtype", "accuracy", "values"):
            assert getattr(one, about) == getattr(other, about), (name, about)
