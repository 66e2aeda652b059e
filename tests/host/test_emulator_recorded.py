"""The emulator against an H200: small products of every kind of kernel have the same bits, in whatever order threads
run."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import recorded_products
from recorded_products import PRODUCTS, Recorded, bits

import tilesmith
from tilesmith.emulator.run import run

pytestmark = pytest.mark.usefixtures("emulator_cache")

SOURCES = Path(tilesmith.__file__).parent


@pytest.fixture(scope="module")
def on_h200() -> dict[str, npt.NDArray[np.generic]]:
    return recorded_products.load()


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda each: each.name)
def test_the_bits_are_those_of_an_h200(product: Recorded, on_h200: dict[str, npt.NDArray[np.generic]]) -> None:
    plan, a, b = product.on_cpu()
    for seed in (None, 1):
        np.testing.assert_array_equal(bits(run(plan, a, b, seed=seed)), on_h200[product.name])


def test_every_kernel_source_is_among_them() -> None:
    used = {launch.kernel.source for product in PRODUCTS for launch in product.on_cpu()[0].launches}
    assert used == {str(path.relative_to(SOURCES)) for path in SOURCES.glob("kernels/**/*.cu")}
