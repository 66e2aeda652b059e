"""Kernels as one piece of CUDA text, and the files that it includes.

NVRTC compiles each kernel from a translation unit of its own. Here several share one: files that do not depend on a
kernel's constants are included once, all others once for each kernel, in a namespace of its own. Comments are left out.

    namespace <name> {
    namespace common { #include .. }
    namespace kernel_0 { namespace plan { .. } #include .. }
    namespace kernel_1 ..
    }
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Final

from tilesmith.core.plan import Kernel
from tilesmith.runtime import source

_INCLUDE: Final = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
# What only a kernel's own translation unit has: its constants, its enums, and the product instruction that it uses.
_OF_A_KERNEL: Final = re.compile(r"\bplan::|\b(Store|Scale|Activation)\b|\bptx::wgmma\(")
_WGMMA: Final = "ptx::wgmma("
_BEGINNING: Final = """namespace tilesmith {
using namespace common::tilesmith;
namespace ptx {
using namespace common::tilesmith::ptx;
"""
# A kernel has one of the two forms of the product instruction, and text that may mention the other one.
_FORMS_OF_WGMMA: Final = """template <int n>
__device__ void wgmma(float (&sum)[n], unsigned long long a, unsigned long long b, bool accumulate);
template <int n>
__device__ void wgmma(float (&sum)[n], const unsigned (&a)[4], unsigned long long b, bool accumulate);
"""


def flattened(kernels: Sequence[Kernel], name: str) -> str:
    """The text of all these kernels, in a namespace, that needs no other file."""
    files = files_of(kernels)
    return _INCLUDE.sub(lambda found: files[found[1]], including(kernels, name))


def including(kernels: Sequence[Kernel], name: str) -> str:
    """The same with `#include` where there is a file. The function of the i-th kernel is `function(i, kernel)`."""
    common = dict.fromkeys(name for kernel in kernels for name in _files(kernel) if not _is_of_a_kernel(name))
    constants = without_comments(source.library_constants())
    parts = [f"namespace {name} {{\nnamespace common {{\n{constants}", *map(_include, common), "}\n"]
    parts += [f"namespace kernel_{i} {{\n{_own(kernel)}}}\n" for i, kernel in enumerate(kernels)]
    return "".join([*parts, "}\n"])


def _own(kernel: Kernel) -> str:
    """What a kernel has in a namespace of its own."""
    files = [name for name in _files(kernel) if _is_of_a_kernel(name)]
    forms = _FORMS_OF_WGMMA if any(_WGMMA in source.headers()[name] for name in files) else ""
    rendered = _INCLUDE.sub("", source.render(kernel).removeprefix(source.library_constants()))
    constants = without_comments(rendered.replace(kernel.parameters, _include(_parameters_of(kernel))))
    return "".join([_BEGINNING, forms, "}\n}\n", constants, *map(_include, files)])


def _parameters_of(kernel: Kernel) -> str:
    """The name of a file that declares a kernel's parameters."""
    return f"{kernel.entry}_parameters_{sha256(kernel.parameters.encode()).hexdigest()[:4]}"


def files_of(kernels: Iterable[Kernel]) -> dict[str, str]:
    """The files that the text of these kernels includes, by name. They include no others."""
    found: dict[str, str] = {}
    for kernel in kernels:
        found[_parameters_of(kernel)] = kernel.parameters
        found |= {name: _body(name) for name in _files(kernel)}
    return found


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


def _include(name: str) -> str:
    return f'#include "{name}"\n'


def _body(name: str) -> str:
    text = _INCLUDE.sub("", without_comments(source.headers()[name]))
    return text.replace("#pragma once\n", "").replace('extern "C" __global__', "__global__")
