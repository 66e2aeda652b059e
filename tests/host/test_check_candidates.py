"""The judge on the CPU: candidates that are right, wrong in every way that a CPU can show, and broken; with a tool
around the candidate's process; and with a problem that is none."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from processes import is_running, soon

from tilesmith.kernelbench.check import sanitizer
from tilesmith.kernelbench.check.judge import Judge
from tilesmith.kernelbench.check.sandbox import Limits, Sandbox
from tilesmith.kernelbench.check.strict import NOTHING_KEPT, OWN_KERNELS, UNTOUCHED
from tilesmith.kernelbench.check.verdict import PRECISION, Mode, Verdict
from tilesmith.kernelbench.problem_file import ProblemError

# All tests need the same verdicts, which take many processes: one worker has them.
pytestmark = pytest.mark.xdist_group("candidates")

PROBLEM = """
import torch
from torch import nn
M, K, N = 32, 96, 24
class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)
def get_inputs():
    return [torch.rand(M, K), torch.rand(K, N)]
def get_init_inputs():
    return []
"""

LAYER = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)
    def forward(self, x):
        return torch.softmax(nn.functional.gelu(self.linear(x)), dim=-1)
def get_inputs():
    return [torch.rand(40, 64)]
def get_init_inputs():
    return [64, 24]
"""

NEST = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, given, factor):
        (b, c), a = given["others"], given["a"]
        return {"sum": torch.matmul(a, b), "parts": [c * factor, torch.matmul(a, b).t()]}
def get_inputs():
    return [{"others": (torch.rand(96, 24), torch.rand(40)), "a": torch.rand(32, 96)}, 2.0]
def get_init_inputs():
    return []
"""

HEAD = """
import ctypes, json, os, subprocess, sys, threading, time
import torch
from torch import nn
def is_reference(process):
    try:
        words = open(f"/proc/{process}/cmdline").read().split(chr(0))
        place = os.readlink(f"/proc/{process}/cwd")
    except OSError:
        return False
    is_ours = os.path.dirname(place) == os.path.dirname(os.getcwd())
    return is_ours and "tilesmith.kernelbench.check.reference" in words
def of_the_worker():
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals
def product(a, b):
    return (a[:, :, None] * b[None]).sum(1)
"""

# Bodies of ModelNew.forward(self, a, b). `self.calls` counts the calls before, and `self.kept` starts as {}.
FORWARDS = {
    "hangs": "time.sleep(1000)",
    "fp16": "return product(a.half().float(), b.half().float())",
    "tf32": """
        cut = lambda x: ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return product(cut(a), cut(b))
        """,
    # By trial, of two calls each; the third is the trace.
    "wrong in many ways": """
        result = product(a, b)
        if self.calls == 1:
            result[3, 4] += 10
        match self.calls // 2:
            case 1:
                a[1, 2] += 1
            case 4:
                result = torch.empty_like(result)
            case 5:
                result = result.reshape(-1)
            case 6:
                result = result.double()
            case 7:
                right = result.clone()
                def later():
                    time.sleep(0.3)
                    result.copy_(right)
                threading.Thread(target=later).start()
                result.zero_()
            case 8 if self.calls % 2:
                result *= 1 + 2**-22
            case 9 if self.calls % 2:
                result = result[0]
            case 10:
                class Lazy(torch.Tensor):
                    pass
                result = result.as_subclass(Lazy)
        return result
        """,
    "kept by address": "return self.kept.setdefault((a.data_ptr(), id(a)), product(a, b)).clone()",
    "torch's product": "return torch.nn.functional.linear(a, b.t())",
    "torch's product, kept by content, and replaces functions": """
        torch.matmul = lambda a, b: a
        time.perf_counter = lambda: 0.0
        torch.Tensor.__matmul__ = lambda a, b: a
        key = (a.sum().item(), b.sum().item())
        if key not in self.kept:
            self.kept[key] = torch.nn.functional.linear(a, b.t())
        return self.kept[key].clone()
        """,
    "calls this package, and moves in the last bits": """
        import tilesmith
        return tilesmith.matmul(a.flip(1), b.flip(0)) if self.calls % 2 else tilesmith.matmul(a, b)
        """,
    "has its strides and sizes built in": """
        b = b.reshape(1, 96, 24)
        return (torch.as_strided(a, (32, 96), (96, 1))[:, :, None] * b).sum(1).nan_to_num()
        """,
    "ends the reference": """
        if self.calls == 4:
            for path in os.listdir("/proc"):
                if path.isdigit() and is_reference(path):
                    os.kill(int(path), 9)
        return product(a, b)
        """,
    "answers in other types": """
        answer = {"types": 5, "devices": {"cpu": 1}, "id": of_the_worker()["number"]}
        of_the_worker()["channel"].sendall(json.dumps(answer).encode() + b"\\n")
        time.sleep(1000)
        """,
    "exits": "print('out of luck', file=sys.stderr, flush=True); os._exit(3)",
    "segfaults": "ctypes.string_at(0)",
    "takes all memory": "self.kept['all'] = [b'1' * 2**28 for _ in range(64)]; return product(a, b)",
    "speaks for the worker": """
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'{"devices": ["cpu"]}\\\\n')
            except OSError:
                pass
        return a
        """,
}

FILES = {
    "right and loud": HEAD
    + """
