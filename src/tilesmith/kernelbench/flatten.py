"""Kernels as one piece of CUDA text that needs no other file.

NVRTC compiles each kernel from a translation unit of its own. Here several share one: headers that do not depend on a
kernel's constants are there once, all others once for each kernel, in a namespace of its own. Comments are left out.

    namespace <name> {
    namespace common { namespace tilesmith { .. } }
    namespace kernel_0 { namespace plan { .. } namespace tilesmith { .. } }
    namespace kernel_1 ..
    }
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from tilesmith.core.plan import Kernel
from tilesmith.runtime import source

_INCLUDE: Final = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
# What only a kernel's own translation unit has: its constants, its enums, and the product instruction that it uses.
_OF_A_KERNEL: Final = re.compile(r"\bplan::|\b(Store|Scale|Activation)\b|\bptx::wgmma\(")
# A kernel has one of the two forms of the product instruction, and text that may mention the other one.
_BEGINNING: Final = """namespace tilesmith {
using namespace common::tilesmith;
namespace ptx {
using namespace common::tilesmith::ptx;
template <int n>
__device__ void wgmma(float (&sum)[n], unsigned long long a, unsigned long long b, bool accumulate);
template <int n>
__device__ void wgmma(float (&sum)[n], const unsigned (&a)[4], unsigned long long b, bool accumulate);
}
}
"""


def flattened(kernels: Sequence[Kernel], name: str) -> str:
    """The text of all these kernels, in a namespace. The function of the i-th one is `function(i, kernel)` there."""
    common = dict.fromkeys(name for kernel in kernels for name in _files(kernel) if not _is_of_a_kernel(name))
    constants = without_comments(source.library_constants())
    parts = [f"namespace {name} {{\nnamespace common {{\n{constants}", *map(_body, common), "}\n"]
    for i, kernel in enumerate(kernels):
        own = (name for name in _files(kernel) if _is_of_a_kernel(name))
        constants = _INCLUDE.sub("", source.render(kernel))
        text = "".join([_BEGINNING, without_comments(constants), *map(_body, own)])
        parts.append(f"namespace kernel_{i} {{\n{text}}}\n")
    return "".join([*parts, "}\n"])


def function(index: int, kernel: Kernel) -> str:
    """The name of a kernel's function."""
    return f"kernel_{index}::tilesmith::{kernel.entry}"


def without_comments(text: str) -> str:
    r"""C++ text without its comments, and without lines that are empty then. Strings stay as they are.

    >>> without_comments('int a;  // one\n\n// two\nauto b = "//three";\n')
    'int a;\nauto b = "//three";\n'
    """
    kept = re.sub(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or "", text, flags=re.DOTALL)
    return "".join(f"{line.rstrip()}\n" for line in kept.splitlines() if line.strip())


def _files(kernel: Kernel) -> Iterator[str]:
    """The files of a kernel's translation unit, each after those that it includes."""
    seen: set[str] = set()

    def visit(text: str) -> Iterator[str]:
        for name in _INCLUDE.findall(text):
            if name not in seen:
                seen.add(name)
                yield from visit(source.headers()[name])
                yield name

    return visit(source.render(kernel))


@cache
def _is_of_a_kernel(name: str) -> bool:
    """Whether a file's meaning depends on the kernel that includes it."""
    text = source.headers()[name]
    return bool(_OF_A_KERNEL.search(without_comments(text))) or any(map(_is_of_a_kernel, _INCLUDE.findall(text)))


def _body(name: str) -> str:
    text = _INCLUDE.sub("", without_comments(source.headers()[name]))
    return text.replace("#pragma once\n", "").replace('extern "C" __global__', "__global__")
