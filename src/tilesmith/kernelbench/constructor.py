"""A problem's `Model` without its forward: what a written module needs so that it creates the same parameters, in the
same order, with the same random draws."""

import ast
from collections.abc import Iterable
from typing import Final

from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.scopes import Renamed, bound, module_names

_PREFIX: Final = "_own_"  # of names that the problem has at the level of its module


def constructor(problem: ProblemFile) -> tuple[str, str, str]:
    """Definitions of the module that `Model` needs, under names that no other has; its base classes; and what is in its
    body, but for forward. All as text."""
    module = ast.parse(problem.text, problem.name)
    statements = list(module.body)
    model = next((x for x in reversed(statements) if isinstance(x, ast.ClassDef) and x.name == "Model"), None)
    if model is None:
        raise ProblemError(f"{problem.name}: Model must be a class that the file itself defines at its top level")
    if model.decorator_list or model.keywords:
        raise ProblemError(f"{problem.name}:{model.lineno}: Model must have no decorator and no metaclass")
    binds = {id(x): set(bound(x)) for x in statements}
    Renamed(module, problem.text, lambda name: "ModelNew" if name == "Model" else _PREFIX + name)
    body = [x for x in model.body if not _is_forward(x) and not _is_docstring(x)]
    others = [(x, binds[id(x)]) for x in statements if x is not model]
    needed = _needed_by([*body, *model.bases], others)
    text = "".join(f"{_text(x)}\n" for x in needed)
    bases = ", ".join(ast.unparse(x) for x in model.bases)
    return text, bases, "\n\n".join(_text(x) for x in body)


def _needed_by(nodes: Iterable[ast.AST], statements: list[tuple[ast.stmt, set[str]]]) -> list[ast.stmt]:
    """The statements at the top level that bind or change a name which these nodes use, or one of them, in their
    order."""
    wanted = module_names(*nodes)
    chosen: set[int] = set()
    grows = True
    while grows:
        grows = False
        for i, (statement, binds) in enumerate(statements):
            if i not in chosen and (wanted & (binds | _changed(statement)) or _imports_all(statement)):
                chosen.add(i)
                wanted |= module_names(statement)
                grows = True
    return [statements[i][0] for i in sorted(chosen)]


def _changed(statement: ast.stmt | ast.ExceptHandler) -> set[str]:
    """The names of objects of which a statement sets an element or attribute, or calls a method without a result."""
    match statement:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            changed: list[ast.expr] = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            changed = [target]
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
            changed = [method]
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))) | ast.FunctionDef() | ast.ClassDef():
            return set()
        case _:
            inner = (x for x in ast.iter_child_nodes(statement) if isinstance(x, ast.stmt | ast.ExceptHandler))
            return set().union(*map(_changed, inner))
    names = set()
    for x in changed:
        while isinstance(x, ast.Subscript | ast.Attribute):
            x = x.value
        if isinstance(x, ast.Name):
            names |= module_names(x)
    return names - {"Model"}


def _imports_all(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"


def _is_forward(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "forward"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _text(node: ast.stmt) -> str:
    return ast.unparse(ast.fix_missing_locations(node))