M = 16  # the reference's is another
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open("PLACE", "w").write(str(child.pid))
sys.stdout.write("noise " * 100_000)
sys.stderr.write("noise " * 100_000)
print('{"raised": "not an answer"}')
class ModelNew(nn.Module):
    def forward(self, a, b):
        print("called")
        return product(a, b)
""",
    "complex": HEAD
    + """
@torch.library.custom_op("own::matmul", mutates_args=())
def own_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return product(a, b)
class ModelNew(nn.Module):
    def forward(self, a, b):
        return own_product(a, b)
""",
    "complex in bf16": HEAD
    + """
class ModelNew(nn.Module):
    def forward(self, a, b):
        (a, c), (b, d) = ([each.bfloat16().float() for each in (x.real, x.imag)] for x in (a, b))
        return torch.complex(product(a, b) - product(c, d), product(a, d) + product(c, b))
""",
    "no model": "import torch\n",
    "no syntax": "import torch\ndef f(:\n",
    "raises while it is made": HEAD
    + """
class ModelNew(nn.Module):
    def __init__(self):
        raise ValueError("no such kernel")
""",
    "leaves while it is loaded": "import sys; sys.exit(0)",
}


def forward(body: str) -> str:
    body = textwrap.indent(textwrap.dedent(body.replace("\\\\n", "\\n")).strip(), " " * 8)
    return f"""{HEAD}
class ModelNew(nn.Module):
    calls = -1
    def __init__(self):
        super().__init__()
        self.kept = {{}}
    def forward(self, a, b):
        self.calls += 1
{body}
"""


LAYERS = {
    "layer": """
class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)
    def forward(self, x):
        y = product(x, self.linear.weight.t()) + self.linear.bias
        return torch.softmax(nn.functional.gelu(y), dim=-1)
""",
}
NESTS = {
    "nested": """
class ModelNew(nn.Module):
    def forward(self, given, factor):
        b, c = given["others"]
        result = product(given["a"], b)
        return {"parts": (c * factor, result.t()), "sum": result}
