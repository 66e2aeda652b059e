"""The tensor cores by products in a warp's registers, of operands as they lie: float32 as doubles or as
TF32, and 16 bits."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.mma import words
from tilesmith.kernels.mma.family import FP64, HALF, TF32
from tilesmith.kernels.words import sums_of_halves

FAMILIES = tuple(
    Family(
        name=each.name,
        serves=each.serves,
        rejects=each.rejects,
        candidates=each.candidates,
        exclusions=each.exclusions,
        launch_words=words.launch_words,
        sum_words=sum_words,
        kernels=each.kernels,
        cheapest=each.cheapest,
        min_cycles=each.min_cycles,
    )
    for each, sum_words in (
        (FP64, words.sum_words_of_doubles),
        (TF32, words.sum_words_of_tf32),
        (HALF, sums_of_halves),
    )
)
