"""Products of distributed tensors: how `tilesmith::matmul` is split over the processes of a device mesh.

PyTorch's DTensor asks each operator for the placements that it can work with, and redistributes its operands to the
cheapest of them. These are ours, per dimension of the mesh:

    a              b              product
    replicated     replicated     replicated
    rows           replicated     rows            data or sequence parallel
    replicated     columns        columns         column parallel
    columns (K)    rows (K)       partial sum     row parallel
    batch          batch          batch           either may be replicated where it is broadcast along that dimension

torch.distributed.tensor is imported by `register` alone: who does not use it does not pay for it.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilesmith.torch_ops import matmul as op

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

    # What the product is placed as, and what a and b must be placed as for it.
    Placed = tuple[list[Placement | None], list[Placement | None]]

_dtensor: type | None = None  # the class DTensor, once it knows our placements


def register() -> None:
    """Tells DTensor how products are sharded. It may be called again.

    `tilesmith.matmul` does so by itself. Call it before `torch.ops.tilesmith.matmul` is called on DTensors, or where
    placements are looked up without a product.

    >>> register()
    """
    global _dtensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(op.matmul)(_placements)
    _dtensor = DTensor


def is_distributed(a: object, b: object, out: object = None) -> bool:
    """Whether one of them is a DTensor. If so, DTensor knows our placements."""
    if not _register_if_imported():
        return False
    assert _dtensor is not None
    return isinstance(a, _dtensor) or isinstance(b, _dtensor) or isinstance(out, _dtensor)


def _register_if_imported() -> bool:
    """Where the program has not imported torch.distributed.tensor, there is no DTensor yet."""
    if _dtensor is None and "torch.distributed.tensor" in sys.modules:
        register()
    return _dtensor is not None


# torch.compile is to call this while it traces, not to trace it. That is torch.compiler.assume_constant_result, which
# would import all of the compiler.
_register_if_imported._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _placements(a: Any, b: Any, **_: object) -> "list[Placed]":
    """The ways in which a product is split over one dimension of a mesh."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    rank = max(a.ndim, b.ndim, 2) - (a.ndim == 1) - (b.ndim == 1)  # the product's
    batch_rank = max(a.ndim - 2, b.ndim - 2, 0)
    whole = Replicate()

    found: list[Placed] = [([whole], [whole, whole])]
    if a.ndim > 1:
        found.append(([Shard(batch_rank)], [Shard(a.ndim - 2), whole]))
    if b.ndim > 1:
        found.append(([Shard(rank - 1)], [whole, Shard(b.ndim - 1)]))
    found.append(([Partial()], [Shard(a.ndim - 1), Shard(max(b.ndim - 2, 0))]))
    for dim in range(batch_rank):
        a_dim, b_dim = (_batch_dim(x.shape, dim - batch_rank) for x in (a, b))
        of_a, of_b = (whole if x is None else Shard(x) for x in (a_dim, b_dim))
        if a_dim is not None or b_dim is not None:
            found.append(([Shard(dim)], [of_a, of_b]))
    return found


def _batch_dim(shape: Sequence[int], from_matrix: int) -> int | None:
    """The dimension of an operand that is this one of the batch, -1 being next to the matrix; none if the operand is
    broadcast along it."""
    dim = len(shape) - 2 + from_matrix
    return dim if dim >= 0 and shape[dim] != 1 else None
