"""From what a problem computes to a module that computes it with our kernels: text that needs no Tilesmith.

The text has one plan, for the operands of the problem itself, on one GPU. All other sizes, strides and GPUs take
kernels that can do any product; so do gradients.
"""

import keyword
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from importlib import resources
from textwrap import indent, wrap
from typing import Final

import torch

from tilesmith import __version__
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.plan import Plan
from tilesmith.core.problem import Problem
from tilesmith.kernelbench.constructor import constructor
from tilesmith.kernelbench.cuda_text import elementwise_text, general_text, planned_text
from tilesmith.kernelbench.expression import (
    Added,
    Attribute,
    Detached,
    Expression,
    Input,
    Multiplied,
    Product,
    Scalar,
    Scaled,
    Triangle,
    View,
    evaluate,
    swaps_last_two,
)
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import Recognized
from tilesmith.kernelbench.show import names_of_shared, spelled
from tilesmith.kernels import family_of
from tilesmith.planner import choose

_INDENT: Final = " " * 4
_WIDTH: Final = 110  # of comments
_BLANK_LINE: Final = "\n\n"
_PROMISES: Final = {
    "fp32": "float32, with an error against float64 that is no larger than that of torch's float32 product, on nearly "
    "all data, down to 3e-7 in norm",
    "tf32": "TF32: 11 significant bits of every operand, sums in float32; the error is that of torch's TF32 product",
    "ieee": "float32, one chain of multiply-adds over K",
}


def written(
    problem: ProblemFile, recognized: Recognized, device: Device, accuracy: Accuracy, *, standalone: bool = False
) -> str:
    """The text of a module with `ModelNew`. `standalone`: it has the problem's inputs too, and as a program compares
    and times itself with the problem's own model."""
    plan = plan_of(recognized, device, accuracy)
    text = _template("module.py.in")
    found = recognized.nodes
    if any(isinstance(node, Scaled | Multiplied) for node in found):
        text += _template("factors.py.in")
    if any(isinstance(node, Triangle) for node in found):
        text += _template("triangle.py.in")
    operands = _planned_operands(recognized) if plan else None
    values = {
        "general": general_text(device) + elementwise_text(),
        "planned": "" if plan is None else planned_text(plan),
        "capability": device.capability,
        "multiprocessors": device.sm_count,
        "operands": tuple((tuple(x.shape), x.stride()) for x in operands or ()),
        "workspace_bytes": 0 if plan is None else plan.workspace_bytes,
    }
    text = _filled(text, values)
    definitions, bases, body = constructor(problem)
    model = f"class ModelNew({bases}):\n{indent(body and body + _BLANK_LINE, _INDENT)}{_forward(recognized)}"
    before = f"{_header(recognized, plan, device, accuracy)}\n{text}{_BLANK_LINE}"
    module = before + (definitions and definitions + _BLANK_LINE) + model
    if not standalone:
        return module
    values = {"problem": repr(problem.text), "problem_name": repr(problem.name)}
    return module + _filled(_template("standalone.py.in"), values)


def plan_of(recognized: Recognized, device: Device, accuracy: Accuracy) -> Plan | None:
    """How the largest product of a problem is done; None if there is none that is worth a plan of its own."""
    operands = _planned_operands(recognized)
    if operands is None or any(x.dtype != torch.float32 for x in operands):
        return None
    # Of triangles, as a rule, if a triangle of the product is all that is wanted.
    skips_zeros = any(isinstance(node, Triangle) for node in recognized.nodes)
    plan = choose(Problem.of(*operands, accuracy=accuracy, skips_zeros=skips_zeros), device)
    return None if family_of(plan).is_fallback else plan


def note_of(recognized: Recognized, device: Device, accuracy: Accuracy) -> str | None:
    """What is to be said where products have no plan: they run on the CUDA cores, and why."""
    operands = _planned_operands(recognized)
    if operands is None or plan_of(recognized, device, accuracy) is not None:
        return None
    why = ""
    if device.capability != (9, 0):
        why = f": kernels for tensor cores are for compute capability 9.0, not {'.'.join(map(str, device.capability))}"
    elif any(x.dtype != torch.float32 for x in operands):
        why = ": kernels for tensor cores are written for float32 alone"
    return f"All products run on the CUDA cores{why}"


