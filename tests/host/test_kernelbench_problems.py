"""Problem files: those that are shipped, those that are no problems, and the process that runs them."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilesmith.kernelbench.expression import Attribute, Input, Scalar
from tilesmith.kernelbench.loading import UnsupportedError, load
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile, shipped
from tilesmith.kernelbench.recognize import Recognized, recognize, recognize_here
from tilesmith.kernelbench.show import show

# Every shipped problem: what forward computes, and the shapes of its tensors and of the result.
EXPECTED: dict[str, tuple[str, list[tuple[int, ...]], tuple[int, ...]]] = {
    "01_square.py": ("A @ B", [(4096, 4096), (4096, 4096)], (4096, 4096)),
    "02_rectangular.py": ("A @ B", [(2048, 8192), (8192, 4096)], (2048, 4096)),
    "03_batched.py": ("A @ B", [(128, 512, 1024), (128, 1024, 2048)], (128, 512, 2048)),
    "04_matrix_vector.py": ("A @ B", [(2048, 1048576), (1048576, 1)], (2048, 1)),
    "05_matrix_scalar.py": ("A * s", [(65536, 16384), ()], (65536, 16384)),
    "06_large_k.py": ("A @ B", [(256, 524288), (524288, 256)], (256, 256)),
    "07_small_k.py": ("A @ B", [(32768, 64), (64, 32768)], (32768, 32768)),
    "08_irregular.py": ("A @ B", [(8205, 2949), (2949, 5921)], (8205, 5921)),
    "09_tall_skinny.py": ("A @ B", [(32768, 32), (32, 32768)], (32768, 32768)),
    "10_three_dimensions.py": ("A @ B", [(16, 1024, 2048), (2048, 768)], (16, 1024, 768)),
    "11_four_dimensions.py": ("A @ B", [(8, 256, 512, 256), (256, 768)], (8, 256, 512, 768)),
    "12_diagonal.py": ("A.unsqueeze(1) * B", [(4096,), (4096, 4096)], (4096, 4096)),
    "13_symmetric.py": ("A @ B", [(4096, 4096), (4096, 4096)], (4096, 4096)),
    "14_upper_triangular.py": ("triu(A @ B)", [(4096, 4096), (4096, 4096)], (4096, 4096)),
    "15_lower_triangular.py": ("tril(A @ B)", [(4096, 4096), (4096, 4096)], (4096, 4096)),
    "16_transposed_a.py": ("A.T @ B", [(8192, 2048), (8192, 4096)], (2048, 4096)),
    "17_transposed_b.py": ("A @ B.T", [(2048, 8192), (4096, 8192)], (2048, 4096)),
    "18_transposed_both.py": ("A.T @ B.T", [(8192, 2048), (4096, 8192)], (2048, 4096)),
}

TAIL = """
def get_inputs():
    return [torch.rand(5, 7)]

def get_init_inputs():
    return [7, 3]
"""

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.linear = nn.Linear(k, n)
        self.register_buffer("offset", torch.zeros(n))
        self.scale = nn.Parameter(torch.rand(n), requires_grad=False)

    def forward(self, x, unused=None):
        return self.linear(x) * self.scale
"""


class Watch(TorchDispatchMode):
    """Remembers on which devices operations leave their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.devices.add(result.device.type)
        return result


def expression_of(file: ProblemFile) -> Recognized:
    found = recognize_here(file)
    assert isinstance(found, Recognized)
    return found


def problem(text: str) -> ProblemFile:
    return ProblemFile("problem.py", text)


def test_eighteen_problems_are_shipped() -> None:
    assert [file.name for file in shipped()] == list(EXPECTED)
    assert all(file.text.startswith('"""') for file in shipped())


@pytest.mark.parametrize("file", shipped(), ids=lambda file: file.name)
def test_a_shipped_problem_is_recognised_without_memory_for_its_inputs(file: ProblemFile) -> None:
    with Watch() as watch:
        found = expression_of(file)
    expression, inputs, result = EXPECTED[file.name]
    assert show(found.expression) == expression
    assert [x.shape for x in found.inputs] == inputs
    assert (found.expression.shape, found.expression.dtype) == (result, torch.float32)
    assert watch.devices == {"meta"}


def test_the_factor_of_problem_five_is_an_argument() -> None:
    found = expression_of(shipped()[4])
    matrix = Input("A", 0, (65536, 16384), torch.float32, (16384, 1))
    assert found.inputs == (matrix, Scalar(3.14, "s", 1))


def test_what_is_recognized_travels_as_a_dictionary() -> None:
    found = expression_of(problem(MODEL + TAIL))
    assert [x.name for x in found.inputs] == ["x"]
    assert show(found.expression) == "(x @ self.linear.weight.T + self.linear.bias) * self.scale"
    assert Recognized.from_dict(found.to_dict()) == found


def test_strides_of_inputs_are_kept() -> None:
    loaded = load(problem(MODEL + TAIL.replace("torch.rand(5, 7)", "torch.rand(7, 5).T")))
    assert loaded.inputs == (Input("x", 0, (5, 7), torch.float32, (1, 5)),)


CONFIG = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    n: 'int' = 3\n"
NUMPY = "torch.from_numpy(__import__('numpy').ones({}, 'float32'))"


