"""float32 multiplied in doubles: small products, those of a few rows, and those by a vector."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.fp64 import common, fp64_mma, gemv, mma_tiles, skinny, words

FAMILIES = tuple(
    Family(
        name=name,
        serves=common.serves,
        rejects=each.rejects,
        candidates=each.candidates,
        exclusions=each.exclusions,
        launch_words=words.launch_words,
        sum_words=words.sum_words,
        kernels=each.kernels,
        cheapest=cheapest,
        min_cycles=min_cycles,
    )
    for name, each, cheapest, min_cycles in (
        ("gemv", gemv, None, None),
        ("skinny", skinny, None, None),
        ("fp64_mma", fp64_mma, fp64_mma.cheapest, mma_tiles.min_cycles),
    )
)
