"""What the site's reference of Python needs to know of our docstrings: an extension of Griffe (mkdocs.yml).

Griffe reads the source, and imports nothing of it.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from griffe import (
    Attribute,
    Class,
    DocstringAttribute,
    DocstringSectionAttributes,
    DocstringSectionKind,
    DocstringSectionText,
    Extension,
    Function,
)

_COMMENT: Final = re.compile(r"^[^\"'#]*#\s+(?P<text>.+)$")
_EXAMPLE: Final = re.compile(r"^>>> .+?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class OurDocstrings(Extension):
    """Arguments that are described together have their common type, examples are code, and the fields of a dataclass
    are described by their comments."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        _settle(func)

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        _settle(cls)
        fields = list(_fields(cls))
        if cls.docstring is not None and fields:
            cls.docstring.parsed.append(DocstringSectionAttributes(fields))


def _settle(described: Function | Class) -> None:
    if described.docstring is None:
        return
    own = {parameter.name: parameter for parameter in described.parameters}
    for section in described.docstring.parsed:
        if section.kind is DocstringSectionKind.parameters:
            for parameter in section.value:
                names = parameter.name.split(", ")
                types = {str(own[name].annotation) for name in names if name in own}
                if len(names) > 1 and len(types) == 1:
                    parameter.annotation = own[names[0]].annotation
        elif isinstance(section, DocstringSectionText):
            section.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", section.value)


def _fields(cls: Class) -> Iterator[DocstringAttribute]:
    if not any(str(decorator.value).startswith("dataclass(") for decorator in cls.decorators):
        return
    for name, member in cls.members.items():
        if isinstance(member, Attribute) and member.lineno is not None and "property" not in member.labels:
            found = _COMMENT.match(member.source.splitlines()[0])
            yield DocstringAttribute(name, annotation=member.annotation, description=found["text"] if found else "")
