"""What four processes on gloo do with `tilesmith.matmul`, and how they are started.

To import torch takes seconds, so `python distributed_cases.py` does it once, its processes are forks, and each runs all
the cases. It prints as JSON what went wrong in them. Values are small integers, so that every order of summation gives
the same bits, and every process knows the whole operands: it compares with one process's product.
"""

import itertools
import json
import multiprocessing
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilesmith

PROCESSES = 4
SECONDS = 120

Shape = tuple[int, ...]

# Shapes of operands. Some sizes are no multiple of the number of processes, and some are smaller.
SHAPES: dict[str, tuple[Shape, Shape]] = {
    "matrices": ((8, 12), (12, 16)),
    "uneven": ((7, 13), (13, 5)),
    "small": ((2, 3), (3, 1)),
    "batch of a": ((4, 6, 8), (8, 5)),
    "uneven batch": ((6, 3, 8), (8, 5)),
    "batch of b": ((6, 8), (4, 8, 5)),
    "one batch": ((4, 6, 8), (4, 8, 5)),
    "broadcast": ((4, 1, 6, 8), (5, 8, 4)),
    "row": ((12,), (12, 8)),
    "column": ((8, 12), (12,)),
    "vectors": ((12,), (12,)),
    "vector by batch": ((8,), (4, 8, 5)),
    "batch by vector": ((4, 6, 8), (8,)),
}

# What needs no communication: the placements of a, of b, and of the product.
LOCAL: list[tuple[str, Placement, Placement, Placement]] = [
    ("matrices", Replicate(), Replicate(), Replicate()),
    ("matrices", Shard(0), Replicate(), Shard(0)),
    ("matrices", Replicate(), Shard(1), Shard(1)),
    ("matrices", Shard(1), Shard(0), Partial()),
    ("uneven", Shard(1), Shard(0), Partial()),
    ("batch of a", Shard(0), Replicate(), Shard(0)),
    ("batch of a", Shard(1), Replicate(), Shard(1)),
    ("batch of a", Replicate(), Shard(1), Shard(2)),
    ("batch of a", Shard(2), Shard(0), Partial()),
    ("batch of b", Replicate(), Shard(0), Shard(0)),
    ("batch of b", Shard(0), Replicate(), Shard(1)),
    ("one batch", Shard(0), Shard(0), Shard(0)),
    ("one batch", Replicate(), Shard(2), Shard(2)),
    ("broadcast", Shard(0), Replicate(), Shard(0)),
    ("broadcast", Replicate(), Shard(0), Shard(1)),
    ("row", Shard(0), Shard(0), Partial()),
    ("row", Replicate(), Shard(1), Shard(0)),
    ("column", Shard(0), Replicate(), Shard(0)),
    ("column", Shard(1), Shard(0), Partial()),
    ("vectors", Shard(0), Shard(0), Partial()),
    ("vector by batch", Replicate(), Shard(0), Shard(0)),
    ("vector by batch", Replicate(), Shard(2), Shard(1)),
    ("batch by vector", Shard(1), Replicate(), Shard(1)),
]


