"""Hopper's tensor cores, by TMA and wgmma: 16-bit operands, and float32 as sums of 16-bit terms."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.hopper import family, tf32, words

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
    Family(
        name="hopper_tf32",
        serves=tf32.serves,
        rejects=tf32.rejects,
        candidates=tf32.candidates,
        exclusions=tf32.exclusions,
        launch_words=words.launch_words,
        sum_words=tf32.sum_words,
        kernels=tf32.kernels,
        cheapest=tf32.cheapest,
    ),
)
