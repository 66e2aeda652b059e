"""float32 multiplied in doubles: products of a few rows, and those by a vector."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.fp64 import common, gemv, skinny, words

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
    )
    for name, each in (("gemv", gemv), ("skinny", skinny))
)
