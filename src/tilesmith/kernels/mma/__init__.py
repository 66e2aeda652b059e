"""The tensor cores by products in a warp's registers: float64, float32 as doubles, as TF32 or in 16-bit terms, 16 and 8
bits."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.mma import fp32, int8, words
from tilesmith.kernels.mma.family import FLOAT64, FP64, HALF, TF32
from tilesmith.kernels.words import sums_of_halves

_OF_OPERANDS = tuple(
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
        (FLOAT64, words.sum_words_of_float64),
        (FP64, words.sum_words_of_doubles),
        (TF32, words.sum_words_of_tf32),
        (HALF, sums_of_halves),
    )
)
_OF_TERMS = Family(
    name=fp32.NAME,
    serves=fp32.serves,
    rejects=fp32.rejects,
    candidates=fp32.candidates,
    exclusions=fp32.exclusions,
    launch_words=words.launch_words,
    sum_words=words.sum_words_of_terms,
    kernels=fp32.kernels,
    cheapest=fp32.cheapest,
    min_cycles=fp32.min_cycles,
    leaves_small_to_fallback=True,
)
_OF_PAIRS = Family(
    name=int8.NAME,
    serves=int8.serves,
    rejects=int8.rejects,
    candidates=int8.candidates,
    exclusions=int8.exclusions,
    launch_words=words.launch_words,
    sum_words=words.sum_words_of_integers,
    kernels=int8.kernels,
    cheapest=int8.cheapest,
    min_cycles=int8.min_cycles,
    leaves_small_to_fallback=True,
)
FAMILIES = (*_OF_OPERANDS, _OF_TERMS, _OF_PAIRS)
