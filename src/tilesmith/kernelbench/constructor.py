"""A problem's `Model` without its forward: what a written module needs so that it creates the same parameters, in the
same order, with the same random draws."""

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Final

from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile

_PREFIX: Final = "_own_"  # of names that the problem has at the level of its module


def constructor(problem: ProblemFile) -> tuple[str, str, str]:
    """Definitions of the module that `Model` needs, under names that no other has; its base classes; and what is in its
    body, but for forward. All as text."""
    module = ast.parse(problem.text, problem.name)
    model = next((x for x in reversed(module.body) if isinstance(x, ast.ClassDef) and x.name == "Model"), None)
    if model is None:
        raise ProblemError(f"{problem.name}: Model must be a class that the file itself defines at its top level")
    body = [copy.deepcopy(x) for x in model.body if not _is_forward(x) and not _is_docstring(x)]
    definitions = _Definitions(module, model)
    needed = definitions.needed_by([*body, *model.bases, *model.decorator_list])
    rename = _Rename(definitions.names)
    text = "".join(f"{ast.unparse(rename.visit(copy.deepcopy(x)))}\n" for x in needed)
    bases = ", ".join(ast.unparse(rename.visit(copy.deepcopy(x))) for x in model.bases)
    return text, bases, "\n\n".join(ast.unparse(ast.fix_missing_locations(rename.visit(x))) for x in body)


class _Definitions:
    """The statements at the top level of a module, by the names that they bind."""

    def __init__(self, module: ast.Module, model: ast.ClassDef) -> None:
        self._statements = [x for x in module.body if x is not model]
        self.names = frozenset(name for statement in self._statements for name in _bound(statement))

    def needed_by(self, nodes: Iterable[ast.AST]) -> list[ast.stmt]:
        """Those that bind a name which occurs in these nodes, or in one of them, in their order."""
        wanted = set(_used(nodes))
        chosen: set[int] = set()
        grows = True
        while grows:
            grows = False
            for i, statement in enumerate(self._statements):
                if i not in chosen and wanted & set(_bound(statement)):
                    chosen.add(i)
                    wanted |= set(_used([statement]))
                    grows = True
        return [self._statements[i] for i in sorted(chosen)]


def _is_forward(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "forward"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top level binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _used(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for root in nodes:
        for node in ast.walk(_Bare().visit(copy.deepcopy(root))):
            if isinstance(node, ast.Name):
                yield node.id


class _Bare(ast.NodeTransformer):
    """Leaves out annotations, which no result depends on."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


class _Rename(_Bare):
    """Gives the names of a module their prefix, and `Model` its new name."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def _renamed(self, name: str) -> str:
        if name == "Model":
            return "ModelNew"
        return _PREFIX + name if name in self._names else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._renamed(node.id)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.col_offset == 0:
            node.name = self._renamed(node.name)
        return super().visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        if node.col_offset == 0:
            node.name = self._renamed(node.name)
        self.generic_visit(node)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        # `import a.b` binds a: that needs both, a under its new name and a.b to be there.
        aliases = []
        for alias in node.names:
            first, _, rest = alias.name.partition(".")
            if alias.asname:
                aliases.append(ast.alias(alias.name, self._renamed(alias.asname)))
            else:
                if rest:
                    aliases.append(ast.alias(alias.name, "_"))
                aliases.append(ast.alias(first, self._renamed(first)))
        return ast.copy_location(ast.Import(aliases), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        node.names = [ast.alias(each.name, self._renamed(each.asname or each.name)) for each in node.names]
        return node
