"""From what a problem computes to a module that computes it with our kernels: text that needs no Tilesmith.

The text has plans for the operands of the problem itself, on one GPU. All other sizes, strides and GPUs take kernels
that can do any product; so do gradients.
"""

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from textwrap import indent, wrap
from typing import Final, Literal, get_args

import torch

from tilesmith import __version__
from tilesmith.core.accuracy import Accuracy
from tilesmith.core.device import Device
from tilesmith.core.plan import Plan
from tilesmith.kernelbench.chain_spec import ChainSpec
from tilesmith.kernelbench.constructor import constructor
from tilesmith.kernelbench.cuda_text import (
    chains_text,
    factors_text,
    general_kernels,
    general_text,
    launch_numbers,
    planned_kernels,
    planned_text,
    triangle_text,
)
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
from tilesmith.kernelbench.flatten import files_of
from tilesmith.kernelbench.names import attribute_code
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.products import ProductSpec, plans_of
from tilesmith.kernelbench.recognize import Recognized
from tilesmith.kernelbench.show import names_of_shared, spelled
from tilesmith.kernelbench.templates import filled, template
from tilesmith.kernelbench.whole_model import WholeModel

# Functions of a module, a template each: only those that forward calls are there.
Part = Literal["product", "linear", "factors", "triangle", "added", "einsum", "aten", "chain", "sizes", "modes", "made"]
_PARTS: Final[tuple[Part, ...]] = get_args(Part)
# Those that the extension has C++ for, and what Python calls of it.
_OF_EXTENSION: Final[dict[Part, tuple[str, ...]]] = {
    "product": ("use_plans", "multiply"),
    "linear": ("linear",),
    "factors": ("scaled", "times"),
    "triangle": ("triangle",),
    "chain": ("chain",),
}

_INDENT: Final = " " * 4
_WIDTH: Final = 110  # of comments
_TEXT: Final = re.compile(r"""\"[^"]*"|'[^']*'""")  # in Python
_BLANK_LINE: Final = "\n\n"
_PROMISES: Final = {
    "fp32": "float32, with an error against float64 that is no larger than that of torch's float32 product, on nearly "
    "all data, down to 3e-7 in norm",
    "tf32": "TF32: 11 significant bits of every operand, sums in float32; the error is that of torch's TF32 product",
    "ieee": "float32, one chain of multiply-adds over K",
}


def written(
    problem: ProblemFile,
    recognized: Recognized | WholeModel,
    device: Device,
    accuracy: Accuracy,
    *,
    standalone: bool = False,
) -> str:
    """The text of a module with `ModelNew`. `standalone`: it has the problem's inputs too, and as a program compares
    and times itself with the problem's own model."""
    if isinstance(recognized, WholeModel):
        text = _of_model(problem, recognized, device, accuracy)
    else:
        text = _of_expression(problem, recognized, device, accuracy)
    if not standalone:
        return text
    values = {"problem": repr(problem.text), "problem_name": repr(problem.name)}
    return text + filled(template("standalone.py.in"), values)


def _of_expression(problem: ProblemFile, recognized: Recognized, device: Device, accuracy: Accuracy) -> str:
    return module_text(
        what=recognized.describe(),
        plans=plans_of(products_of(recognized), device, accuracy),
        parts=_parts(recognized),
        constructor=constructor(problem),
        forward=_forward(recognized),
        device=device,
        accuracy=accuracy,
        note=note_of(recognized, device, accuracy),
    )


