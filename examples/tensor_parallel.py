"""A two-layer MLP, tensor parallel, with products by Tilesmith.

    torchrun --nproc-per-node=2 examples/tensor_parallel.py

On GPUs there must be one for each process, and NCCL sums; without any the processes run on the CPU with gloo. The first
layer's weight is split by its columns and the second's by its rows, so one sum over the processes is all that the
forward pass needs, and one the backward pass. The first process also does it all alone, and compares.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilesmith


class Linear(nn.Linear):
    """torch's layer with our product. As an nn.Linear, ColwiseParallel and RowwiseParallel know how to split it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tilesmith.matmul(x, self.weight.T)


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = Linear(width, 4 * width, bias=False)
        self.down = Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]


def step(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Forward and backward: copies of the output and of all gradients, whole in each process."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().mean().backward()
    found = {"output": y.detach(), "gradient of x": x.grad}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in found.items() if t is not None}
    # The sum waits for what other processes still send, and is a copy: in one process, full_tensor is the gradient
    # itself, which the next backward pass adds to.
    return {name: t + 0 for name, t in whole.items()}


def milliseconds(model: nn.Module, x: torch.Tensor, times: int = 10) -> float:
    """The time of a forward and a backward pass. The first one compiles kernels."""
    for again in range(times + 1):
        if again == 1:
            wait(x.device)
            start = time.perf_counter()
        model.zero_grad()
        model(x).square().mean().backward()
    wait(x.device)
    return (time.perf_counter() - start) / times * 1e3


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description="A tensor-parallel MLP, checked against one process.")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=2048, help="tokens of a step")
    found_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=found_device)
    arguments = parser.parse_args()

    kind = arguments.device
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else "cpu")
    if kind == "cuda":
        if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
            raise SystemExit(
                f"there are {torch.cuda.device_count()} GPUs: start no more processes, or use --device=cpu"
            )
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),))

    torch.manual_seed(0)  # the same model and input in each process
    alone = MLP(arguments.width).to(device)
    x = torch.randn(arguments.rows, arguments.width, device=device)
    torch.manual_seed(0)
    parallel = MLP(arguments.width).to(device)
    parallelize_module(parallel, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    wanted, found = step(alone, x), step(parallel, x)
    together = milliseconds(parallel, x)
    dist.barrier()
    if dist.get_rank() == 0:
        by_one = milliseconds(alone, x)
        print(f"{mesh.size()} processes on {kind}, {arguments.rows} rows of {arguments.width}")
        print(f"a step takes {together:.2f} ms, in one process {by_one:.2f} ms")
        print(f"{'':24} {'shape':14} difference")
        for name, tensor in wanted.items():
            error = (found[name] - tensor).abs().max() / tensor.abs().max()
            print(f"{name:24} {'x'.join(map(str, tensor.shape)):14} {error:.1e}")
            if not error < 1e-5:
                raise SystemExit(f"{name} is not that of one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