def integers(*shape: int) -> torch.Tensor:
    """The same small whole numbers in each process."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-4, 5, shape, generator=generator).float()


def placed(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """A distributed tensor that is `whole`; partial sums have a part of it in each process."""
    of_parts = [Replicate() if isinstance(p, Partial) else p for p in placements]
    tensor = distribute_tensor(whole, mesh, of_parts, src_data_rank=None)
    local = tensor.to_local()
    for dim, placement in enumerate(placements):
        if isinstance(placement, Partial):
            first = mesh.get_local_rank(dim) == 0
            local = local - 3 * (mesh.size(dim) - 1) if first else torch.full_like(local, 3)
    stride = whole.contiguous().stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=stride)


def product_of(a: DTensor, b: DTensor, out_dtype: torch.dtype | None = None) -> DTensor:
    product = tilesmith.matmul(a, b, out_dtype=out_dtype)
    assert isinstance(product, DTensor)
    return product


def check_equal(name: str, found: torch.Tensor | None, wanted: torch.Tensor | None) -> None:
    assert found is not None and wanted is not None, name
    whole = found.full_tensor() if isinstance(found, DTensor) else found
    assert whole.shape == wanted.shape, f"{name} has shape {whole.shape}, not {wanted.shape}"
    assert torch.equal(whole, wanted), f"{name} differs by up to {(whole - wanted).abs().max()}"


def check_product(shapes: tuple[Shape, Shape], mesh: DeviceMesh, placements: Sequence[Sequence[Placement]]) -> None:
    """Value and gradients of one product."""
    a, b = (integers(*shape).requires_grad_() for shape in shapes)
    product = torch.matmul(a, b)
    grad = integers(*product.shape)
    wanted = torch.autograd.grad(product, (a, b), grad)

    a_placed, b_placed = (placed(x.detach(), mesh, p).requires_grad_() for x, p in zip((a, b), placements, strict=True))
    found = tilesmith.matmul(a_placed, b_placed)
    check_equal("the product", found, product)
    found.backward(distribute_tensor(grad, mesh, [Replicate()] * mesh.ndim, src_data_rank=None))
    check_equal("the gradient of a", a_placed.grad, wanted[0])
    check_equal("the gradient of b", b_placed.grad, wanted[1])


def every_placement(name: str) -> Callable[[], None]:
    shapes = SHAPES[name]
    partial = [Partial()] if name == "matrices" else []  # they are summed first, whatever the shapes

    def run() -> None:
        mesh = init_device_mesh("cpu", (PROCESSES,))
        placements = [[Replicate(), *partial, *map(Shard, range(len(shape)))] for shape in shapes]
        for pair in itertools.product(*placements):
            try:
                check_product(shapes, mesh, [[placement] for placement in pair])
            except Exception as error:
                raise AssertionError(f"{name} placed as {pair}") from error

    return run


def no_communication() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for name, of_a, of_b, of_product in LOCAL:
        a, b = (placed(integers(*shape), mesh, [p]) for shape, p in zip(SHAPES[name], (of_a, of_b), strict=True))
        with CommDebugMode() as communication:
            product = product_of(a, b)
        assert product.placements == (of_product,), f"{name} {of_a} {of_b}: {product.placements}"
        assert communication.get_total_counts() == 0, f"{name} {of_a} {of_b}: {communication.get_comm_counts()}"


def no_communication_for_gradients() -> None:
    """Of a weight that met a batch, however the batch is split: each process sums over what it has."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for name, split in [("batch of a", Shard(0)), ("batch of a", Shard(1)), ("uneven batch", Shard(0))]:
        a, b = (placed(integers(*s), mesh, [p]) for s, p in zip(SHAPES[name], (split, Replicate()), strict=True))
        b.requires_grad_()
        product = product_of(a, b)
        grad = placed(integers(*product.shape), mesh, [split])
        with CommDebugMode() as communication:
            (of_b,) = torch.autograd.grad(product, b, grad)
        assert isinstance(of_b, DTensor) and of_b.placements == (Partial(),), f"{name} {split}: {of_b}"
        assert communication.get_total_counts() == 0, f"{name} {split}: {communication.get_comm_counts()}"


