"""The compiled code of a kernel, wherever it comes from."""

from tilesmith.core.plan import Kernel
from tilesmith.runtime import archive, cache, source


def cubin(kernel: Kernel, arch: str) -> bytes:
    """The cubin of a kernel: from an archive, or from the cache on disk, or compiled."""
    found = archive.find(kernel, arch)
    if found is not None:
        return found
    return cache.cubin(source.render(kernel), arch, about=cache.About.of(kernel, arch))
