"""Whole models: what their forward runs is written down, products are ours, and all else is as it was."""

import re
from typing import Any

import pytest
import torch
from written_modules import H200, on_the_cpu, problem_model

from tilesmith.kernelbench.loading import UnsupportedError
from tilesmith.kernelbench.problem_file import ProblemFile
from tilesmith.kernelbench.recognize import recognize_here
from tilesmith.kernelbench.whole_model import WholeModel
from tilesmith.kernelbench.write import written

HEADER = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
"""

PERCEPTRON = """
class Model(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width), nn.BatchNorm1d(width))
        self.drop = nn.Dropout(0.25)
        self.scale = scale
        self.last = nn.Linear(width, 3, bias=False)

    def forward(self, x):
        x = F.relu(self.last(self.drop(self.layers(x)))) * self.scale
        return x + x.clone().detach()

def get_inputs():
    return [torch.randn(5, 6)]

def get_init_inputs():
    return [8, 0.5]
"""

ATTENTION = """
class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.heads = heads
        self.out = nn.Linear(width, width)
        self.mixed = nn.Parameter(torch.randn(heads, heads))
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)))

    def forward(self, x):
        B, T, C = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2) for y in parts)
        scores = q @ k.mT / math.sqrt(C // self.heads)
        scores = torch.einsum("bhij,hg->bgij", scores, self.mixed)
        scores = scores.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        y = torch.softmax(scores, -1) @ v
        return x + self.out(y.transpose(1, 2).reshape(B, T, C))

def get_inputs():
    return [torch.randn(2, 10, 8)]

def get_init_inputs():
    return [8, 2]
"""

ENCODER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 20)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))

def get_inputs():
    return [torch.randint(0, 20, (3, 7))]

def get_init_inputs():
    return []
"""

CONVOLUTION = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)), inplace=True) + x

class Model(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, classes)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        return torch.addmm(self.bias, x, self.head.weight.t(), beta=2), torch.min(self.head(x), torch.tensor(0.5))

def get_inputs():
    return [torch.randn(2, 4, 9, 9)]

def get_init_inputs():
    return [4, 3]
