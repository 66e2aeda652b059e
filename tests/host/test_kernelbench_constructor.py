"""Constructors of written modules: every name means what it means in the problem, by Python's scopes. What is compared
is the object that the written constructor makes with the one of the problem's own."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from tilesmith.kernelbench.constructor import constructor
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile

TEXT = """
{definitions}
import torch
from torch import nn

N = 4096
SCALE = 0.5
SIZES = [1, 2]

class Model(nn.Module):
    {body}

    def forward(self, x):
        return x

def get_inputs():
    return [torch.rand(4, 4)]

def get_init_inputs():
    return []
"""


def module(name: str, text: str) -> ModuleType:
    found = sys.modules[name] = ModuleType(name)
    exec(text, found.__dict__)
    return found


def state(model: Any) -> dict[str, Any]:
    """What a constructor has set, under the names of the first class."""
    own = {name: value for name, value in vars(model).items() if not name.startswith("_") and name != "training"}
    return own | {name: tuple(x.shape) for name, x in model.named_parameters()}


def both(body: str, *arguments: object, definitions: str = "", attribute: str = "training") -> None:
    file = ProblemFile("p.py", TEXT.format(definitions=definitions, body=body.replace("\n", "\n    ")))
    text, bases, written = constructor(file)
    new = f"{text}\nclass ModelNew({bases}):\n    " + written.replace("\n", "\n    ")
    found = []
    for name, source, cls in (("old", file.text, "Model"), ("new", new, "ModelNew")):
        torch.manual_seed(0)
        model = getattr(module(name, source), cls)(*arguments)
        found.append(state(model))
        assert hasattr(model, attribute)
    assert found[0] == found[1]
    assert found[0]


INIT = "def __init__(self{parameters}):\n    super().__init__()\n    {body}"


@pytest.mark.parametrize(
    ("parameters", "body", "arguments"),
    [
        ("", "self.x = (N, SCALE)", ()),
        (", N, K, SCALE=2.0", "self.linear = nn.Linear(N, K); self.x = SCALE", (32, 64, 0.25)),
        (", k=N, *, s=SCALE", "self.x = (k, s)", ()),
        (", *N, **SCALE", "self.x = (N, SCALE)", (1, 2)),
        (", N=N", "self.x = N", ()),
        (", N=N", "self.x = N", (3,)),
        ("", "N = 5; self.x = (N, SCALE)", ()),
        ("", "for N in range(3): self.x = N", ()),
        ("", "self.x = [N for N in range(3)] + [N]", ()),
        ("", "self.x = [SCALE for n in range(N // 1024)]", ()),
        ("", "self.x = {N: SCALE for N, SCALE in [(1, 2)]}, {N: SCALE}", ()),
        ("", "self.x = [(N, k) for N in SIZES for k in range(N)], sorted({N for N in SIZES})", ()),
        ("", "self.x = [[N for N in range(k)] for k in SIZES], [[N for _ in range(k)] for k in SIZES]", ()),
        ("", "self.x = (lambda N: N + 1)(2), (lambda: N)(), (lambda k=N: k)()", ()),
        ("", "self.x = list(map(lambda N: N, SIZES)), list(map(lambda k: N, SIZES))", ()),
        ("", "def N(): return SCALE\n    self.x = N()", ()),
        ("", "def f(N): return N * SCALE\n    self.x = f(2)", ()),
        ("", "def f(): return N * SCALE\n    self.x = f()", ()),
        (", N", "def f(): return N * SCALE\n    self.x = f()", (3,)),
        (", N", "def f():\n        nonlocal N\n        N += 1\n    f()\n    self.x = N", (3,)),
        (", N", "def f():\n        global N\n        N += 1\n        return N\n    self.x = (f(), N)", (3,)),
        ("", "global N\n    N += 1\n    self.x = N", ()),
        ("", "global SIZES\n    SIZES = [N]\n    self.x = SIZES", ()),
        ("", "try: 1 / 0\n    except ZeroDivisionError as N: self.x = str(N)", ()),
        ("", "with torch.no_grad() as N: self.x = N", ()),
        ("", "import math as N\n    self.x = N.pi", ()),
        ("", "from math import pi as SCALE\n    self.x = (SCALE, N)", ()),
        ("", "(N := 3); self.x = N", ()),
        ("", "self.x = [(N := k) for k in range(3)]; self.y = N", ()),
        ("", "match [1, 2]:\n        case [N, *SCALE]: self.x = (N, SCALE)", ()),
        ("", "match {'a': 1}:\n        case {'a': N, **SCALE}: self.x = (N, SCALE)", ()),
        ("", "self.x = dict(N=1, SCALE=N)", ()),
        ("", "self.N = N; self.SCALE = self.N", ()),
        ("", "class N: SCALE = 3\n    self.x = (N.SCALE, SCALE)", ()),
        ("", "self.x = f'{N} {SCALE:{N}}'", ()),
        ("", "N: int = 7\n    self.x = N", ()),
        (", N: int = 3, k: 'SCALE' = 1", "self.x = N + k", ()),
        ("", "del SIZES[0]; self.x = list(SIZES); SIZES.insert(0, 1)", ()),
        ("", "self.x = Model.__mro__[1].__name__, isinstance(self, Model)", ()),
        (", Model", "self.x = Model", (3,)),
    ],
)
def test_names_in_constructors_mean_what_they_mean(parameters: str, body: str, arguments: tuple[object, ...]) -> None:
    both(INIT.format(parameters=parameters, body=body), *arguments)


@pytest.mark.parametrize(
    "body",
    [
        "N = 7\n" + INIT.format(parameters="", body="self.x = (self.N, N)"),
        "N = N\n" + INIT.format(parameters="", body="self.x = self.N"),
        "K = N\nN = K + 1\nM = N\n" + INIT.format(parameters="", body="self.x = (self.K, self.M, self.N, N)"),
        "SCALE = 7\n" + INIT.format(parameters=", s=SCALE, n=N", body="self.x = (s, n)"),
        "N = 3\nL = [N for _ in SIZES]\n" + INIT.format(parameters="", body="self.x = self.L"),
        "def N(self): return SCALE\n" + INIT.format(parameters="", body="self.x = (self.N(), N)"),
        "@staticmethod\ndef size(N): return N\n" + INIT.format(parameters="", body="self.x = self.size(N=N)"),
        INIT.format(parameters="", body="self.__w = nn.Parameter(torch.zeros(3)); self.x = 1"),
        "__K = 3\ndef __f(self): return self.__K\n" + INIT.format(parameters="", body="self.x = self.__f()"),
        "n: int = N\n" + INIT.format(parameters="", body="self.x = self.n"),
    ],
)
def test_names_in_the_class_mean_what_they_mean(body: str) -> None:
    both(body)


@pytest.mark.parametrize(
    ("definitions", "expression"),
    [
        ("if True:\n    WIDTH = 3\nelse:\n    WIDTH = 4", "WIDTH"),
        ("def width(N): return N + 1", "width(N=2) + N"),
        ("def width(n):\n    N = n\n    return N", "width(2)"),
        ("CONFIG = {}\nCONFIG['n'] = 3\nCONFIG.update(k=4)", "CONFIG"),
        ("class C: pass\nC.n = 3", "C.n"),
        ("LIST = []\nfor i in range(3):\n    LIST.append(i)\nLIST += [9]\nLIST.append(8)", "LIST"),
        ("from math import *", "pi + N"),
        ("import os.path", "os.path.join('a', 'b')"),
        ("import os.path as path", "path.join('a', 'b')"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass C:\n    n: int = 3\n    k: int = 4",
            "C(k=5).k + C(1).n",
        ),
        ("class Base:\n    def __init__(self): self.__n = 3\n    def n(self): return self.__n", "Base().n()"),
        ("class A:\n    N = 3\n    def f(self, N=N): return N, self.N", "A().f()"),
        ("try:\n    import nothing\nexcept ImportError as error:\n    WHY = str(error)", "WHY"),
        ("def outer():\n    SIZE = 3\n    return [lambda: SIZE, lambda: N]\nSIZE = 4", "[f() for f in outer()]"),
        ("first = second = 3\n(a, *b), c = (1, 2), 3", "(first, second, a, b, c)"),
    ],
)
def test_definitions_of_the_file_come_along(definitions: str, expression: str) -> None:
    both(INIT.format(parameters="", body=f"self.x = {expression}"), definitions=definitions)


def test_private_parameters_keep_their_path() -> None:
    body = INIT.format(parameters="", body="self.__w = nn.Parameter(torch.zeros(3))")
    both(body, attribute="_Model__w")


def test_a_decorated_model_is_refused() -> None:
    text = TEXT.format(definitions="", body="pass").replace("class Model", "@torch.no_grad()\nclass Model")
    with pytest.raises(ProblemError, match=r"^p.py:11: Model must have no decorator"):
        constructor(ProblemFile("p.py", text))
