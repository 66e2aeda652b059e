"""What undoes the scales of terms, as kernels that multiply them are told."""

from dataclasses import dataclass
from typing import Annotated

from tilesmith.core.params import MAX_BATCH_DIMS, Address, Int32, Int32s, KernelEnum, ParameterBlock, Pointer, to
from tilesmith.kernels.fp32_split.terms import Split


class Scale(KernelEnum):
    """What undoes the scales of operands."""

    NONE = 0
    FACTORS = 1  # powers of two, those of one operand with a little more: see split.cu
    EXPONENTS = 2  # of two, of any size


@dataclass(frozen=True, kw_only=True)
class RowScales(ParameterBlock):
    """For each row of an operand, what undoes its scale."""

    first: Annotated[Pointer, to("const int")]
    pitch: Int32  # from one matrix to the next
    matrices: Int32s  # from one index of a batch dimension to the next

    @classmethod
    def of(cls, split: Split, scale: Scale) -> "RowScales":
        scales = split.findings.scales
        undo = scales.full_range_exponents if scale is Scale.EXPONENTS else scales.factors
        missing_dims = MAX_BATCH_DIMS - len(split.matrix_steps)
        first = Address(split.findings.buffer, undo)
        return cls(first=first, pitch=scales.pitch, matrices=(*split.matrix_steps, *(0,) * missing_dims))
