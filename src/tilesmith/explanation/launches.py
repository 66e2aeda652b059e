"""Each launch of a plan in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tilesmith.explanation.numbers import count, listed, paragraph
from tilesmith.kernels.planes import SCHEMES, Scheme, products_of_planes
from tilesmith.kernels.sm90_product import Runs
from tilesmith.plan import Plan, Stage

_NAMES: Final = {"a": "A", "b": "B"}


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch."""

    kernel: str
    does: str
    returns_at_once: str | None  # when it does; None if it never does
    grid: tuple[int, int, int]
    cluster: int
    threads: int
    shared_bytes: int
    pipeline_stages: int | None  # that loads are ahead of the arithmetic; None if there is no such ring
    planes: tuple[int, int] | None  # of its operands, if it multiplies planes
    products_of_planes: int | None
    registers: tuple[int, int] | None  # of a thread that loads and of one that multiplies, where they differ

    @classmethod
    def of(cls, stage: Stage, plan: Plan) -> "Launch":
        constants = dict(stage.kernel.constants)
        registers = None
        if "producer_registers" in constants:
            registers = (int(constants["producer_registers"]), int(constants["consumer_registers"]))
        multiplies_planes = stage.kernel.entry == "sm90" and _scheme_of_product(stage, plan) is not None
        return cls(
            kernel=stage.kernel.entry,
            does=_WORDS[stage.kernel.entry](stage, plan),
            returns_at_once=_returns_at_once(stage),
            grid=stage.grid,
            cluster=stage.cluster,
            threads=stage.threads,
            shared_bytes=stage.kernel.shared_bytes,
            pipeline_stages=int(constants["stages"]) if "stages" in constants else None,
            planes=_planes(stage) if multiplies_planes else None,
            products_of_planes=_products(stage) if multiplies_planes else None,
            registers=registers,
        )

    def lines(self, number: int) -> Iterator[str]:
        first = f"  {number} {self.kernel:<8}"
        indent = " " * len(first)
        yield from paragraph(self.does, first)
        if self.returns_at_once:
            yield from paragraph(f"returns at once {self.returns_at_once}", indent)
        yield from paragraph(self._launched, indent)
        if self.registers:
            loading, multiplying = self.registers
            yield f"{indent}registers: {multiplying} of a thread that multiplies, {loading} of one that loads"

    @property
    def _launched(self) -> str:
        grid = " x ".join(f"{size:,}" for size in self.grid if size != 1) or "1"
        text = f"grid {grid}, {self.threads} threads"
        if self.cluster > 1:
            text += f", clusters of {self.cluster}"
        if self.shared_bytes:
            text += f", {self.shared_bytes:,} bytes of shared memory"
        if self.pipeline_stages:
            text += f", {self.pipeline_stages} pipeline stages"
        return text


def _sources(stage: Stage) -> list[str]:
    """The operands that a launch reads where the caller has them, in its order."""
    return [_NAMES[address.buffer] for address in stage.addresses if address.buffer in _NAMES]


def _realign(stage: Stage, plan: Plan) -> str:
    return f"copies {listed(_sources(stage))} to lines that start at multiples of 16 bytes, as the copy engine needs"


def _split(stage: Stage, plan: Plan) -> str:
    constants, sources = dict(stage.kernel.constants), _sources(stage)
    scheme = _scheme(plan, wide=bool(constants["wide"]))
    planes = [
        count(int(constants[f"{prefix}_planes"]), f"{_dtype(scheme)} plane")
        for prefix, _ in zip("ab", sources, strict=False)
    ]
    ending = ", which hold float32's whole range" if scheme.wide else ", scaled, and takes a census of their values"
    if constants["a_is_raw"]:
        raw, split = sources
        return f"splits {split} into {planes[1]}{ending}; finds scales for {raw}, which the product splits itself"
    if len(sources) == 2 and planes[0] == planes[1]:
        return f"splits both operands into {planes[0]} each{ending}"
    return f"splits {listed([f'{source} into {own}' for source, own in zip(sources, planes, strict=True)])}{ending}"


