"""The products whose kernels scripts/compare_machine_code.py compares: of every type, layout and epilogue, and of sizes
for which each family of kernels is chosen. This file knows nothing of the package."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class Case:
    """A product as a user could ask for it, in tensors that have no memory."""

    gpu: str
    a: torch.Tensor
    b: torch.Tensor
    accuracy: Literal["fp32", "tf32", "ieee"] = "fp32"
    out_dtype: torch.dtype | None = None
    out: torch.Tensor | None = None
    packed: str = ""  # which of the operands are: "a", "b" or "ab"
    skips_zeros: bool = False
    further: int = 0  # candidates besides the one that is chosen
    adds: bool = False  # with the kernels that add to what the output has, besides
    epilogue: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        """The product in words, none of which is a name of the package's."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "further"}
        return ", ".join(f"{name} {_described(x)}" for name, x in fields.items() if isinstance(x, torch.Tensor) or x)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} by {value.stride()} from {value.storage_offset()}"
    return " ".join(map(_described, value)) if isinstance(value, tuple) else str(value)


def _tensor(shape: tuple[int, ...], dtype: str, layout: str = "N") -> torch.Tensor:
    """By rows (N), by columns (T), or by rows with an odd pitch (P), from an odd address (O), every second value (S),
    or the same column again (E)."""
    *batch, rows, columns = (1, *shape) if len(shape) == 1 else shape
    line, step = {"P": (columns + 3 - columns % 2, 1), "S": (2 * columns, 2), "E": (1, 0)}.get(layout, (columns, 1))
    strides, size = [line, step], rows * line
    if layout == "T":
        strides, size = [1, rows], rows * columns
    for count in reversed(batch):
        strides, size = [size, *strides], size * count
    storage = torch.empty(size + 1, dtype=getattr(torch, dtype), device="meta")
    return storage.as_strided(shape, strides[-len(shape) :], int(layout == "O"))


def _case(gpu: str, types: str, sizes: tuple[int, int, int], layouts: str = "NN", **more: Any) -> Case:
    """`types`: of both operands, or of each. `layouts`: of each, and of the output if it is given. `batches`: of each.
    `added`: words for what an epilogue does."""
    (m, k, n), (a_type, *b_type) = sizes, types.split()
    a_batch, b_batch = more.pop("batches", ((), ()))
    out_dtype, words = more.pop("out_dtype", None), more.pop("added", "").split()
    result = out_dtype or ("float32" if b_type else a_type)
    if len(layouts) == 3:
        more["out"] = _tensor((*max(a_batch, b_batch, key=len), m, n), result, layouts[2])
    if words:
        residuals = {"residual": (m, n), "row": (n,), "column": (m, 1), "columns": (m, n), "pitched": (m, n)}
        found = next((word for word in words if word in residuals), None)
        letter = {"columns": "T", "pitched": "P"}.get(str(found), "N")
        more["epilogue"] = (
            _tensor((n,), a_type if "narrow" in words else result) if "bias" in words else None,
            next((word for word in words if word in ACTIVATIONS), None),
            _tensor(residuals[found], result, letter) if found else None,
            *((0.5, 2.0) if "scaled" in words else (1.0, 1.0)),
        )
    return Case(
        gpu,
        _tensor((*a_batch, m, k), a_type, layouts[0]),
        _tensor((*b_batch, k, n), b_type[0] if b_type else a_type, layouts[1]),
        out_dtype=None if out_dtype is None else getattr(torch, out_dtype),
        **more,
    )


LAYOUTS = ("NN", "NT", "TN", "TT")
BATCHES = (((3,), (3,)), ((3, 1), (1, 2)), ((4,), ()), ((), (4,)))
EPILOGUES = (
    *("bias", "bias relu", "bias gelu_tanh residual", "silu row", "residual scaled", "bias columns", "column"),
    *("bias gelu", "scaled", "bias pitched scaled"),
)
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def cases() -> Iterator[Case]:
    """For every family, with each of its ways; the order does not matter."""
    yield from _sixteen_bit_cases()
    yield from _float32_cases()
    yield from _doubles_cases()
    yield from _cuda_core_cases()
    yield from _epilogue_cases()