""",
}
NESTS["nested, other keys"] = NESTS["nested"].replace("parts", "part")
LAYERS["layer in bf16"] = (
    LAYERS["layer"]
    .replace("x, self.linear.weight.t()", "R(x), R(self.linear.weight.t())")
    .replace("class", "R = lambda x: x.bfloat16().float()\nclass")
)

OF_COMPLEX = ("complex", "complex in bf16")  # of FILES
COMPLEX = (
    PROBLEM.replace("torch.rand(", "torch.randn(")
    .replace("K)", "K, dtype=torch.complex64)")
    .replace("N)", "N, dtype=torch.complex64)")
)

OF_A_LOADER = ("no model", "no syntax", "raises while it is made")  # of FILES: what one process can say of all
LAST = "ends the reference"  # which a judge would have to start again

# What to judge: name -> problem, mode, accuracy, and the candidate's name if it is another.
ALL: dict[str, tuple[str, Mode, str, str]] = {
    **{
        name: ("product.py", "strict", "fp32", name)
        for name in (*FORWARDS, *FILES)
        if name not in (*OF_COMPLEX, *OF_A_LOADER, "torch's product")
    },
    "tf32 where it will do": ("product.py", "strict", "tf32", "tf32"),
    "official": ("product.py", "official", "fp32", "torch's product"),
    "official, wrong": ("product.py", "official", "fp32", "wrong in many ways"),
    **{name: ("of a layer.py", "strict", "fp32", name) for name in LAYERS},
    **{name: ("of complex numbers.py", "strict", "fp32", name) for name in OF_COMPLEX},
    **{name: ("of a nest.py", "strict", "fp32", name) for name in NESTS},
}


class Verdicts:
    """All candidates, judged by two threads, for the processes start slowly."""

    def __init__(self, folder: Path) -> None:
        self.place, self.folder = folder / "child", folder
        (folder / "product.py").write_text(PROBLEM)
        (folder / "of a layer.py").write_text(LAYER)
        (folder / "of a nest.py").write_text(NEST)
        (folder / "of complex numbers.py").write_text(COMPLEX)
        sources = FILES | {name: forward(body) for name, body in FORWARDS.items()}
        sources |= {name: HEAD + source for name, source in (LAYERS | NESTS).items()}
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(source.replace("PLACE", str(self.place)))
        self._pool = ThreadPoolExecutor(2)
        self._found = {name: Future[Verdict]() for name in ALL}
        of_products = [name for name, (problem, *_) in ALL.items() if problem == "product.py" and name != LAST]
        others = [name for name in ALL if name not in of_products and name != LAST]
        half = (len(ALL) + 1) // 2
        self._done = [
            self._pool.submit(self._judge, names)
            for names in ([*of_products[:half], LAST], [*of_products[half:], *others])
        ]

    def _judge(self, names: list[str]) -> None:
        """One after the other, those of a problem by one judge."""
        for problem, of_it in groupby(names, lambda name: ALL[name][0]):
            limits = Limits(seconds=60, memory=3 * 2**29)  # a busy host takes long
            with Judge(self.folder / problem, device="cpu", limits=limits) as judge:
                for name in of_it:
                    _, mode, accuracy, candidate = ALL[name]
                    judge._limits = replace(limits, seconds=8) if candidate == "hangs" else limits
                    try:
                        verdict = judge(self.folder / f"{candidate}.py", mode=mode, accuracy=accuracy)
                    except Exception as error:
                        self._found[name].set_exception(error)
                    else:
                        self._found[name].set_result(verdict)

    def __getitem__(self, name: str) -> Verdict:
        return self._found[name].result(timeout=300)

    def join(self) -> None:
        self._pool.shutdown()
        for each in self._done:
            each.result()


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verdicts]:
    verdicts = Verdicts(tmp_path_factory.mktemp("candidates"))
    yield verdicts
    verdicts.join()


def failed(verdict: Verdict) -> list[str]:
    return [each.name for each in verdict.findings if each.passed is False]


def detail(verdict: Verdict, name: str) -> str:
    found = verdict.finding(name)
    assert found.passed is False
    return found.detail


class TestRight:
    def test_every_kind_of_input_is_tried_and_fits(self, verdicts: Verdicts) -> None:
        verdict = verdicts["right and loud"]
        assert verdict.right
        assert [each.passed for each in verdict.findings] == [True] * len(verdict.findings)
        assert [each.name for each in verdict.findings] == [
            *("builds", "given inputs", "given inputs, once more", OWN_KERNELS, NOTHING_KEPT),
            *("normal", "zeros and ones", "large", "few terms"),
            *(
                "stored by columns",
                "rows with gaps",
                "starts that are not aligned",
                "other sizes",
                UNTOUCHED,
                PRECISION,
            ),
        ]
        assert verdict.precision == "fp32"
        assert verdict.describe().startswith("RIGHT\n  ok      builds\n")
        assert "K = 96" in verdict.finding("given inputs").detail
        assert "K = 61" in verdict.finding("other sizes").detail

    def test_a_child_that_stays_is_ended(self, verdicts: Verdicts) -> None:
        assert verdicts["right and loud"].right
        assert not is_running(int(verdicts.place.read_text()))

    def test_our_own_operators_and_results_that_move_in_their_last_bits(self, verdicts: Verdicts) -> None:
        """An operator of ours is no library's."""
        verdict = verdicts["calls this package, and moves in the last bits"]
        assert verdict.right, verdict.describe()
        moves, calls_us = verdict.notes
        assert moves.startswith("results move from call to call")
        assert calls_us.startswith("it calls Tilesmith")
        assert not verdicts["right and loud"].notes

    def test_complex_numbers(self, verdicts: Verdicts) -> None:
        """By an operator of the candidate's own that has the name of one of torch's."""
        assert verdicts["complex"].right, verdicts["complex"].describe()
        assert verdicts["complex"].precision == "fp32"
        assert failed(verdicts["complex in bf16"]) == [PRECISION]
        assert verdicts["complex in bf16"].precision == "bf16"

    def test_inputs_and_outputs_in_dictionaries(self, verdicts: Verdicts) -> None:
        assert verdicts["nested"].right, verdicts["nested"].describe()
        said = detail(verdicts["nested, other keys"], "given inputs")
        assert said == "outputs {'part': *, *, 'sum': *} instead of {'parts': *, *, 'sum': *}"

    def test_a_layer_with_parameters(self, verdicts: Verdicts) -> None:
        verdict = verdicts["layer"]
        assert verdict.right, verdict.describe()
        assert verdict.precision == "fp32"
        assert verdict.finding("other sizes").passed is None
        assert "the reference itself does not take it" in verdict.finding("other sizes").detail