def _planned_operands(recognized: Recognized) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The operands of the largest product, without memory, as our kernels get them."""
    products = [node for node in recognized.nodes if isinstance(node, Product)]
    if not products:
        return None
    inputs = [
        torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta") if isinstance(x, Input) else x.value
        for x in recognized.inputs
    ]
    used = (node for node in recognized.nodes if isinstance(node, Attribute))
    attributes = {x.path: torch.empty(x.shape, dtype=x.dtype, device="meta") for x in used}
    pairs = []
    for product in products:
        a, b = evaluate(product.a, inputs, attributes), evaluate(product.b, inputs, attributes)
        pairs.append((a.unsqueeze(0) if a.dim() == 1 else a, b.unsqueeze(1) if b.dim() == 1 else b))
    return max(pairs, key=lambda pair: torch.matmul(*pair).numel() * pair[0].shape[-1])


def _header(recognized: Recognized, plan: Plan | None, device: Device, accuracy: Accuracy) -> str:
    """What the module is, as comments."""
    lines = [f"ModelNew: {recognized.describe()}, written by Tilesmith {__version__}."]
    if plan is not None:
        workspace = f", with {plan.workspace_bytes} bytes of workspace" if plan.workspace_bytes else ""
        lines += [
            f"The plan for {plan.problem} on {plan.device.name}: {plan.name}{workspace}.",
            "Other sizes, strides and GPUs take kernels for any product, on the CUDA cores; so do gradients.",
            f"Precision class: {_PROMISES[accuracy]}.",
        ]
    if note := note_of(recognized, device, accuracy):
        lines.append(f"{note}.")
    return "".join(f"# {line}\n" for text in lines for line in wrap(text, _WIDTH))


def _forward(recognized: Recognized) -> str:
    given = [x.name for x in recognized.inputs]
    lines = [f"def forward({', '.join(['self', *given])}):", *_indented(_body(recognized, given))]
    return "".join(f"{_INDENT}{line}\n" for line in lines)


def _body(recognized: Recognized, taken: Sequence[str]) -> list[str]:
    training = _statements(recognized.expression, taken)
    if recognized.evaluation is recognized.expression:
        return training
    return ["if self.training:", *_indented(training), *_statements(recognized.evaluation, taken)]


def _statements(x: Expression, taken: Iterable[str]) -> list[str]:
    """What computes an expression: each value that is used more than once has a line and a name of its own."""
    lines, value = spelled(x, names_of_shared(taken, x, prefix="_value_"), _code)
    return [*lines, f"return {value}"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [_INDENT + line for line in lines]


def _code(x: Expression, codes: Mapping[Expression, str], named: Container[Expression]) -> str:
    """A node as Python that calls the functions of the module, by the text of those that it is made of."""
    match x:
        case Input(name):
            return name
        case Attribute(path):
            return _attribute_code(path)
        case Scalar():
            return x.name or repr(x.value)
        case View(y):
            return codes[y] + _view_code(x)
        case Product(a, b):
            return f"_matmul({codes[a]}, {codes[b]})"
        case Scaled(y, factor):
            return f"_scaled({codes[y]}, {codes[factor]})"
        case Multiplied(y, z):
            return f"_times({codes[y]}, {codes[z]})"
        case Added(y, z):
            return f"({codes[y]} + {codes[z]})"
        case Detached(y):
            return f"{codes[y]}.detach()"
        case Triangle(Product() as y, upper, diagonal) if y not in named:  # in place, which others would see
            return f"_triangle({codes[y]}, {diagonal}, {upper})"
        case Triangle(y, upper, diagonal):
            return f"_torch.{'triu' if upper else 'tril'}({codes[y]}, {diagonal})"


def _attribute_code(path: str) -> str:
    """A parameter of the model by its path, of which parts may be numbers."""
    code = "self"
    for part in path.split("."):
        plain = part.isidentifier() and not keyword.iskeyword(part)
        code = f"{code}.{part}" if plain else f"getattr({code}, {part!r})"
    return code


def _view_code(view: View) -> str:
    """The call of a method, for other sizes than those of the problem too where that is possible."""
    old, new = view.x.shape, view.arguments
    if swaps_last_two(view):
        return ".transpose(-2, -1)"
    if view.op == "reshape":
        for i in range(max(len(old), len(new))):
            if new[i : i + 1] == (1,) and new[:i] + new[i + 1 :] == old:
                return f".unsqueeze({i})"
            if old[i : i + 1] == (1,) and old[:i] + old[i + 1 :] == new:
                return f".squeeze({i})"
    return f".{view.op}({', '.join(map(str, new))})"


def _filled(template: str, values: Mapping[str, object]) -> str:
    return re.sub("@(" + "|".join(values) + ")@", lambda found: str(values[found[1]]), template)


def _template(name: str) -> str:
    return (resources.files("tilesmith.kernelbench") / "templates" / name).read_text()