def _sixteen_bit_cases() -> Iterator[Case]:
    """The tensor cores' own types."""
    for layout in LAYOUTS:
        yield _case("h200", "bfloat16", (4096, 4096, 4096), layout, further=1)
        yield _case("h200", "bfloat16", (4096, 8192, 4096), layout)
        yield _case("h200", "bfloat16", (4096, 2048, 6144), layout)
        yield _case("h200", "float16", (1024, 512, 768), layout, further=1)
        yield _case("h200", "bfloat16", (16, 4096, 4096), layout)
    for layout in ("PN", "NP", "PP", "ON", "SN", "NNT", "NNP", "TTT", "NTS"):
        yield _case("h200", "bfloat16", (520, 328, 520), layout)
    for sizes in (
        *((521, 199, 519), (19200, 64, 520), (128, 8192, 128), (17, 600, 263), (1, 4096, 4096), (2304, 256, 2112)),
        *((129, 8200, 120), (16, 4160, 4000), (4000, 4160, 4000), (19000, 56, 520), (8, 2048, 8192)),
    ):
        yield _case("h200", "bfloat16", sizes, further=1)
        yield _case("h200", "float16", sizes, "NT", out_dtype="float32")
    for batches in BATCHES:
        yield _case("h200", "bfloat16", (130, 192, 136), batches=batches)
        yield _case("h200", "bfloat16", (131, 193, 137), batches=batches)


def _float32_cases() -> Iterator[Case]:
    """Terms, of one scheme and of the other, for each accuracy; raw, packed, mixed, with zeros."""
    for layout in LAYOUTS:
        yield _case("h200", "float32", (4096, 4096, 4096), layout, further=1)
        yield _case("h200", "float32", (4096, 4096, 4096), layout, skips_zeros=True)
        yield _case("h200", "float32", (4000, 4096, 4000), layout)
    for layout in ("NN", "TT"):
        yield _case("h200", "float32", (4096, 4096, 4096), layout, accuracy="tf32")
        yield _case("h200", "float32", (4096, 1024, 128), layout, further=2)
    for layout in ("PN", "OO", "SN", "NNT", "NNP"):
        yield _case("h200", "float32", (2048, 520, 2048), layout)
    for sizes in ((19200, 64, 520), (2048, 300, 2049), (256, 16384, 256), (64, 4096, 4096), (16384, 256, 64)):
        yield _case("h200", "float32", sizes, further=1)
    for sizes in ((96, 9000, 2050), (256, 8192, 256), (8192, 64, 512)):
        yield _case("h200", "float32", sizes, "NT", accuracy="tf32", further=1)
    yield _case("h200", "float32", (2048, 1024, 96), further=2, batches=((3,), (3,)))
    for batches in BATCHES[1:]:
        yield _case("h200", "float32", (512, 512, 520), batches=batches)
    for layout, packed in (("NN", "a"), ("NT", "b"), ("TT", "ab"), ("TN", "a")):
        yield _case("h200", "float32", (1024, 1024, 1024), layout, packed=packed)
    yield _case("h200", "float32", (130, 200, 136), packed="b", batches=((3,), (3,)))
    for types, layout in (("float32 bfloat16", "NT"), ("bfloat16 float32", "NN"), ("float16 float32", "TT")):
        yield _case("h200", types, (2048, 1024, 2048), layout)
    yield _case("h200", "float32 bfloat16", (2048, 1024, 2048), "NT", accuracy="tf32")