def two_dimensions() -> None:
    """A mesh of 2 x 2: rows by columns of processes, and what else two dimensions can be used for."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    whole = Replicate()
    for name, of_a, of_b, of_product in [
        ("matrices", (Shard(0), whole), (whole, Shard(1)), (Shard(0), Shard(1))),
        ("matrices", (Shard(0), Shard(1)), (whole, Shard(0)), (Shard(0), Partial())),
        ("matrices", (Shard(1), Shard(1)), (Shard(0), Shard(0)), (Partial(), Partial())),
        ("uneven", (Shard(0), Shard(0)), (whole, whole), (Shard(0), Shard(0))),
        ("one batch", (Shard(0), Shard(2)), (Shard(0), Shard(1)), (Shard(0), Partial())),
        ("batch of a", (Shard(0), Shard(1)), (whole, whole), (Shard(0), Shard(1))),
        ("uneven batch", (Shard(0), Shard(0)), (whole, whole), (Shard(0), Shard(0))),
        ("matrices", (Shard(1), Shard(0)), (Shard(1), Shard(0)), None),
        ("matrices", (Partial(), Shard(1)), (Shard(1), Partial()), None),
        ("batch of a", (Shard(1), Partial()), (Shard(0), Shard(0)), None),
    ]:
        check_product(SHAPES[name], mesh, (of_a, of_b))
        if of_product is not None:
            a, b = (placed(integers(*s), mesh, p) for s, p in zip(SHAPES[name], (of_a, of_b), strict=True))
            assert product_of(a, b).placements == of_product


def second_derivative() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))

    def curvature(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.requires_grad_()
        (gradient,) = torch.autograd.grad((tilesmith.matmul(a, b) ** 2).sum(), a, create_graph=True)
        (again,) = torch.autograd.grad((gradient**2).sum(), a)
        return again

    a, b = integers(8, 4), integers(4, 8)
    wanted = curvature(a.clone(), b)
    for of_a, of_b in [(Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))]:
        check_equal(f"{of_a} {of_b}", curvature(placed(a, mesh, [of_a]), placed(b, mesh, [of_b])), wanted)


def types() -> None:
    """Products of the same operands with other types of result are not taken for each other."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    whole_a, whole_b = integers(8, 12), integers(12, 16)
    a, b = placed(whole_a.bfloat16(), mesh, [Shard(1)]), placed(whole_b.bfloat16(), mesh, [Shard(0)])
    for _ in range(2):
        for dtype in (None, torch.float32, torch.bfloat16):
            product = product_of(a, b, dtype)
            assert product.dtype == product.to_local().dtype == (dtype or torch.bfloat16)
            check_equal(str(dtype), product.float(), whole_a @ whole_b)
    check_equal("mixed", tilesmith.matmul(placed(whole_a, mesh, [Shard(1)]), b, accuracy="fp32"), whole_a @ whole_b)
    packed = tilesmith.pack(placed(whole_b, mesh, [Shard(1)]))
    check_equal("packed", tilesmith.matmul(placed(whole_a, mesh, [Shard(0)]), packed), whole_a @ whole_b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tilesmith.matmul(a.float(), b.float()).dtype == torch.bfloat16


def out() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    whole_a, whole_b = integers(8, 12), integers(12, 16)
    a, b = placed(whole_a, mesh, [Shard(1)]), placed(whole_b, mesh, [Shard(0)])
    for placement in (Replicate(), Shard(0), Shard(1), Partial()):
        into = placed(torch.zeros(8, 16), mesh, [placement])
        assert tilesmith.matmul(a, b, out=into) is into
        assert into.placements == (placement,)
        check_equal(f"out as {placement}", into, whole_a @ whole_b)

    def write(into: torch.Tensor) -> Callable[[], object]:
        return lambda: tilesmith.matmul(a, b, out=into)

    wrong_size = placed(torch.zeros(8, 8), mesh, [Replicate()])
    check_raises(RuntimeError, "a distributed out cannot be resized", write(wrong_size))
    check_raises(RuntimeError, "mixed torch.Tensor and DTensor", write(torch.zeros(8, 16)))
    right = placed(torch.zeros(8, 16), mesh, [Replicate()])
    check_raises(NotImplementedError, "tilesmith.matmul_out", lambda: torch.ops.tilesmith.matmul_out(a, b, out=right))


def errors() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    a, b = placed(integers(8, 12), mesh, [Shard(1)]), placed(integers(12, 16), mesh, [Shard(0)])
    check_raises(RuntimeError, "shapes cannot be multiplied", lambda: tilesmith.matmul(a, a))
    check_raises(RuntimeError, "to have the same dtype", lambda: tilesmith.matmul(a, b.double()))
    check_raises(RuntimeError, "mixed torch.Tensor and DTensor", lambda: tilesmith.matmul(a, b.full_tensor()))
    check_raises(NotImplementedError, "to_local", lambda: tilesmith.explain(a, b))


def check_raises(kind: type[Exception], part: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert part in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")


class Linear(nn.Linear):
    """A layer with our product. ColwiseParallel and RowwiseParallel know what nn.Linear's parameters are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tilesmith.matmul(x, self.weight.T)


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = Linear(width, hidden, bias=False)
        self.down = Linear(hidden, width, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(integers(*parameter.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class FusedMLP(nn.Module):
    """Of our layers: biases, an activation and a residual."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = tilesmith.nn.Linear(width, hidden, activation="relu")
        self.down = tilesmith.nn.Linear(hidden, width)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(integers(*parameter.shape))

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return self.down(self.up(x), residual)  # type: ignore[no-any-return]


def one_process(
    kind: type[MLP | FusedMLP], x: torch.Tensor, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What torch's own functions give in one process, and the gradients, that of x among them."""
    model, x = kind(8, 16), x.clone().requires_grad_()
    hidden = nn.functional.linear(x, model.up.weight, model.up.bias).relu()
    y = nn.functional.linear(hidden, model.down.weight, model.down.bias)
    y = y if residual is None else y + residual
    y.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()} | {"x": x.grad}
    return y, {name: grad for name, grad in gradients.items() if grad is not None}


def tensor_parallel(kind: type[MLP | FusedMLP]) -> Callable[[], None]:
    """Column, then row parallel: one all-reduce forward, and one backward. The bias of the row-parallel layer is added
    once, not by each process."""

    def run() -> None:
        mesh = init_device_mesh("cpu", (PROCESSES,))
        for shape in ((6, 8), (2, 6, 8)):
            whole = integers(*shape)
            wanted, gradients = one_process(kind, whole)
            model: Any = parallelize_module(kind(8, 16), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
            x = whole.clone().requires_grad_()
            with CommDebugMode() as forward:
                y = model(x)
            assert isinstance(model.up.weight, DTensor) and model.up.weight.to_local().shape == (4, 8)
            assert isinstance(model.down.weight, DTensor) and model.down.weight.to_local().shape == (8, 4)
            assert forward.get_total_counts() == 1, forward.get_comm_counts()
            check_equal("y", y + 0, wanted)
            with CommDebugMode() as backward:
                y.square().sum().backward()
            assert backward.get_total_counts() == 1, backward.get_comm_counts()
            check_gradients(model, gradients)
            check_equal("x", x.grad, gradients["x"])
            with torch.no_grad():
                check_equal("y in eval mode", model.eval()(x) + 0, wanted)

    return run


def check_gradients(model: nn.Module, wanted: dict[str, torch.Tensor], averaged_over: int = 1) -> None:
    for name, parameter in model.named_parameters():
        check_equal(name, parameter.grad, wanted[name] / averaged_over)


def sequence_parallel() -> None:
    """Activations between the blocks are sharded along the sequence."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    whole = integers(2, 8, 8)
    wanted, gradients = one_process(MLP, whole)
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    model = parallelize_module(MLP(8, 16), mesh, plan)
    x = placed(whole, mesh, [Shard(1)]).requires_grad_()
    y = model(x)
    assert y.placements == (Shard(1),)
    check_equal("y", y, wanted)
    y.square().sum().backward()
    check_gradients(model, gradients)
    check_equal("x", x.grad, gradients["x"])


def fully_sharded() -> None:
    """FSDP2 over two pairs of processes, tensor parallel in each pair."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    whole = integers(6, 8)
    wanted, gradients = one_process(MLP, whole)
    model: Any = parallelize_module(MLP(8, 16), mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    rank = mesh.get_local_rank("data")
    y = model(whole.chunk(2)[rank])
    check_equal("y", y + 0, wanted.chunk(2)[rank])
    y.square().sum().backward()
    assert all(each.to_local().numel() * PROCESSES == each.numel() for each in model.parameters())
    check_gradients(model, gradients, averaged_over=2)  # the pairs


def compiled() -> None:
    """Two processes, for it takes seconds. It comes first: torch.compile must register the placements by itself."""
    mesh = DeviceMesh("cpu", [0, 1])
    if mesh.get_coordinate() is None:
        return

    def activated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return tilesmith.matmul(x, y).relu()

    call = torch.compile(activated, backend="aot_eager", fullgraph=True, dynamic=False)
    for name, of_a, of_b in [("matrices", Shard(1), Shard(0)), ("batch of a", Shard(1), Replicate())]:
        whole_a, whole_b = (integers(*shape) for shape in SHAPES[name])
        a, b = placed(whole_a, mesh, [of_a]).requires_grad_(), placed(whole_b, mesh, [of_b]).requires_grad_()
        product = call(a, b)
        wanted_a, wanted_b = whole_a.requires_grad_(), whole_b.requires_grad_()
        wanted = torch.matmul(wanted_a, wanted_b).relu()
        check_equal(f"{name}: the product", product, wanted)
        product.sum().backward()
        wanted.sum().backward()
        check_equal(f"{name}: the gradient of a", a.grad, wanted_a.grad)
        check_equal(f"{name}: the gradient of b", b.grad, wanted_b.grad)


def distributed_linear() -> None:
    """Every placement of x and weight, with a replicated bias and residual."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    x, weight, bias, residual = (integers(*shape).requires_grad_() for shape in ((8, 12), (16, 12), (16,), (8, 16)))
    wanted = nn.functional.linear(x, weight, bias).relu() + residual
    gradients = torch.autograd.grad(wanted.sum(), (x, weight, bias, residual))
    for of_x, of_weight in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
        tensors = [
            placed(tensor.detach(), mesh, [placement]).requires_grad_()
            for tensor, placement in zip(
                (x, weight, bias, residual), (of_x, of_weight, Replicate(), Replicate()), strict=True
            )
        ]
        found = tilesmith.linear(*tensors[:3], activation="relu", residual=tensors[3])
        check_equal(f"{of_x} {of_weight}", found, wanted)
        found.sum().backward()
        for tensor, gradient in zip(tensors, gradients, strict=True):
            check_equal(f"a gradient of {of_x} {of_weight}", tensor.grad, gradient)


def fully_sharded_layers() -> None:
    """FSDP2 alone over four processes. It gathers weights into memory that it uses again: nothing may be kept of them,
    so the layer asks whether it is managed by FSDP."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    whole, residual = integers(8, 8), integers(8, 8)
    model: Any = FusedMLP(8, 16)
    fully_shard(model, mesh=mesh)
    rank = mesh.get_local_rank()
    assert model.up._is_fsdp_managed_module
    wanted, gradients = one_process(FusedMLP, whole, residual)
    y = model(whole.chunk(PROCESSES)[rank], residual.chunk(PROCESSES)[rank])
    check_equal("y", y, wanted.chunk(PROCESSES)[rank])
    y.square().sum().backward()
    check_gradients(model, gradients, averaged_over=PROCESSES)
    with torch.no_grad():
        y = model.eval()(whole.chunk(PROCESSES)[rank])
    check_equal("y in eval mode", y, one_process(FusedMLP, whole)[0].chunk(PROCESSES)[rank])


CASES: dict[str, Callable[[], None]] = {
    "compiled": compiled,
    **{f"every placement: {name}": every_placement(name) for name in SHAPES},
    "no communication": no_communication,
    "no communication for gradients": no_communication_for_gradients,
    "two dimensions": two_dimensions,
    "second derivative": second_derivative,
    "types": types,
    "out": out,
    "errors": errors,
    "tensor parallel": tensor_parallel(MLP),
    "sequence parallel": sequence_parallel,
    "fully sharded": fully_sharded,
    "tensor parallel layers": tensor_parallel(FusedMLP),
    "distributed linear": distributed_linear,
    "fully sharded layers": fully_sharded_layers,
}


def run_cases(rank: int, port: int, results: Connection) -> None:
    """One process. It sends what went wrong, "" for nothing, and ends with the first such case: others may wait."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES)
    found: dict[str, str] = {}
    for name, case in CASES.items():
        start = time.perf_counter()
        try:
            case()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
            break
        if rank == 0:
            print(f"{time.perf_counter() - start:.2f} s {name}", file=sys.stderr)
    results.send(found)
    if not any(found.values()):
        dist.destroy_process_group()


def outcomes() -> dict[str, str]:
    """What went wrong in each case, in any process."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes, pipes = [], []
    for rank in range(PROCESSES):
        receive, send = context.Pipe(duplex=False)
        processes.append(context.Process(target=run_cases, args=(rank, port, send), daemon=True))
        processes[-1].start()
        send.close()
        pipes.append(receive)
    wrong: dict[str, list[str]] = {name: [] for name in CASES}
    for rank, pipe in enumerate(pipes):
        try:
            found = pipe.recv() if pipe.poll(SECONDS) else {}
        except EOFError:
            found = {}
        for name in CASES:
            text = found.get(name, "it did not get here")
            wrong[name] += [f"process {rank}: {text}"] if text else []
    for process in processes:
        process.kill()
        process.join()
    return {name: "\n".join(texts) for name, texts in wrong.items()}


if __name__ == "__main__":
    print(json.dumps(outcomes()))
