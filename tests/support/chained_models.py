"""Models of chains: what stands between products, one kernel each."""

from typing import Final

from tilesmith.kernelbench.problem_file import ProblemFile

# Of a matrix x, a second one y, a vector over the columns v, one over the rows c, and a number of the model.
OF_ROWS: Final = [
    "F.relu(x * 2) / 3 - 1",
    "F.gelu(x + v).clamp(-0.5, 0.7)",
    "F.gelu(x, approximate='tanh') * y + self.number",
    "F.hardswish(F.silu(x)) - y",
    "F.leaky_relu(x, 0.2) + F.elu(x)",
    "F.softplus(F.mish(x), 2.0)",
    "torch.sigmoid(x).log().neg().exp().sqrt()",
    "x.square().add(1).rsqrt() * c",
    "torch.add(x, y, alpha=-0.5).abs().pow(3)",
    "torch.sub(2 - x, y, alpha=3).reciprocal().tanh()",
    "F.hardtanh(torch.min(x, y)) + torch.maximum(x, v)",
    "(x.sin() + x.cos()).abs().pow(0.5)",
    "torch.softmax(F.gelu(x), 1)",
    "torch.log_softmax(x * self.number, -1) + v",
    "torch.logsumexp(x.clamp(min=-1), 1, keepdim=True) * 2 + c",
    "F.mish(torch.logsumexp(x, dim=1))",
    "x.sum(1, keepdim=True) / 2",
    "(x * y).mean(dim=1) + 1",
    "torch.max(x + v, dim=1)[0].abs()",
    "(x - x.amax(1, keepdim=True)).exp() + x.amin(1, keepdim=True)",
    "F.layer_norm(x + y, (x.shape[1],), v, v * 2, 1e-3)",
    "F.group_norm(x + 1, 4, v, v, 1e-5).relu()",
    "F.dropout(x, 0.5, False).sigmoid() * x.detach()",
    "(x + self.scalar) * torch.rand_like(x).sign().square()",
    "torch.min(x, self.single) - self.single",
]
# Of a batch of images x, another y, and a vector over the channels v.
OF_IMAGES: Final = [
    "F.relu(x) + v.view(-1, 1, 1)",
    "F.hardtanh(x).mean((2, 3), keepdim=True).tanh()",
    "F.instance_norm(x * 2, weight=v, bias=v) + y",
    "F.group_norm(x.mul(3), 2) * v.view(1, -1, 1, 1)",
    "F.batch_norm(x, self.mean, self.variance, v, v, False) + y",
    "F.relu_(x - y)",
    "F.layer_norm(x * y, (6,)) + 1",
    "(x + y).amax((1, 2, 3)).abs()",
]


def file_of(bodies: list[str], inputs: str, extra: str = "") -> ProblemFile:
    values = ",\n            ".join(bodies)
    return ProblemFile(
        "model.py",
        f"""
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = 1.5
        self.v = nn.Parameter(torch.randn(8))
        self.scalar, self.single = nn.Parameter(torch.randn(1)), nn.Parameter(torch.tensor(0.9))
        self.register_buffer("mean", torch.randn(8))
        self.register_buffer("variance", torch.rand(8) + 1)

    def forward(self, x, y{extra}):
        v = self.v
        return (
            {values},
        )

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
""",
    )


FILES: Final = {
    "rows": file_of(OF_ROWS, "torch.randn(12, 8), torch.randn(12, 8), torch.randn(12, 1)", ", c"),
    "images": file_of(OF_IMAGES, "torch.randn(3, 8, 4, 6), torch.randn(3, 8, 4, 6)"),
}
