"""One trace stands for all calls: what depends on the mode becomes a branch, and what depends on more is refused."""

import pytest

from tilesmith.kernelbench.guards import Traced, traced
from tilesmith.kernelbench.loading import UnsupportedError, load
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import Recognized, recognize_here
from tilesmith.kernelbench.show import show

TEXT = """
import itertools, random, time
import torch
import torch.nn.functional as F
from torch import nn
COUNT, COUNTER, SEEN = 0, itertools.count(1), []
def remembered(x, seen=[]):
    seen.append(1)
    return x
def double(x): return x * 2
class Box: n = 0
class Model(nn.Module):
    total = 0
    def __init__(self):
        super().__init__()
        self.n, self.seen, self.box, self.part, self.w = 0, [], Box(), nn.Identity(), nn.Parameter(torch.rand(7, 3))
        INIT
    def forward(self, A, B):
        BODY
def get_inputs():
    return [torch.rand(5, 7), torch.rand(7, 3)]
def get_init_inputs():
    return []
"""


def problem(body: str, init: str = "pass") -> ProblemFile:
    body = body if "return" in body else f"return {body}"
    return ProblemFile("p.py", TEXT.replace("INIT", init).replace("BODY", body.replace("\n", "\n        ")))


SIZES = "forward takes another way for other sizes"
NOT_THE_SAME = "forward does not do the same in every call"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("A @ B if len(A) < 50 else A @ B * 2", f"{SIZES} at p.py:19: return A @ B if"),
        ("A @ B if len(A) > 1 else B * A", f"{SIZES} at p.py:19"),
        ("A @ B if B.shape[1] % 2 else A @ B * 2", f"{SIZES} at p.py:19"),
        ("C = A @ B\nif A.numel() > 40:\n    C = C + C\nreturn C", f"{SIZES} at p.py:21"),
        ("A.T if len(A) < 50 else A.T.T", f"{SIZES} at p.py:19"),
        ("F.relu(A) if len(A) > 50 else A", f"{SIZES}: aten.relu is not supported at"),
        ("A * len(A)", f"{SIZES} at p.py:19: return A * len(A)"),
        ("A / (len(A) - 1)", f"{SIZES}: aten.div by something other"),
        ("A * B.shape[1] ** 0.5", f"{SIZES} at p.py:19"),
        ("A[:, :7] * 2", f"{SIZES}: aten.slice is not supported at p.py:19"),
        ("self.n += 1; return A @ B", "forward changes self.n"),
        ("self.n += 1; self.cache = A @ B; return self.cache * self.n", "forward changes self.cache, self.n"),
        ("self.seen.append(A.shape); return A @ B", "forward changes self.seen"),
        ("self.box.n += 1; return A @ B", "forward changes self.box"),
        ("self.part.count = 1; return A @ B", "forward changes self.part.count"),
        ("self.w = nn.Parameter(self.w * 2); return A @ B", "forward changes self.w"),
        ("Model.total += 1; return A @ B", "forward changes the variable Model"),
        ("global COUNT; COUNT += 1; return A @ B", "forward changes the variable COUNT"),
        ("SEEN.append(1); return A @ B", "forward changes the variable SEEN"),
        ("remembered(A @ B)", "forward changes the variable remembered"),
        ("double.calls = 1; return double(A)", "forward changes the variable double"),
        ("A * random.random()", f"{NOT_THE_SAME} at p.py:19: return A"),
        ("A * time.perf_counter()", f"{NOT_THE_SAME} at p.py:19: return A"),
        ("A * next(COUNTER)", f"{NOT_THE_SAME} at p.py:19: return A"),
        ("A if next(COUNTER) < 2 else F.relu(A)", f"{NOT_THE_SAME}: aten.relu is not"),
        (
            "A @ B if torch.is_grad_enabled() else A @ B * 2",
            "forward takes another way where gradients are switched off at p.py:19: return A @ B if",
        ),
        ("A * (1.0 + self.part.training)", "forward depends on whether a part of the model is in training"),
    ],
)
def test_what_one_trace_cannot_stand_for_is_refused_by_name(body: str, message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        traced(problem(body))
    assert str(caught.value).startswith(f"p.py: {message}")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert A.shape == (5, 7); return A @ B", "A @ B"),
        ("if len(A) > 5: raise ValueError('too many')\nreturn A @ B", "A @ B"),
        ("(A @ self.w) * A.shape[1]", "(A @ self.w) * 7"),
        ("A.reshape(len(A) * A.shape[1]).view(len(A), -1) @ B", "A @ B"),
        ("A[:, :].expand(2, len(A), 7) @ B", "A.expand(2, 5, 7) @ B"),
        ("print(len(A), A.shape); return A @ B", "A @ B"),
        ("A * 2 if self.n == 0 else A", "A * 2"),
        ("SEEN == [] and A", "A"),
    ],
)
def test_what_is_the_same_for_all_calls_is_not_refused(body: str, expected: str) -> None:
    found = traced(problem(body))
    assert show(found.training) == expected
    assert found.evaluation is found.training


