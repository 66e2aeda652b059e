"""Which names in a file mean those of its module, by Python's own rules for scopes, and other names for them."""

import ast
import symtable
from collections.abc import Callable, Iterator
from typing import Any, Final

_COMPREHENSIONS: Final = {
    ast.ListComp: "listcomp",
    ast.SetComp: "setcomp",
    ast.DictComp: "dictcomp",
    ast.GeneratorExp: "genexpr",
}
_USES: Final = "module_names"  # what a node says of itself once it is renamed


class Renamed(ast.NodeTransformer):
    """Gives every name that means one of the module its new name, in place. Parameters, local variables, attributes and
    keywords of calls keep theirs, however they are named."""

    def __init__(self, module: ast.Module, text: str, new: Callable[[str], str]) -> None:
        self._table = symtable.symtable(text, "<problem>", "exec")
        self._taken: set[int] = set()  # tables whose node has been found
        self._names = frozenset(name for statement in module.body for name in bound(statement))
        self._new = new
        self._class = ""  # the class around a node, for names with two underscores
        self._set_before: frozenset[str] | None = None  # names that the body of a class has bound so far
        self.visit(module)

    # Names.

    def _name(self, node: ast.AST, name: str, *, load: bool = False) -> str:
        """What a name becomes in the scope that is being visited."""
        if not self._means_module(name, load):
            in_class = self._table.get_type() == "class"
            return self._mangled(name) if in_class else name
        setattr(node, _USES, {*module_names(node), name})
        return self._new(name)

    def _means_module(self, name: str, load: bool) -> bool:
        if name not in self._names:
            return False
        if self._table.get_type() == "module":
            return True
        try:
            symbol = self._table.lookup(name)
        except KeyError:
            return False
        if symbol.is_global():
            return True
        # The body of a class reads the module's variable until it has one of its own.
        return load and self._set_before is not None and symbol.is_local() and name not in self._set_before

    def _mangled(self, name: str) -> str:
        """A private name as the class has it that is about to get another name."""
        private = self._class and name.startswith("__") and not name.endswith("__")
        return f"_{self._class.lstrip('_')}{name}" if private else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._name(node, node.id, load=isinstance(node.ctx, ast.Load))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        node.names = [self._name(node, name) for name in node.names]
        return node

    def _visit_named(self, node: Any) -> ast.AST:
        field = "rest" if isinstance(node, ast.MatchMapping) else "name"
        if name := getattr(node, field):
            setattr(node, field, self._name(node, name))
        return self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = visit_MatchMapping = _visit_named  # noqa: N815

    def visit_Import(self, node: ast.Import) -> ast.AST:
        # `import a.b` binds a: that needs both, a under its new name and a.b to be there.
        aliases = []
        for alias in node.names:
            first, _, rest = alias.name.partition(".")
            name = self._name(node, alias.asname or first)
            if alias.asname or name != first:
                if rest and not alias.asname:
                    aliases.append(ast.alias(alias.name, "_"))
                aliases.append(ast.alias(alias.name if alias.asname else first, name))
            else:
                aliases.append(alias)
        node.names = aliases
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        for alias in node.names:
            old = alias.asname or alias.name
            if old != "*" and (new := self._name(node, old)) != old:
                alias.asname = new
        return node

    # Scopes.

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        table = self._inner(node.name, node.lineno)
        node.name = self._name(node, node.name)
        self._visit_arguments(node.args)
        self._visit_all(node.decorator_list)
        node.returns = None
        self._within(table, node.body)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._visit_arguments(node.args)
        body = [node.body]
        self._within(self._inner("lambda", node.lineno), body)
        node.body = body[0]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        table, name = self._inner(node.name, node.lineno), node.name
        node.name = self._name(node, node.name)
        self._visit_all(node.bases)
        self._visit_all(node.keywords)
        self._visit_all(node.decorator_list)
        self._within(table, node.body, name)
        return node

    def _visit_comprehension(self, node: Any) -> ast.AST:
        first = node.generators[0]
        first.iter = self.visit(first.iter)  # outside of the scope
        table = self._inner(_COMPREHENSIONS[type(node)], node.lineno)
        parts: list[ast.AST] = [first.target, *first.ifs, *node.generators[1:]]
        parts += [node.value, node.key] if isinstance(node, ast.DictComp) else [node.elt]
        self._within(table, parts)
        return node  # type: ignore[no-any-return]

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Annotations stay in classes, where dataclasses look for them."""
        if self._table.get_type() == "class" or node.value is None:
            self.generic_visit(node)
            return node
        target, value = self.visit(node.target), self.visit(node.value)
        return ast.copy_location(ast.Assign([target], value), node)

    def _visit_arguments(self, arguments: ast.arguments) -> None:
        self._visit_all(arguments.defaults)
        self._visit_all(arguments.kw_defaults)
        for node in ast.walk(arguments):
            if isinstance(node, ast.arg):
                node.annotation = None

    def _visit_all(self, nodes: list[Any]) -> None:
        nodes[:] = [node and self.visit(node) for node in nodes]

    def _within(self, table: symtable.SymbolTable, body: list[Any], in_class: str | None = None) -> None:
        """Visits nodes in an inner scope."""
        outer = self._table, self._set_before, self._class
        self._table = table
        self._set_before = None if in_class is None else frozenset()
        self._class = self._class if in_class is None else in_class
        for i, node in enumerate(body):
            before = set(bound(node)) if in_class is not None else set()
            body[i] = self.visit(node)
            if self._set_before is not None:
                self._set_before |= before
        self._table, self._set_before, self._class = outer

    def _inner(self, name: str, line: int) -> symtable.SymbolTable:
        """The table of a scope: those with one name in one line come in the order of the text."""
        for table in self._table.get_children():
            if (table.get_name(), table.get_lineno()) == (name, line) and table.get_id() not in self._taken:
                self._taken.add(table.get_id())
                return table
        raise AssertionError(f"no scope of {name} at line {line}")


def module_names(*nodes: ast.AST) -> set[str]:
    """The old names of what these nodes use or bind at the level of the module. They have been renamed."""
    return {name for root in nodes for node in ast.walk(root) for name in getattr(node, _USES, ())}


def bound(statement: ast.AST) -> Iterator[str]:
    """The names that a statement binds in the scope in which it stands."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        yield from (name for node in statement.decorator_list for name in bound(node))
        return
    if isinstance(statement, ast.Lambda):
        return
    if isinstance(statement, ast.alias):
        yield statement.asname or statement.name.partition(".")[0]
    elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        yield statement.id
    elif isinstance(statement, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and statement.name:
        yield statement.name
    elif isinstance(statement, ast.MatchMapping) and statement.rest:
        yield statement.rest
    if isinstance(statement, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        yield from (x.target.id for x in ast.walk(statement) if isinstance(x, ast.NamedExpr))
        return
    yield from (name for node in ast.iter_child_nodes(statement) for name in bound(node))