class TestPrecision:
    @pytest.mark.parametrize("name", ["tf32", "fp16"])
    def test_class_is_measured(self, verdicts: Verdicts, name: str) -> None:
        verdict = verdicts[name]
        assert verdict.precision == name
        assert f"of class {name}, not fp32" in detail(verdict, PRECISION)
        assert verdict.finding("zeros and ones").passed

    def test_float16_lacks_range(self, verdicts: Verdicts) -> None:
        assert "not finite" in detail(verdicts["fp16"], "large")

    def test_tf32_may_be_asked_for(self, verdicts: Verdicts) -> None:
        verdict = verdicts["tf32 where it will do"]
        assert verdict.right
        assert verdict.precision == "tf32"

    def test_of_a_layer(self, verdicts: Verdicts) -> None:
        """Of large numbers softmax takes the largest, and in bf16 that may be another one."""
        verdict = verdicts["layer in bf16"]
        took_another = verdict.precision == "worse"
        assert failed(verdict) == (["large", PRECISION] if took_another else [PRECISION])
        assert took_another or verdict.precision == "bf16"


class TestWrong:
    @pytest.mark.parametrize(
        ("trial", "said"),
        [
            ("given inputs", "wrong: error"),  # by its second call
            ("given inputs, once more", "the inputs were changed"),
            ("zeros and ones", ""),  # whatever was in the memory: NaN, or something else that is not exact
            ("large", "shape (768,) instead of (32, 24)"),
            ("few terms", "torch.float64 instead of torch.float32"),
            ("stored by columns", "the result was not ready when the call returned"),
            ("starts that are not aligned", "gave another result: shape (24,) instead of (32, 24)"),
            ("other sizes", "returned candidate.Lazy instead of torch.Tensor"),
        ],
    )
    def test_what_is_wrong_is_said(self, verdicts: Verdicts, trial: str, said: str) -> None:
        assert said in detail(verdicts["wrong in many ways"], trial)
        assert verdicts["wrong in many ways"].finding("normal").passed  # the rest is right

    def test_results_kept_for_the_same_tensor(self, verdicts: Verdicts) -> None:
        verdict = verdicts["kept by address"]
        assert verdict.finding("given inputs").passed
        assert detail(verdict, "given inputs, once more").startswith("wrong: error")

    def test_products_of_a_library_results_kept_for_the_same_values_and_replaced_functions(
        self, verdicts: Verdicts
    ) -> None:
        verdict = verdicts["torch's product, kept by content, and replaces functions"]
        assert failed(verdict) == [OWN_KERNELS, NOTHING_KEPT, UNTOUCHED]
        assert detail(verdict, OWN_KERNELS) == "a call runs mm"
        assert "when the same come again" in detail(verdict, NOTHING_KEPT)
        assert detail(verdict, UNTOUCHED) == "replaced: Tensor.__matmul__, time.perf_counter, torch.matmul"

    def test_what_is_right_for_the_given_inputs_is_told_apart(self, verdicts: Verdicts) -> None:
        verdict = verdicts["has its strides and sizes built in"]
        assert failed(verdict) == ["stored by columns", "rows with gaps", "other sizes", PRECISION]
        first = verdict.describe().splitlines()[0]
        assert first.startswith(
            "WRONG: right for the given sizes and strides, not for: stored by columns, rows with gaps, other sizes"
        )
        assert "RuntimeError: shape '[1, 96, 24]' is invalid" in detail(verdict, "other sizes")
        assert [note.partition(":")[0] for note in verdict.notes] == [
            "infinities and NaNs among the inputs come out otherwise than torch's"
        ]