@pytest.mark.parametrize("init", ["pass", "self.eval()", "self.part.eval()"])
@pytest.mark.parametrize(
    "body",
    [
        "A @ B if self.training else A @ B * 2",
        "if self.training:\n    return A @ B\nreturn (A @ B) * 2",
    ],
)
def test_both_modes_are_found(body: str, init: str) -> None:
    file = problem(body, init)
    loaded = load(file)
    modes = [module.training for module in loaded.model.modules()]
    found = traced(file, loaded)
    assert [module.training for module in loaded.model.modules()] == modes
    assert (show(found.training), show(found.evaluation)) == ("A @ B", "(A @ B) * 2")
    recognized = recognize_here(file)
    assert isinstance(recognized, Recognized)
    assert Traced(recognized.expression, recognized.evaluation) == found
    assert recognized.describe() == "A @ B in training, (A @ B) * 2 in evaluation"
    assert Recognized.from_dict(recognized.to_dict()) == recognized


def test_a_mode_that_has_no_expression_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"^in evaluation, aten.relu is not supported at p.py:19: return A if"):
        traced(problem("A if self.training else F.relu(A)"))
    with pytest.raises(UnsupportedError, match=r"^aten\..* is not supported at p.py:19"):
        traced(problem("F.dropout(A @ B, 0.5, self.training)"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("A @ B * self.s", "(A @ B) * self.s"),
        ("A * self.s * 0.5", "(A * self.s) * 0.5"),
        ("torch.add(A, A, alpha=self.k)", "A + A * self.k"),
        ("A * self.one", "A * self.one"),
        ("A / self.s", "A * 2.0"),
        ("A * (self.s * 2)", "A"),
        ("A * self.s if self.s < 1 else A", "A * 0.5"),
        ("A * self.s if self.training else A * self.k", "A * self.s in training, A * self.k in evaluation"),
    ],
)
def test_factors_are_read_from_the_model(body: str, expected: str) -> None:
    file = problem(body, "self.s, self.k, self.one = 0.5, 3, 1.0")
    assert recognize_here(file).describe() == expected
    loaded = load(file)
    traced(file, loaded)
    assert (vars(loaded.model)["s"], vars(loaded.model)["k"]) == (0.5, 3)


def test_hooks_of_the_model_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"p.py: Model has hooks"):
        traced(problem("A @ B", "self.register_forward_hook(lambda m, i, o: o * 2)"))


def test_other_sizes_keep_the_order_in_memory() -> None:
    file = problem("A @ B if A.stride(0) == 1 else A @ B * 2")
    transposed = ProblemFile("p.py", file.text.replace("torch.rand(5, 7)", "torch.rand(7, 5).T"))
    assert show(traced(transposed).training) == "A @ B"
