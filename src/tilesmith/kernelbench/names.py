"""How a parameter of a model is spelled in Python."""

import keyword

from torch import nn

_LISTS = (nn.Sequential, nn.ModuleList, nn.ParameterList)


def attribute_code(path: str, model: nn.Module | None = None) -> str:
    """A parameter of the model by its path, of which parts may be numbers. Those are places in a list if the model
    says so.

    >>> attribute_code("layers.0.weight")
    "getattr(self.layers, '0').weight"
    >>> attribute_code("0.weight", nn.Sequential(nn.Linear(2, 2)))
    'self[0].weight'
    """
    code, owner = "self", model
    for part in path.split("."):
        if part.isidentifier() and not keyword.iskeyword(part):
            code += f".{part}"
        elif isinstance(owner, _LISTS) and part.isdecimal():
            code += f"[{int(part)}]"
        else:
            code = f"getattr({code}, {part!r})"
        owner = getattr(owner, part, None)
    return code
