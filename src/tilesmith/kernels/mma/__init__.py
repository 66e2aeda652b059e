"""The tensor cores by products in a warp's registers, of float32 as it lies: as doubles, or as TF32."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.mma import words
from tilesmith.kernels.mma.family import FP64, TF32

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
    for each, sum_words in ((FP64, words.sum_words_of_doubles), (TF32, words.sum_words_of_tf32))
)