def _of_model(problem: ProblemFile, model: WholeModel, device: Device, accuracy: Accuracy) -> str:
    given = ", ".join(["self", *model.arguments])
    lines = [line for statement in model.forward for line in _wrapped(statement)]
    chains = model.describe_chains()
    notes = [
        note_of(model, device, accuracy),
        f"In a kernel each: {'; '.join(chains)}" if chains else None,
        f"Left to torch: {model.describe_left()}" if model.left else None,
    ]
    return module_text(
        what=f"{problem.name}, with {model.describe_products()}",
        plans=plans_of(model.products, device, accuracy),
        parts=[*(["product"] if model.multiplies else []), *model.parts, "made"],  # type: ignore[list-item]
        chains=model.chains,
        constructor=constructor(problem),
        forward="\n".join([f"def forward({given}):", *_indented(lines), ""]),
        device=device,
        accuracy=accuracy,
        note=". ".join(filter(None, notes)) or None,
        decorator=f"@_made_as({model.digest!r}, {model.settings!r})\n",
    )


def _wrapped(statement: str) -> list[str]:
    """A statement in one or more lines: only what is in brackets may go on in another one."""
    if len(statement) <= _WIDTH or not statement.endswith((")", "]")):
        return [statement]
    own = statement[: len(statement) - len(statement.lstrip())]
    whole = _TEXT.sub(lambda found: found[0].replace(" ", "\0"), statement)  # texts stay in one line
    lines = wrap(whole, _WIDTH, subsequent_indent=own + _INDENT, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def module_text(
    *,
    what: str,
    plans: Mapping[ProductSpec, Plan],
    parts: Collection[Part],
    constructor: tuple[str, str, str],
    forward: str,
    device: Device,
    accuracy: Accuracy,
    chains: Sequence[ChainSpec] = (),
    note: str | None = None,
    decorator: str = "",
) -> str:
    """The text of a module with `ModelNew`.

    what          what it computes, for the first line
    plans         for its products: `plans_of`
    parts         the functions that forward calls; without products or what stands beside them there are no kernels,
                  and nothing is built
    constructor   definitions that the class needs, its bases and its body before forward: `constructor.constructor`
    forward       methods of the class, not indented
    note          one more sentence for the header, without its period
    decorator     of the class, a line
    """
    definitions, bases, body = constructor
    own = [part for part in _OF_EXTENSION if part in parts]
    kernels = [*(general_kernels(device) if "product" in own else []), *planned_kernels(plans.values())]
    values = {
        "files": "".join(f'    "{name}": r"""\n{text}""",\n' for name, text in files_of(kernels).items()),
        "general": _general(own, device) + (chains_text(chains) if chains else ""),
        "planned": planned_text(plans.values()),
        "host": "".join(template(f"{name}.cpp") for name in ("operands", *own, "cuda")),
        "functions": [name for part in own for name in _OF_EXTENSION[part]],
        "gpu": (device.capability, device.sm_count),
        "plans": _plan_table(plans),
        "chains": "\n\n".join(chain.function(number) for number, chain in enumerate(chains)),
    }
    first = "module" if own else "torch"
    text = "".join(template(f"{name}.py.in") for name in (first, *(part for part in _PARTS if part in parts)))
    model = f"{decorator}class ModelNew({bases}):\n" + indent((body and body + _BLANK_LINE) + forward, _INDENT)
    header = _header(what, plans, device, accuracy, note)
    return f"{header}\n{filled(text, values)}{_BLANK_LINE}{definitions and definitions + _BLANK_LINE}{model}"


def _general(parts: Collection[Part], device: Device) -> str:
    """The kernels for any operands."""
    products = general_text(device) if "product" in parts else ""
    return products + factors_text() * ("factors" in parts) + triangle_text() * ("triangle" in parts)


def products_of(recognized: Recognized | WholeModel) -> list[ProductSpec]:
    """The products of a problem that may have plans: those of float32."""
    if isinstance(recognized, WholeModel):
        return list(recognized.products)
    # Of triangles, as a rule, if a triangle of the product is all that is wanted.
    skips_zeros = any(isinstance(node, Triangle) for node in recognized.nodes)
    pairs = (pair for pair in _operands(recognized) if all(x.dtype == torch.float32 for x in pair))
    return [ProductSpec.of(a, b, skips_zeros=skips_zeros) for a, b in pairs]


def plan_of(recognized: Recognized | WholeModel, device: Device, accuracy: Accuracy) -> Plan | None:
    """How the costliest of a problem's products with a plan is done; None if none is worth a plan of its own."""
    return next(iter(plans_of(products_of(recognized), device, accuracy).values()), None)


def note_of(recognized: Recognized | WholeModel, device: Device, accuracy: Accuracy) -> str | None:
    """What is to be said where products have no plan: they run on the CUDA cores, and why."""
    products = products_of(recognized)
    has_any = bool(products) or (isinstance(recognized, Recognized) and bool(_operands(recognized)))
    if not has_any or plan_of(recognized, device, accuracy) is not None:
        return None
    why = ""
    if device.capability != (9, 0):
        why = f": kernels for tensor cores are for compute capability 9.0, not {'.'.join(map(str, device.capability))}"
    elif not products:
        why = ": kernels for tensor cores are written for float32 alone"
    return f"All products run on the CUDA cores{why}"


def _operands(recognized: Recognized) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The operands of each product, without memory, as our kernels get them."""
    inputs = [
        torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta") if isinstance(x, Input) else x.value
        for x in recognized.inputs
    ]
    used = (node for node in recognized.nodes if isinstance(node, Attribute))
    attributes = {x.path: torch.empty(x.shape, dtype=x.dtype, device="meta") for x in used}
    products = (node for node in recognized.nodes if isinstance(node, Product))
    return [(evaluate(x.a, inputs, attributes), evaluate(x.b, inputs, attributes)) for x in products]


def _parts(recognized: Recognized) -> set[Part]:
    """What forward calls."""
    parts: set[Part] = set()
    for node in recognized.nodes:
        if isinstance(node, Product):
            parts.add("product")
        elif isinstance(node, Scaled | Multiplied):
            parts.add("factors")
        elif isinstance(node, Triangle):
            parts.add("triangle")
    return parts


def _plan_table(plans: Mapping[ProductSpec, Plan]) -> str:
    """The lines of the table in which a module looks up what is to be launched."""
    numbers = launch_numbers(plans.values())
    lines = []
    for spec, plan in plans.items():
        operands = spec.a_shape, spec.a_strides, spec.b_shape, spec.b_strides, spec.has_bias, spec.activation or ""
        lines.append(f"{(*operands, numbers[plan.launches], spec.out_shape, plan.workspace_bytes)},\n")
    return indent("".join(lines), _INDENT)


def _header(what: str, plans: Mapping[ProductSpec, Plan], device: Device, accuracy: Accuracy, note: str | None) -> str:
    """What the module is, as comments."""
    lines = [f"ModelNew: {what}, written by Tilesmith {__version__}."]
    for spec, plan in plans.items():
        workspace = f", with {plan.workspace_bytes} bytes of workspace" if plan.workspace_bytes else ""
        lines.append(f"The plan for {plan.problem}{_epilogue(spec)} on {plan.device.name}: {plan.name}{workspace}.")
    if plans:
        lines += [
            "Other sizes, strides and GPUs take kernels for any product, on the CUDA cores; so do gradients.",
            f"Precision class: {_PROMISES[accuracy]}.",
        ]
    if note:
        lines.append(f"{note}.")
    return "".join(f"# {line}\n" for text in lines for line in wrap(text, _WIDTH))


def _epilogue(spec: ProductSpec) -> str:
    parts = [*(["a bias"] if spec.has_bias else []), *([spec.activation] if spec.activation else [])]
    return f" with {' and '.join(parts)}" if parts else ""


def _forward(recognized: Recognized) -> str:
    given = [x.name for x in recognized.inputs]
    lines = [f"def forward({', '.join(['self', *given])}):", *_indented(_body(recognized, given))]
    return "".join(f"{line}\n" for line in lines)


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
            return attribute_code(path)
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