def _doubles_cases() -> Iterator[Case]:
    """float32 in doubles: few rows, single vectors, short sums."""
    for layout in (*LAYOUTS, "PN", "NP", "OO", "NNT"):
        yield _case("h200", "float32", (12, 2048, 4096), layout)
        yield _case("h200", "float32", (5, 700, 301), layout)
        yield _case("h200", "float32", (260, 32, 264), layout)
        yield _case("h200", "float32", (67, 30, 65), layout, further=1)
        yield _case("h200", "float32", (71, 31, 67), layout)
    for sizes in ((1, 4096, 4096), (4096, 4096, 1), (4, 30000, 300), (300, 700, 3), (1, 20001, 301), (3, 20000, 1)):
        yield _case("h200", "float32", sizes, "NT")
        yield _case("h200", "float32", sizes, "TN")
    for batches in BATCHES:
        yield _case("h200", "float32", (33, 32, 36), batches=batches, further=1)


def _cuda_core_cases() -> Iterator[Case]:
    """All types, and all strides."""
    for dtype, gpu in itertools.product(("float64", *INTEGERS), ("h200", "a100")):
        yield _case(gpu, dtype, (300, 200, 260))
        yield _case(gpu, dtype, (64, 1000, 100))
    for dtype in ("int8", "int16", "uint8"):
        yield _case("h200", dtype, (256, 256, 256), "NT", out_dtype="int32")
    for layout, dtype in itertools.product(LAYOUTS, ("float32", "float64")):
        yield _case("a100", dtype, (1024, 1024, 1024), layout, accuracy="ieee", further=1)
        yield _case("a100", dtype, (1000, 500, 1048), layout, accuracy="ieee")
        yield _case("a100", dtype, (2048, 640, 1024), layout, accuracy="ieee")
    for layout in ("PN", "OO", "SN", "EN", "NNT", "NNP"):
        yield _case("a100", "float32", (512, 512, 512), layout)
    for layout in LAYOUTS:
        yield _case("h200", "float32", (2048, 128, 1024), layout, accuracy="ieee")
    for dtype in ("float16", "bfloat16", "float32", "int64"):
        yield _case("t4", dtype, (512, 300, 520), "NT")
        yield _case("t4", dtype, (516, 400, 528), "NT")
    for batches in BATCHES:
        yield _case("a100", "bfloat16", (130, 192, 136), batches=batches)
    yield _case("a100", "float32", (64, 0, 64))
    yield _case("a100", "float32", (3, 4, 2**31 + 8), accuracy="ieee")  # steps of 64 bits
    yield _case("h200", "float32", (1024, 1024, 1024), "NT", accuracy="ieee", adds=True)


def _epilogue_cases() -> Iterator[Case]:
    """Each family that finishes sums, with what is added in every way."""
    for added in EPILOGUES:
        yield _case("h200", "bfloat16", (1024, 1024, 1024), "NT", added=added)
        yield _case("a100", "float32", (512, 256, 512), "NT", added=added)
    for added in EPILOGUES[::2]:
        yield _case("h200", "float32", (4096, 1024, 4096), "NT", added=added)
        yield _case("h200", "bfloat16", (4096, 1024, 4096), "NT", added=added)
    for added in ("bias gelu residual", "bias scaled columns"):
        for sizes in ((16, 4096, 4096), (128, 8192, 128), (131, 72, 262), (1, 4096, 4096)):
            yield _case("h200", "bfloat16", sizes, "NT", added=added)
            yield _case("h200", "float32", sizes, "NT", added=added)
        yield _case("h200", "bfloat16", (512, 512, 512), "NTT", added=added)
        yield _case("h200", "bfloat16", (512, 512, 512), "NT", added=f"{added} narrow", out_dtype="float32")
        yield _case("h200", "float64", (256, 256, 256), "NT", added=added)
        yield _case("h200", "bfloat16", (256, 256, 256), "NT", added=added, batches=((3,), (3,)))
        yield _case("t4", "float16", (256, 256, 256), "NT", added=added)