@pytest.mark.parametrize(
    "replaced",
    [
        {"\nimport torch\n": f"{CONFIG}\nimport torch\n", "[7, 3]": "[7, Config().n]"},
        {
            "torch.zeros(n)": "torch.zeros(n, device='cuda')",
            "torch.rand(n)": "torch.rand(n, generator=torch.Generator()).cuda()",
            "torch.rand(5, 7)": "torch.rand(5, 7, pin_memory=True).to('cuda', torch.float32)",
        },
        {"torch.rand(n)": NUMPY.format("n"), "torch.rand(5, 7)": NUMPY.format("(5, 7)")},
    ],
    ids=["classes that look for their module", "devices and generators", "numpy"],
)
def test_what_does_not_matter(replaced: dict[str, str]) -> None:
    text = MODEL + TAIL
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    assert recognize_here(problem(text)) == recognize_here(problem(MODEL + TAIL))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", r"problem.py:1: not Python: '\(' was never closed"),
        ("\nreturn 1", "problem.py:2: not Python: 'return' outside function"),
        ("x = 1\0", "problem.py.* not Python: .*null bytes"),
        ("def get_inputs(): pass", "problem.py does not define Model, get_init_inputs"),
        ("import torch", "problem.py does not define Model, get_inputs, get_init_inputs"),
    ],
)
def test_a_text_that_is_no_problem_says_why(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        problem(text)


def test_names_may_be_bound_in_any_way() -> None:
    text = "from somewhere import Model\nget_inputs = list\nif True:\n    def get_init_inputs(): return []"
    assert problem(text).line(2) == "get_inputs = list"


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL + TAIL)
    assert ProblemFile.read(tmp_path / "mine.py") == ProblemFile("mine.py", MODEL + TAIL)
    with pytest.raises(ProblemError, match=r"other.py cannot be read: No such file"):
        ProblemFile.read(tmp_path / "other.py")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ProblemError, match=r"binary.py is not text in UTF-8: invalid start byte at byte 0"):
        ProblemFile.read(tmp_path / "binary.py")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "import torch\n",
            "import torch\n1 / 0\n",
            "importing problem.py fails: ZeroDivisionError: .* problem.py:3: 1 / 0",
        ),
        (
            "import torch\n",
            "import torch\nexit(3)\n",
            "importing problem.py fails: SystemExit: 3 at problem.py:3: exit",
        ),
        ("(nn.Module)", "", "problem.py: Model is not a class of torch.nn.Module"),
        ("def forward", "def backward", "problem.py: Model has no forward"),
        ("[7, 3]", "[7]", r"Model\(\*get_init_inputs\(\)\) fails: TypeError: .* missing 1 required .*: 'n'"),
        ("[7, 3]", "None", r"get_init_inputs\(\) returns NoneType, not a list"),
        ("def get_inputs():", "get_inputs = 1\ndef other():", "get_inputs is not a function"),
        ("[torch.rand(5, 7)]", "[]", r"get_inputs\(\) does not fit forward\(x, unused=None\): missing .* 'x'"),
        ("torch.rand(5, 7)", "torch.rand(5, 6)", "forward fails: RuntimeError: .* problem.py:13: return self.linear"),
    ],
)
def test_a_problem_that_fails_says_where(old: str, new: str, message: str) -> None:
    text = (MODEL + TAIL).replace(old, new, 1)
    assert text != MODEL + TAIL
    with pytest.raises(ProblemError, match=message) as caught:
        recognize_here(problem(text))
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("'text'", "a str"),
        ("True", "a bool"),
        ("[1]", "a list"),
        ("torch.sparse_coo_tensor(size=(5, 7), check_invariants=False)", "a tensor of layout"),
    ],
)
def test_an_argument_of_another_kind_is_refused(value: str, kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"problem.py: argument x of forward is {kind}"):
        load(problem(MODEL + TAIL.replace("torch.rand(5, 7)", value)))


def test_what_a_file_prints_does_not_spoil_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    noise = "import atexit, os, sys, time\nprint('{}' * 1000)\nos.write(1, b'{}')\natexit.register(time.sleep, 1000)\n"
    text = MODEL.replace("return self", "print(x); sys.stdout.write('{}'); return self")
    found = recognize(problem(noise + text + TAIL))
    assert found == recognize_here(problem(MODEL + TAIL))
    assert Attribute("scale", (3,), torch.float32) == found.expression.y  # type: ignore[union-attr]
    assert capfd.readouterr() == ("", "")


def test_a_refusal_comes_out_of_the_process() -> None:
    text = MODEL.replace("self.linear(x) * self.scale", "torch.relu(x) if x.sum() > 0 else x")
    with pytest.raises(UnsupportedError) as caught:
        recognize(problem(text + TAIL))
    assert str(caught.value).startswith("forward needs the elements of a tensor: RuntimeError: ")
    assert str(caught.value).endswith(" at problem.py:13: return torch.relu(x) if x.sum() > 0 else x")


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("os.write(2, b'no licence\\n'); os._exit(7)", "(exit status 7): no licence"),
        ("os.kill(os.getpid(), 11)", "(killed by SIGSEGV)"),
        ("os.closerange(3, 64)", "(exit status 1): the answer cannot be written: Bad file descriptor"),
    ],
)
def test_a_file_that_ends_its_process_is_an_error(code: str, end: str) -> None:
    text = MODEL.replace("self.linear(x) * self.scale", "x") + TAIL
    with pytest.raises(ProblemError) as caught:
        recognize(problem(f"import os\n{code}\n{text}"))
    assert str(caught.value) == f"problem.py ended the process before it was traced {end}"


def test_a_file_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Remembered)
    with pytest.raises(ProblemError, match=r"^problem.py has not finished after 1.5 seconds$"):
        recognize(problem("while True: pass\n" + MODEL + TAIL), timeout=1.5)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
