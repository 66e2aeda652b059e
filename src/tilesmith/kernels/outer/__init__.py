"""float32 products of a short K on the CUDA cores."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.outer import outer, words

FAMILIES = (
    Family(
        name=outer.NAME,
        serves=outer.serves,
        rejects=outer.rejects,
        candidates=outer.candidates,
        exclusions=outer.exclusions,
        launch_words=words.launch_words,
        sum_words=words.sum_words,
        kernels=outer.kernels,
    ),
)