def _multiply(stage: Stage, plan: Plan) -> str:
    constants = dict(stage.kernel.constants)
    tile = f"{constants['tile_m']} x {constants['tile_n']}"
    text = f"multiplies on the tensor cores: tiles of {tile}"
    scheme = _scheme_of_product(stage, plan)
    if scheme is not None:
        a_planes, b_planes = _planes(stage)
        text += f", {count(_products(stage), 'product')} of {a_planes} by {b_planes} {_dtype(scheme)} planes"
    if constants["a_is_raw"]:
        text += ", one operand split in registers on the way"
    if constants["b_stays"]:
        text += "; a block keeps its columns of the second operand"
    if constants["out_is_partial"]:
        text += "; leaves float32 sums of each part of K in the workspace"
    return text


def _reduce(stage: Stage, plan: Plan) -> str:
    output = f"the {str(plan.problem.out.dtype).removeprefix('torch.')} output"
    if plan.splits == 1:
        return f"stores the sums in {output}, which has no contiguous lines"
    return f"adds the {plan.splits} parts of K in their order into {output}"


def _simt(stage: Stage, plan: Plan) -> str:
    constants = dict(stage.kernel.constants)
    tile = f"{constants['tile_m']} x {constants['tile_n']}"
    return f"multiplies on the CUDA cores: tiles of {tile}, {constants['tile_k']} of K at a time"


def _exact(stage: Stage, plan: Plan) -> str:
    constants = dict(stage.kernel.constants)
    tile = f"{constants['tile_m']} x {constants['tile_n']}"
    return f"multiplies doubles on the tensor cores: tiles of {tile}, {constants['tile_k']} of K at a time"


def _thin(stage: Stage, plan: Plan) -> str:
    return "multiplies doubles on the tensor cores, and reads the larger operand once" + _leaves_parts(plan)


def _dot(stage: Stage, plan: Plan) -> str:
    return "multiplies each line by the vector, in doubles" + _leaves_parts(plan)


def _leaves_parts(plan: Plan) -> str:
    return "; leaves float32 sums of each part of K in the workspace" if plan.splits > 1 else ""


_WORDS: Final = {
    "realign": _realign,
    "split": _split,
    "sm90": _multiply,
    "reduce": _reduce,
    "simt": _simt,
    "exact": _exact,
    "thin": _thin,
    "dot": _dot,
}


def _returns_at_once(stage: Stage) -> str | None:
    constants = dict(stage.kernel.constants)
    if constants.get("runs") == Runs.IF_PLANES_SUFFICE:
        return "if the census finds values that these planes cannot hold"
    if constants.get("runs") == Runs.IF_THEY_DO_NOT or constants.get("wide"):
        return "unless the census found values that float16 planes cannot hold"
    return None


def _scheme(plan: Plan, *, wide: bool) -> Scheme:
    schemes = SCHEMES[plan.problem.accuracy]
    return schemes.wide if wide else schemes.ordinary


def _scheme_of_product(stage: Stage, plan: Plan) -> Scheme | None:
    """How the operands of a product became planes; None if they are the caller's own numbers."""
    is_split = any(each.kernel.entry == "split" for each in plan.stages)
    runs_for_wide = dict(stage.kernel.constants)["runs"] == Runs.IF_THEY_DO_NOT
    return _scheme(plan, wide=runs_for_wide) if is_split else None


def _dtype(scheme: Scheme) -> str:
    return str(scheme.dtype).removeprefix("torch.")


def _planes(stage: Stage) -> tuple[int, int]:
    constants = dict(stage.kernel.constants)
    return int(constants["a_planes"]), int(constants["b_planes"])


def _products(stage: Stage) -> int:
    """Of planes; short sums keep the least one, too."""
    return products_of_planes(*_planes(stage)) + int(dict(stage.kernel.constants)["with_least_product"])
