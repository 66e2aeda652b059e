"""What vmap makes of a product: one more dimension of its batch."""

from collections.abc import Callable

from torch import Tensor

from tilesmith.core.checks import product_shape


def as_one_batch(
    multiply: Callable[[Tensor, Tensor], Tensor], in_dims: tuple[int | None, int | None], a: Tensor, b: Tensor
) -> tuple[Tensor, int]:
    """One product for all that vmap maps over."""
    a_dim, b_dim = in_dims
    a_rank = a.dim() - (a_dim is not None)
    b_rank = b.dim() - (b_dim is not None)
    if a_rank == 0 or b_rank == 0:
        product_shape((1,) * a_rank, (1,) * b_rank)  # raises torch's error

    # The mapped dimension becomes the outermost of the batch, so ranks must agree: 1-D operands
    # become matrices, and the other batch dimensions are filled up with ones.
    rank = max(a_rank, b_rank, 2)

    def as_batch(x: Tensor, dim: int | None, x_rank: int, vector_at: int) -> Tensor:
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        if x_rank == 1:
            x = x.unsqueeze(vector_at)
        shape = x.shape
        return x.reshape(shape[0], *(1,) * (rank - max(x_rank, 2)), *shape[1:])

    result = multiply(as_batch(a, a_dim, a_rank, 1), as_batch(b, b_dim, b_rank, 2))
    if b_rank == 1:
        result = result.squeeze(-1)
    if a_rank == 1:
        result = result.squeeze(-1 if b_rank == 1 else -2)
    return result, 0
