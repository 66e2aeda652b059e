"""What a written module has of a chain: operations of torch that one kernel does together."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

MAX_OPERANDS: Final = 12
MAX_NUMBERS: Final = 8

# Of a result: all elements, or what reductions leave, with dimensions of 1 or without them.
Form = Literal["whole", "kept", "dropped"]


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """A chain as a written module has it: a kernel, and the same as steps of torch's."""

    text: str  # the kernel, a class in C++
    operands: tuple[str, ...]  # how each lies over the first one: see templates/chain.py.in
    reduced_dims: int
    groups: int
    result: Form
    arguments: tuple[str, ...] = ()  # of the steps: tensors, then numbers
    steps: tuple[str, ...] = ()
    does: tuple[str, ...] = ()  # the names of torch's operations

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ChainSpec":
        """The value of which `to_dict` made this."""
        fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    def function(self, number: int) -> str:
        """The function of the steps, of which a module makes a kernel."""
        shape = list(self.operands), self.reduced_dims, self.groups, self.result
        lines = [
            f"@_chain({number}, {', '.join(map(repr, shape))})",
            f"def {name_of(number)}({', '.join(self.arguments)}):",
            *(f"    {step}" for step in self.steps),
        ]
        return "\n".join([*lines, ""])


def name_of(number: int) -> str:
    """The name of that function."""
    return f"_chain_{number}"