"""

RECURRENT = """
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(6, width, 2, dropout=0.25, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(2 * width, width, bias=False)
        self.rnn = nn.RNN(width, width, nonlinearity="relu")
        self.head = nn.Linear(width, 3)

    def forward(self, x, hidden):
        x, (_, cell) = self.lstm(x)
        x, _ = self.gru(x)
        return self.head(self.rnn(x, hidden)[0]), cell

def get_inputs():
    return [torch.randn(2, 7, 6), torch.randn(1, 7, 4)]

def get_init_inputs():
    return [4]
"""

MODELS = {
    "perceptron": PERCEPTRON,
    "attention": ATTENTION,
    "encoder": ENCODER,
    "convolution": CONVOLUTION,
    "recurrent": RECURRENT,
}
OTHER_INPUTS: dict[str, list[tuple[torch.Tensor, ...]]] = {
    "perceptron": [(torch.randn(3, 6),), (torch.randn(17, 6),)],
    "attention": [(torch.randn(1, 10, 8),), (torch.randn(3, 33, 8),)],
    "encoder": [(torch.randint(0, 20, (1, 5)),)],
    "convolution": [(torch.randn(7, 4, 12, 5),)],
    "recurrent": [(torch.randn(5, 3, 6), torch.randn(1, 3, 4))],
}


def file_of(text: str) -> ProblemFile:
    return ProblemFile("model.py", HEADER + text)


def model_of(text: str) -> WholeModel:
    found = recognize_here(file_of(text))
    assert isinstance(found, WholeModel)
    return found


def both(text: str, *arguments: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model as it is written and as it was, with the same parameters."""
    file, model = file_of(text), model_of(text)
    names, _ = on_the_cpu(written(file, model, H200, "fp32"), chains=model.chains)
    models = []
    for create in (lambda: names["ModelNew"](*arguments), lambda: problem_model(file, *arguments)):
        torch.manual_seed(1)
        models.append(create())
    return models[0], models[1]


def init_inputs(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(HEADER + text, names)
    return names["get_init_inputs"](), names["get_inputs"]()


@pytest.mark.parametrize("name", MODELS)
def test_results_gradients_and_state_are_those_of_the_model(name: str) -> None:
    """In training and in evaluation, for the sizes that were traced and for others."""
    arguments, inputs = init_inputs(MODELS[name])
    models = both(MODELS[name], *arguments)
    assert list(models[0].state_dict()) == list(models[1].state_dict())
    for mode in (True, False):
        for given in ([*inputs], *OTHER_INPUTS[name]):
            outcomes = []
            for model in models:
                model.train(mode)
                model.zero_grad()
                torch.manual_seed(2)
                result = model(*given)
                results = result if isinstance(result, tuple) else (result,)
                torch.stack([x.square().sum() for x in results]).sum().backward()
                gradients = {path: x.grad for path, x in model.named_parameters()}
                outcomes.append((results, gradients, {k: v.clone() for k, v in model.state_dict().items()}))
            torch.testing.assert_close(*outcomes, rtol=1e-3, atol=1e-4)
            if not mode:
                with torch.no_grad():  # products with epilogues
                    torch.testing.assert_close(models[0](*given), models[1](*given), rtol=1e-4, atol=1e-5)


def test_products_have_plans_with_what_follows_them() -> None:
    perceptron, attention = model_of(PERCEPTRON), model_of(ATTENTION)
    assert [(x.a_shape, x.b_shape, x.has_bias, x.activation) for x in perceptron.products] == [
        ((5, 6), (6, 8), True, "gelu"),
        ((5, 8), (8, 8), True, None),
        ((5, 8), (8, 3), False, None),
    ]
    assert [chain.does for chain in perceptron.chains] == [("relu", "mul", "add")]
    assert {"batch_norm", "dropout"} == set(perceptron.left)
    assert "linear" not in perceptron.left
    assert (2, 2, 10, 4) in [x.a_shape for x in attention.products]
    assert perceptron.settings == ("scale",)


def test_a_forward_reads_like_one() -> None:
    text = written(file_of(PERCEPTRON), model_of(PERCEPTRON), H200, "fp32")
    forward = text[text.index("    def forward(self, x):") :]
    assert 'x = _linear(x, self.layers[0].weight, self.layers[0].bias, activation="gelu")' in forward
    assert "x = _chain_0(x, self.scale)" in forward
    assert "self.training" in forward
    assert max(map(len, forward.splitlines())) <= 118
    assert "Left to torch: " in text.partition("\n\n")[0].replace("\n# ", " ")


def test_constructors_with_other_arguments_are_taken_or_refused() -> None:
    """Sizes of layers and what forward reads may be others; what is written down may not."""
    ours, theirs = both(PERCEPTRON, 4, -3.0)
    x = torch.randn(5, 6)
    for model in (ours, theirs):
        model.eval()
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ValueError, match="get_init_inputs"):
        both(ATTENTION, 8, 4)


def test_parts_in_another_mode_are_refused() -> None:
    model, _ = both(PERCEPTRON, 8, 0.5)
    model.get_submodule("layers.3").eval()
    with pytest.raises(RuntimeError, match=re.escape("layers.3 must be in the mode of the whole model")):
        model(torch.randn(5, 6))


def forward(body: str, *, before: str = "", inputs: str = "torch.randn(4, 6)") -> str:
    lines = "\n        ".join(body.split("\n"))
    return f"""
{before}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.count = 0

    def forward(self, x):
        {lines}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return self.linear(x).sigmoid() if x.sum() > 0 else x", "needs the elements of a tensor"),
        ("self.count += 1\nreturn self.linear(x).sigmoid()", "forward changes self.count"),
        ("x = self.linear(x).sigmoid()\nif torch.is_grad_enabled():\n    x = x + 1\nreturn x", "without gradients"),
        ("with torch.no_grad():\n    y = self.linear(x).tanh()\nreturn y + x", "torch.no_grad"),
        ("return torch.sigmoid(self.linear(x)) * len(calls.append(1) or calls)", "variable calls"),
        ("x = self.linear(x).sigmoid()\nreturn x if x.shape[0] % 3 else -x.relu()", "x.size(0) % 3"),
    ],
)
def test_what_cannot_be_written_down_is_refused_by_name(body: str, message: str) -> None:
    text = forward(body, before="calls = []")
    if message == "x.size(0) % 3":  # the module itself says so
        model, _ = both(text)
        model(torch.randn(4, 6))
        with pytest.raises(ValueError, match=re.escape(message)):
            model(torch.randn(6, 6))
        return
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        recognize_here(file_of(text))


def test_a_constructor_that_draws_numbers_is_refused() -> None:
    text = forward("return self.linear(x).sigmoid() * self.count").replace("self.count = 0", "self.count = id(self)")
    with pytest.raises(UnsupportedError, match="the same numbers in every model"):
        recognize_here(file_of(text))


def test_recurrent_layers_are_one_operation_of_torchs() -> None:
    found = model_of(RECURRENT)
    assert {"lstm", "gru", "rnn_relu"} <= set(found.left)
    assert sum("_aten.lstm.input" in line for line in found.forward) == 1


def test_without_products_there_are_no_kernels() -> None:
    text = forward("return torch.tanh(x)")
    assert not model_of(text).multiplies
    module = written(file_of(text), model_of(text), H200, "fp32")
    assert "cpp_extension" not in module
    assert len(module.splitlines()) < 100
    names: dict[str, Any] = {"__name__": "new"}
    exec(module, names)
    torch.testing.assert_close(names["ModelNew"]()(torch.ones(4, 6)), torch.ones(4, 6).tanh())


def test_a_model_crosses_processes() -> None:
    found = model_of(CONVOLUTION)
    assert WholeModel.from_dict(found.to_dict()) == found