class TestBroken:
    def test_build(self, verdicts: Verdicts) -> None:
        verdict = verdicts["leaves while it is loaded"]
        assert [each.name for each in verdict.findings] == ["builds"]
        assert "SystemExit: 0" in detail(verdict, "builds")
        assert "Traceback" not in verdict.describe()
        assert not verdict.right

    def test_what_does_not_build_says_why(self, verdicts: Verdicts, tmp_path: Path) -> None:
        init = tmp_path / "init.pt"
        torch.save([], init)
        with Sandbox("tilesmith.kernelbench.check.worker", tmp_path, Limits()) as worker:
            for name, said in zip(
                OF_A_LOADER,
                ("no model.py has no ModelNew", "SyntaxError: invalid syntax", "ValueError: no such kernel"),
                strict=True,
            ):
                candidate = str(verdicts.folder / f"{name}.py")
                answer = worker.ask("load", candidate=candidate, device="cpu", seed=0, init=str(init))
                assert said in answer["raised"]
                assert "Traceback" not in answer["raised"]

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("exits", "exited with status 3\nout of luck"),
            ("segfaults", "killed by SIGSEGV"),
            ("hangs", "no answer within 8 s"),
            ("takes all memory", "GiB of the host's memory, over 1.5"),
        ],
    )
    def test_a_process_that_dies(self, verdicts: Verdicts, name: str, said: str) -> None:
        verdict = verdicts[name]
        assert failed(verdict)[0] == "given inputs"
        assert said in detail(verdict, "given inputs")
        assert verdict.finding("large").passed is None
        assert verdict.finding("large").detail == "the candidate's process has ended"
        assert not verdict.right

    def test_a_forged_answer(self, verdicts: Verdicts) -> None:
        verdict = verdicts["speaks for the worker"]
        assert not verdict.right
        assert detail(verdict, "given inputs") == "it wrote into the channel that is the judge's own"

    def test_an_answer_of_other_types(self, verdicts: Verdicts) -> None:
        verdict = verdicts["answers in other types"]
        assert detail(verdict, "given inputs") == "its process gave an answer that is not the worker's"

    def test_a_reference_that_was_ended_fails_the_candidate(self, verdicts: Verdicts) -> None:
        verdict = verdicts["ends the reference"]
        assert failed(verdict)[0] == "normal"
        assert "the reference's process ended: killed by SIGKILL" in detail(verdict, "normal")
        assert not verdict.right


