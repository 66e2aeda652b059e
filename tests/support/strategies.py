"""Strides and batches of any kind, for hypothesis."""

from collections.abc import Sequence

from hypothesis import strategies as st


@st.composite
def strides_for(draw: st.DrawFn, shape: Sequence[int], may_expand: bool = False) -> tuple[list[int], int]:
    """Strides in which no two elements meet, in any order of the dimensions, with gaps; and an offset. The common
    ones are multiples of 8 where they can be. Operands may also be expanded: any dimension may have the stride 0."""
    strides = [0] * len(shape)
    step = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
    is_aligned = draw(st.booleans())
    for dimension in draw(st.permutations(range(len(shape)))):
        strides[dimension] = step
        step = step * shape[dimension] + draw(st.sampled_from([0, 0, 0, 1, 4, 5]))
        if is_aligned:
            step = -(-step // 8) * 8
    if may_expand and draw(st.integers(0, 4)) == 0:
        strides[draw(st.integers(0, len(shape) - 1))] = 0
    return strides, draw(st.sampled_from([0, 0, 0, 8, 1, 2, 4, 7]))


@st.composite
def batches(draw: st.DrawFn, most: int = 3) -> tuple[list[int], list[int]]:
    """Batch dimensions of a and b that broadcast."""
    batch = draw(st.lists(st.integers(1, 3), max_size=most))

    def part() -> list[int]:
        ones = [size if draw(st.booleans()) else 1 for size in batch]
        return ones[draw(st.integers(0, len(ones))) :]

    return part(), part()
