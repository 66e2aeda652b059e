"""The reference's process: it makes inputs that no one can guess, and compares results with float64.

The candidate's results come in files, after the fact; what they should have been never leaves this process.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from tilesmith.kernelbench.check import analysis, inputs, loading, precision, wire

_GIVEN = "given"
_LAYOUTS = {"transposed": inputs.transposed, "padded": inputs.padded, "smaller": inputs.smaller}


class Reference:
    """A problem's model, in its own precision and in float64, and the last inputs that were made."""

    def __init__(self) -> None:
        self._k = 0
        self._flops = 0.0
        self._is_product = False

    def load(self, problem: str, device: str, seed: int, init: str) -> wire.Message:
        """Loads the problem, and writes what its model is made with to the file `init`."""
        self._device = device
        self._module: Any = loading.load(problem, "problem", ("Model", "get_inputs", "get_init_inputs"))
        arguments = self._module.get_init_inputs()
        torch.save(arguments, init)
        _exact_float32()
        self._model = loading.build(self._module.Model, arguments, seed, device)
        self._wide = copy.deepcopy(self._model).double()
        self._absolute = copy.deepcopy(self._wide)
        for part in (*self._absolute.parameters(), *self._absolute.buffers()):
            if part.is_floating_point():
                part.data = part.data.abs()
        return {}

    def make(self, kind: str, layout: str | None, seed: int, path: str) -> wire.Message:
        """Fresh inputs of a kind and layout into a file. {"unfit": why} where the model itself does not take them;
        that is tried with other values, so that no result of these exists before the candidate's."""
        if layout is not None and (unfit := self._unfit(layout, seed ^ 1)):
            return {"unfit": unfit}
        made = self._laid_out(self._of_kind(kind, seed), layout)
        assert made is not None  # or it would be unfit
        self._inputs = made
        torch.save(loading.on("cpu", made), path)
        return {}

    def _of_kind(self, kind: str, seed: int) -> inputs.Values:
        torch.manual_seed(seed)
        given = loading.on(self._device, list(self._module.get_inputs()))
        return given if kind == _GIVEN else inputs.of_kind(kind, given, seed, self._k)

    def _laid_out(self, values: inputs.Values, layout: str | None) -> inputs.Values | None:
        return values if layout is None else _LAYOUTS[layout](values)

    def _unfit(self, layout: str, seed: int) -> str | None:
        values = self._laid_out(self._of_kind(_GIVEN, seed), layout)
        if values is None:
            return "not all inputs are tensors of floats"
        try:
            with torch.no_grad():
                self._model(*values)
                self._wide(*analysis.widened(values))
        except Exception as error:
            return f"the reference itself does not take it: {str(error).splitlines()[0]}"
        return None

    def compare(self, path: str) -> wire.Message:
        """Compares what the candidate's process wrote with what should have come of the last inputs: {"failed": why}
        for what is plainly wrong, {"unfit": why} if the reference has no answer either, or the error and its class."""
        said: dict[str, Any] = torch.load(path, weights_only=True, map_location=self._device)
        with torch.no_grad():
            own: list[Any] = loading.leaves(self._model(*loading.twins(self._inputs)))
            if failed := self._plainly_wrong(said, own):
                return {"failed": failed}
            return self._measured(said["at once"], own)

    def _plainly_wrong(self, said: dict[str, Any], own: list[Any]) -> str | None:
        results = said["at once"]
        if len(results) != len(own):
            return f"{len(results)} outputs instead of {len(own)}"
        for result, right in zip(results, own, strict=True):
            if result.shape != right.shape:
                return f"shape {tuple(result.shape)} instead of {tuple(right.shape)}"
            if result.dtype != right.dtype:
                return f"{result.dtype} instead of {right.dtype}"
        if any(not _same(now, then) for now, then in _tensors(said["inputs"], self._inputs)):
            return "the inputs were changed"
        if any(not _same(x, y) for x, y in zip(results, said["settled"], strict=True)):
            return "the result was not ready when the call returned: work was left on another stream or thread"
        return None

    def _measured(self, results: list[Tensor], own: list[Tensor]) -> wire.Message:
        floats = [i for i, x in enumerate(own) if x.is_floating_point()]
        if any(not torch.equal(results[i], x) for i, x in enumerate(own) if i not in floats):
            return {"failed": "integers differ from the reference's"}
        if not floats:
            return {"class": None, "error": 0.0}
        with analysis.Products() as products:
            exact = self._outputs(self._wide, analysis.widened(self._inputs), floats)
        if self._k == 0:
            self._k, self._flops, self._is_product = products.k, products.flops, products.is_product
        own, results = [own[i] for i in floats], [results[i] for i in floats]
        if any((~x.isfinite() & y.isfinite()).any() for x, y in zip(own, exact, strict=True)):
            return {"unfit": "the reference itself is not finite"}
        scales = self._scales(exact, floats)
        own_error = analysis.error(own, exact, scales)
        bounds = self._bounds(products, own_error, exact, scales, floats)
        lost = sum(int((~x.isfinite() & y.isfinite()).sum()) for x, y in zip(results, exact, strict=True))
        error = analysis.error(results, exact, scales)
        return {
            "class": precision.worst([precision.classify(error, bounds, x.dtype) for x in own]),
            "required": precision.worst([precision.best_class(x.dtype) or "worse" for x in own]),
            "error": error,
            "own_error": own_error,
            "bounds": bounds,
            "k": products.k,
            "is_product": self._is_product,
            "not_finite": lost,
        }

    def _outputs(self, model: Any, values: inputs.Values, floats: list[int]) -> list[Tensor]:
        result: list[Any] = loading.leaves(model(*values))
        return [result[i].double() for i in floats]

    def _scales(self, exact: list[Tensor], floats: list[int]) -> list[Tensor]:
        """What an element's error is relative to: the sum of its terms' absolute values where that is known, or else
        the element and the usual size of its tensor."""
        if self._is_product:
            wide = analysis.absolute(analysis.widened(self._inputs))
            return [x.abs() for x in self._outputs(self._absolute, wide, floats)]
        return [x.abs() + x.square().mean().sqrt() for x in exact]

    def _bounds(
        self,
        products: analysis.Products,
        own_error: float,
        exact: list[Tensor],
        scales: list[Tensor],
        floats: list[int],
    ) -> dict[str, float]:
        if self._is_product:
            return precision.bounds_of_product(products.k, own_error)
        modelled = {}
        for name in ("tf32", "fp16", "bf16"):
            with analysis.Narrow(name):
                lower = self._outputs(self._wide, analysis.widened(self._inputs), floats)
            modelled[name] = analysis.error(lower, exact, scales)
        return precision.bounds_of_model(own_error, modelled)

    def allclose(self, path: str) -> wire.Message:
        """Compares as KernelBench does: shapes, then torch.allclose."""
        said: dict[str, Any] = torch.load(path, weights_only=True, map_location=self._device)
        with torch.no_grad():
            own: list[Any] = loading.leaves(self._model(*loading.twins(self._inputs)))
        results = said["at once"]
        if [x.shape for x in results] != [x.shape for x in own]:
            return {"failed": f"shapes {[tuple(x.shape) for x in results]} instead of {[tuple(x.shape) for x in own]}"}
        for result, right in zip(results, own, strict=True):
            tolerance = 1e-2 if right.dtype in (torch.float16, torch.bfloat16) else 1e-4
            if not torch.allclose(result.to(right.dtype), right, atol=tolerance, rtol=tolerance):
                largest = (result.double() - right.double()).abs().max().item()
                return {"failed": f"not close within {tolerance:g}: the largest difference is {largest:.3g}"}
        return {}

    def work(self) -> wire.Message:
        """What the model must do on the given inputs at least: operations of its products, and bytes."""
        with torch.no_grad():
            outputs: list[Any] = loading.leaves(self._model(*loading.twins(self._inputs)))
        read = [*(x for x in self._inputs if isinstance(x, Tensor)), *self._model.parameters()]
        return {"flops": self._flops, "read": sum(x.nbytes for x in read), "written": sum(x.nbytes for x in outputs)}


def _exact_float32() -> None:
    """torch's float32 in float32, whatever TF32 setting the environment brought."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    convolutions: Any = torch.backends.cudnn  # torch's stub lacks them
    convolutions.conv.fp32_precision = "ieee"


def _tensors(after: list[Any], before: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for x, y in zip(after, before, strict=True) if isinstance(y, Tensor)]


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same bit by bit: a NaN is itself, and -0 is not 0."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return torch.equal(x.contiguous().reshape(-1).view(torch.uint8), y.contiguous().reshape(-1).view(torch.uint8))


def main() -> None:
    reference = Reference()
    wire.serve(
        {
            "load": reference.load,
            "make": reference.make,
            "compare": reference.compare,
            "allclose": reference.allclose,
            "work": reference.work,
            "repeat": _repeat,
        }
    )


def _repeat(first: str, second: str) -> wire.Message:
    """Whether two files hold the same results."""
    x, y = (torch.load(path, weights_only=True, map_location="cpu")["at once"] for path in (first, second))
    return {"same": len(x) == len(y) and all(_same(one, other) for one, other in zip(x, y, strict=True))}


if __name__ == "__main__":
    main()
