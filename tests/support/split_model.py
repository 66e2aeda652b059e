"""What several tests know of kernels/split.cu."""

import numpy as np
import numpy.typing as npt


def sampled_ks(samples: int, depth: int) -> npt.NDArray[np.int64]:
    """sampled_k of task.cuh: where along K a row is sampled.

    >>> sampled_ks(8, 100).tolist()
    [0, 1, 12, 37, 62, 87, 98, 99]
    """
    edge, which = samples // 4, np.arange(samples)
    spread = (2 * (which - edge) + 1) * depth // (2 * (samples - 2 * edge))
    last = np.maximum(depth - samples + which, 0)
    return np.where(which < edge, np.minimum(which, depth - 1), np.where(which >= samples - edge, last, spread))
