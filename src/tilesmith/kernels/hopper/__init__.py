"""Hopper's tensor cores, by TMA and wgmma: 16-bit operands, and float32 as sums of 16-bit terms."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.hopper import family, words

FAMILIES = (
    Family(
        name="hopper",
        serves=family.serves,
        rejects=family.rejects,
        candidates=family.candidates,
        exclusions=family.exclusions,
        launch_words=words.launch_words,
        sum_words=words.sum_words,
        kernels=family.kernels,
        cheapest=family.cheapest,
        packing=family.packing,
        with_configuration=family.with_configuration,
    ),
)
