"""A forward, run on tensors without memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tilesmith.kernelbench.calls import Calls, Made
from tilesmith.kernelbench.expression import Input, Scalar
from tilesmith.kernelbench.loading import ForwardError, Loaded, UnsupportedError, describe, on_meta, where
from tilesmith.kernelbench.problem_file import ProblemError, ProblemFile
from tilesmith.kernelbench.rules import RefusalError

_NO_ELEMENTS = "meta tensors"  # in an error of torch's


def called(problem: ProblemFile, loaded: Loaded, inputs: Sequence[Input | Scalar] = ()) -> list[Made]:
    """What forward calls of torch, with which numbers; for the problem's own arguments, or for others."""
    calls, given = Calls(problem), tensors(inputs or loaded.inputs)
    with on_meta(), calls:
        of_forward(problem, lambda: loaded.model(*given))
    return calls.made


def tensors(inputs: Sequence[Input | Scalar]) -> list[Tensor]:
    """Arguments of forward, without memory."""
    given = (x for x in inputs if isinstance(x, Input))
    return [torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta") for x in given]


def of_forward(problem: ProblemFile, function: Callable[[], Any]) -> Any:
    """What a function that runs forward gives; its errors as ours."""
    try:
        return function()
    except RefusalError as error:
        raise UnsupportedError(f"{error} is not supported{where(problem, error.__traceback__)}") from None
    except (ProblemError, KeyboardInterrupt):
        raise
    except BaseException as error:
        needs = isinstance(error, NotImplementedError | GuardOnDataDependentSymNode) or _NO_ELEMENTS in str(error)
        if needs:
            raise UnsupportedError(f"forward needs the elements of a tensor: {describe(problem, error)}") from None
        raise ForwardError(f"forward fails: {describe(problem, error)}") from None