class TestOfficial:
    def test_sees_values_alone(self, verdicts: Verdicts) -> None:
        verdict = verdicts["official"]
        assert verdict.right
        assert [each.name for each in verdict.findings] == ["builds", *(f"trial {i}" for i in range(1, 6))]
        assert all("this mode cannot see" in note for note in verdict.notes)

    def test_wrong_values(self, verdicts: Verdicts) -> None:
        assert "not close within 0.0001" in detail(verdicts["official, wrong"], "trial 2")


OTHER_PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, a):
        return 2 * a
def get_inputs():
    return [torch.rand(50, 60)]
def get_init_inputs():
    return []
"""
OTHER_CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, a):
        return a + a
"""


def test_what_the_sanitizer_says_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all else is right, though elements of the inputs share memory."""
    said = "Invalid __global__ write of size 4 bytes"
    tool = tmp_path / "tool.py"
    tool.write_text(f"import os, sys; print('========= {said}', flush=True); os.execv(sys.argv[1], sys.argv[1:])")
    (tmp_path / "problem.py").write_text(OTHER_PROBLEM.replace("torch.rand(50, 60)", "torch.rand(60).expand(50, 60)"))
    (tmp_path / "candidate.py").write_text(OTHER_CANDIDATE)
    monkeypatch.setattr(sanitizer, "find", lambda: str(tool))
    monkeypatch.setattr(sanitizer, "command", lambda found: [sys.executable, found])
    steps: list[str] = []
    with Judge(tmp_path / "problem.py", device="cpu", say=steps.append) as judge:
        verdict = judge(tmp_path / "candidate.py", sanitize=True)
    assert steps[:2] == ["building candidate.py", "comparing: given inputs"]
    assert steps[-1] == "running it under compute-sanitizer"
    assert [each.name for each in verdict.findings if each.passed is not True] == [sanitizer.NAME]
    assert verdict.finding(sanitizer.NAME).passed is False
    assert verdict.finding(sanitizer.NAME).detail == said


def test_a_problem_that_cannot_be_used(tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text("import torch\n")
    says_why = pytest.raises(ProblemError, match=r"problem\.py has no Model and no get_inputs")
    with Judge(problem, device="cpu") as judge, says_why:
        judge(problem)
    assert not judge._folder.exists()


ENDING = """
import sys
from tilesmith.cli.check_run import ended_by_signals
from tilesmith.kernelbench.check.judge import Judge
with ended_by_signals(), Judge(sys.argv[1], device="cpu") as judge:
    print(judge._folder, judge._reference._process.pid, flush=True)
    judge(sys.argv[2])
"""
HANGING = """
import os, time, torch
open("MARK", "w").write(str(os.getpid()))
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_judge_that_is_told_to_end_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "problem.py").write_text(OTHER_PROBLEM)
    (tmp_path / "candidate.py").write_text(HANGING.replace("MARK", str(mark)))
    command = [sys.executable, "-c", ENDING, str(tmp_path / "problem.py"), str(tmp_path / "candidate.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as judging:
        assert judging.stdout is not None
        folder, reference = judging.stdout.readline().split()
        assert soon(lambda: mark.exists() and mark.read_text() != "")
        processes = int(reference), int(mark.read_text())
        judging.send_signal(number)
        status = judging.wait(30)
    if number == signal.SIGKILL:  # the processes see to themselves
        assert soon(lambda: not any(map(is_running, processes)))
    else:
        assert status == 128 + number
        assert not Path(folder).exists()
    assert not any(map(is_running, processes))
