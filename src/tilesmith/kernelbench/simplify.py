"""Constructors of expressions that undo what torch does on its way to a kernel.

torch brings batched products and einsums to `mm` and `bmm` with reshapes, permutations and expansions around
them. Here these meet and cancel, so that a tensor of four dimensions times a matrix is one Product of the two,
and a broadcast operand is not copied. Every rule keeps the value of each element as it is.
"""

import math

from tilesmith.kernelbench import expression
from tilesmith.kernelbench.expression import Added, Detached, Expression, Product, Scalar, Scaled, Shape, View


def reshape(x: Expression, shape: Shape) -> Expression:
    if x.shape == shape:
        return x
    match x:
        case View(y, "reshape"):
            return reshape(y, shape)
        case Detached(y):
            return detached(reshape(y, shape))
        case Scaled(y, factor) if not _is_reshape(inner := reshape(y, shape)):
            return Scaled(inner, factor)
        case Added(y, bias) if bias.shape == y.shape[-1:] == shape[-1:]:  # what Linear adds to every row
            if not _is_reshape(inner := reshape(y, shape)):
                return Added(inner, bias)
        case Product(a, b) if result := _reshaped_product(a, b, shape):
            return result
    return View(x, "reshape", shape)


def permute(x: Expression, dimensions: tuple[int, ...]) -> Expression:
    if dimensions == tuple(range(len(dimensions))):
        return x
    wide = [i for i in dimensions if x.shape[i] != 1]
    if wide == sorted(wide):  # only sizes of one move
        return reshape(x, tuple(x.shape[i] for i in dimensions))
    match x:
        case View(y, "permute", first):
            return permute(y, tuple(first[i] for i in dimensions))
        case View(y, "reshape", shape) if 1 in shape:  # sizes of one come last
            bare = permute(reshape(y, _wide(shape)), tuple(_places(shape).index(i) for i in wide))
            return reshape(bare, tuple(shape[i] for i in dimensions))
        case View(y, "reshape", shape) if _wide(y.shape) == shape:
            rest = [i for i, size in enumerate(y.shape) if size == 1]
            bare = permute(y, (*(_places(y.shape)[i] for i in dimensions), *rest))
            return reshape(bare, tuple(shape[i] for i in dimensions))
        case View(Product(a, View(y, "reshape")), "reshape", shape) if (
            len(a.shape) == 2 and (*a.shape[1:], *shape[1:]) == y.shape and dimensions[-2:] == (0, len(shape) - 1)
        ):  # a matrix times a batch of them, done by torch as one matrix that holds their columns
            return product(a, permute(y, dimensions))
        case Detached(y):
            return detached(permute(y, dimensions))
        case Scaled(y, factor):
            return Scaled(permute(y, dimensions), factor)
        case Product(a, b) if (
            expression.swaps_last_two(View(x, "permute", dimensions))
            and expression.swaps_last_two(a)
            and expression.swaps_last_two(b)
        ):
            return product(transposed(b), transposed(a))
        case _:
            return View(x, "permute", dimensions)


def expand(x: Expression, shape: Shape) -> Expression:
    if x.shape == shape:
        return x
    if isinstance(x, Detached):
        return detached(expand(x.x, shape))
    return View(x.x if isinstance(x, View) and x.op == "expand" else x, "expand", shape)


def transposed(x: Expression) -> Expression:
    """The last two dimensions exchanged."""
    count = len(x.shape)
    return permute(x, (*range(count - 2), count - 1, count - 2))


def product(a: Expression, b: Expression) -> Expression:
    shape = Product(a, b).shape
    if len(a.shape) == len(b.shape) == 3 and a.shape[0] == b.shape[0] == 1 and (_is_reshape(a) or _is_reshape(b)):
        return reshape(product(reshape(a, a.shape[1:]), reshape(b, b.shape[1:])), shape)
    if isinstance(a, View) and a.op == "expand":
        x = reshape(a.x, (1, *a.x.shape)) if len(a.x.shape) == 1 else a.x
        if _broadcasts(x, b, shape):
            return product(x, b)
    if isinstance(b, View) and b.op == "expand" and _broadcasts(a, b.x, shape):
        return product(a, b.x)
    return Product(a, b)


def scaled(x: Expression, factor: Scalar) -> Expression:
    result = Scaled(x, factor)
    return x if not factor.name and factor.value == 1 and result.dtype == x.dtype else result


def detached(x: Expression) -> Expression:
    """No gradient flows through the result, so that nothing in it has to be detached once more. Views stay outside,
    where they meet those that come later."""
    match x:
        case View(y, op, arguments):
            return View(detached(y), op, arguments)
        case Detached() | Scalar():
            return x
        case _:
            return Detached(attached(x))


def attached(x: Expression) -> Expression:
    """A value as it is, with a gradient wherever one could flow."""
    done: dict[Expression, Expression] = {}
    for node in expression.nodes(x):
        match node:
            case Detached(y):
                done[node] = done[y]
            case View(y, op, arguments):
                view = {"reshape": reshape, "permute": permute, "expand": expand}[op]
                done[node] = view(done[y], arguments)
            case Product(a, b):
                done[node] = product(done[a], done[b])
            case _:
                done[node] = expression.rebuilt(node, done)
    return done[x]


def _reshaped_product(a: Expression, b: Expression, shape: Shape) -> Expression | None:
    """A product in another shape as one of reshaped operands, if these have been reshaped before."""
    if b.shape[1:] == (1,) and a.shape[:-1] == shape and _is_reshape(b):
        return product(a, reshape(b, b.shape[:1]))
    if len(a.shape) >= 2 and len(b.shape) <= 2 and _is_reshape(a):
        (*count, inner), columns = a.shape, b.shape[1:]
        lead = shape[: len(shape) - len(columns)]
        if math.prod(lead) == math.prod(count) and (*lead, *columns) == shape:
            return product(reshape(a, (*lead, inner)), b)
    if a.shape[:-2] == b.shape[:-2] != () and (_is_reshape(a) or _is_reshape(b)):
        (*count, rows, inner), columns, lead = a.shape, b.shape[-1:], shape[:-2]
        if math.prod(lead) == math.prod(count) and (*lead, rows, *columns) == shape:
            return product(reshape(a, (*lead, rows, inner)), reshape(b, (*lead, inner, *columns)))
    return None


def _is_reshape(x: Expression) -> bool:
    return isinstance(x, View) and x.op == "reshape"


def _broadcasts(a: Expression, b: Expression, shape: Shape) -> bool:
    """Whether matmul itself brings two batches of matrices to this shape."""
    return min(len(a.shape), len(b.shape)) > 1 and a.shape[-1] == b.shape[-2] and Product(a, b).shape == shape


def _wide(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _places(shape: Shape) -> list[int]:
    """Where the sizes other than one stand."""
    return [i for i, size in enumerate(shape) if size != 1]
