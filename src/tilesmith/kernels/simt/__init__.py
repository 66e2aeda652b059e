"""The CUDA cores: every type and stride, on every GPU."""

from tilesmith.kernels.family import Family
from tilesmith.kernels.simt import catalogue, family, words

FAMILIES = (
    Family(
        name="simt",
        serves=family.serves,
        rejects=family.rejects,
        candidates=family.candidates,
        exclusions=family.exclusions,
        launch_words=words.launch_words,
        sum_words=words.sum_words,
        kernels=catalogue.kernels,
        general_kernels=family.general_kernels,
        is_fallback=True,
    ),
)
