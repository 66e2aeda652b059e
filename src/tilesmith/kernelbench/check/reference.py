"""The reference's process: it makes inputs that no one can guess, and compares results with float64.

The candidate's results come after the fact; what they should have been never leaves this process.
"""

import copy
import math
import secrets
from collections.abc import Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from tilesmith.bench import precision
from tilesmith.kernelbench.check import analysis, exchange, inputs, loading, wire

_GIVEN = "given"
_LAYOUTS = {
    "transposed": inputs.transposed,
    "padded": inputs.padded,
    "shifted": inputs.shifted,
    "smaller": inputs.smaller,
}


class Reference:
    """A problem's model, in its own precision and in float64, and the last inputs that were made."""

    def __init__(self) -> None:
        self._sample: inputs.Values = []  # what the problem gave first: the structure that all inputs have
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
        """Fresh inputs of a kind and layout for the candidate's process, which the model takes: see `unfit`."""
        made = self._laid_out(self._of_kind(kind, seed), layout)
        assert made is not None  # or it would be unfit
        self._inputs = made
        self._offered = loading.twins(made)  # kept until the next are made; the candidate's process may write to it
        exchange.save(self._arguments(self._offered), path)
        return {}

    def _of_kind(self, kind: str, seed: int) -> inputs.Values:
        if kind != _GIVEN:
            return inputs.of_kind(kind, self._samples(), seed, self._k)
        torch.manual_seed(seed)
        self._given = list(self._module.get_inputs())
        return loading.on(self._device, loading.leaves(self._given))

    def _arguments(self, values: inputs.Values) -> list[Any]:
        """The values where the problem has them, in dictionaries and lists."""
        found: list[Any] = loading.with_leaves(self._given, values)
        return found

    def _samples(self) -> inputs.Values:
        self._sample = self._sample or self._of_kind(_GIVEN, secrets.randbits(62))
        return self._sample

    def _laid_out(self, values: inputs.Values, layout: str | None) -> inputs.Values | None:
        return values if layout is None else _LAYOUTS[layout](values)

    def unfit(self, kind: str, layout: str | None) -> wire.Message:
        """Why the model does not take such inputs, with values of its own. It is asked before there is a candidate,
        of whose results nothing exists then, and who could otherwise have the model fail."""
        try:
            values = self._laid_out(self._of_kind(kind, secrets.randbits(62)), layout)
            if values is None:
                return {"why": "not all inputs are tensors of floats"}
            with torch.no_grad():
                own = loading.leaves(self._model(*self._arguments(loading.twins(values))))
                with analysis.Products() as products:
                    exact = loading.leaves(self._wide(*self._arguments(analysis.widened(values))))
        except Exception as error:
            return {"why": f"the reference itself does not take it: {(str(error) or repr(error)).splitlines()[0]}"}
        self._know(products)
        pairs = [(x, y) for x, y in zip(own, exact, strict=True) if isinstance(x, Tensor) and isinstance(y, Tensor)]
        return {"why": "the reference itself is not finite" if _overflows(pairs) else None}

    def _know(self, products: analysis.Products) -> None:
        if self._k == 0:
            self._k, self._flops, self._is_product = products.k, products.flops, products.is_product

    def take(self, path: str) -> wire.Message:
        """Takes what came of a call of the candidate on the last inputs."""
        said = exchange.load(path)
        self._results: list[Tensor] = said["at once"]
        self._keys = said["keys"]
        self._betrayed = None  # what was wrong with the call, whatever came out
        if any(not _same(now, then) for now, then in _tensors(said["inputs"], self._inputs)):
            self._betrayed = "the inputs were changed"
        elif not _all_same(self._results, said["settled"]):
            self._betrayed = (
                "the result was not ready when the call returned: work was left on another stream or thread"
            )
        return {}

    def take_again(self, path: str) -> wire.Message:
        """Takes what came of a second call on them, and says whether it is the same."""
        said = exchange.load(path)
        self._again: list[Tensor] = said["at once"]
        if said["keys"] != self._keys:
            self._betrayed = f"a second call on the same inputs gave {said['keys']} instead of {self._keys}"
        return {"same": _all_same(self._results, self._again)}

    def compare(self) -> wire.Message:
        """Compares what was taken with what should have come of the last inputs: {"failed": why} for what is plainly
        wrong, {"unfit": why} if the reference has no answer either, or the error and its class, of the worse call."""
        own = self._own()
        with torch.no_grad():
            if failed := self._plainly_wrong(self._results, own) or self._betrayed:
                return {"failed": failed}
            first = self._measured(self._results, own)
            if "error" not in first or _all_same(self._results, self._again):
                return first
            if failed := self._plainly_wrong(self._again, own):
                return {"failed": f"a second call on the same inputs gave another result: {failed}"}
            return max(first, self._measured(self._again, own), key=_badness)

    def _own(self) -> list[Any]:
        """What the model itself makes of the last inputs, and by which keys."""
        with torch.no_grad():
            returned = self._model(*self._arguments(loading.twins(self._inputs)))
        self._right_keys = loading.keys(returned)
        return loading.leaves(returned)

    def _plainly_wrong(self, results: list[Tensor], own: list[Any]) -> str | None:
        if len(results) != len(own):
            return f"{len(results)} outputs instead of {len(own)}"
        for result, right in zip(results, own, strict=True):
            if result.shape != right.shape:
                return f"shape {tuple(result.shape)} instead of {tuple(right.shape)}"
            if result.dtype != right.dtype:
                return f"{result.dtype} instead of {right.dtype}"
        return self._elsewhere(results, own)

    def _elsewhere(self, results: list[Tensor], own: list[Any]) -> str | None:
        """Whether a caller would not find as many results where the reference's are."""
        if self._keys != self._right_keys:
            return f"outputs {self._keys} instead of {self._right_keys}"
        places = ((result.device.type, right.device.type) for result, right in zip(results, own, strict=True))
        return next((f"results on {found} instead of {right}" for found, right in places if found != right), None)

    def _measured(self, results: list[Tensor], own: list[Tensor]) -> wire.Message:
        floats = [i for i, x in enumerate(own) if loading.has_nan(x)]
        if any(not torch.equal(results[i], x) for i, x in enumerate(own) if i not in floats):
            return {"failed": "integers differ from the reference's"}
        if not floats:
            return {"class": None, "error": 0.0}
        with analysis.Products() as products:
            exact = self._outputs(self._wide, analysis.widened(self._inputs), floats)
        self._know(products)
        own, results = ([loading.as_floats(each[i]) for i in floats] for each in (own, results))
        if _overflows(zip(own, exact, strict=True)):
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
        result = loading.leaves(model(*self._arguments(values)))
        return [loading.as_floats(result[i]).double() for i in floats]

    def _scales(self, exact: list[Tensor], floats: list[int]) -> list[Tensor]:
        """What an element's error is relative to: the sum of its terms' absolute values where that is known, or else
        the element and the usual size of its tensor."""
        if self._is_product:
            wide = analysis.absolute(analysis.widened(self._inputs))
            sums = [x.abs() for x in self._outputs(self._absolute, wide, floats)]
            # Of complex numbers, both parts have the same terms.
            return [x if x.dim() == y.dim() else x[..., None].expand_as(y) for x, y in zip(sums, exact, strict=True)]
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

    def allclose(self) -> wire.Message:
        """Compares what was taken as KernelBench does: shapes, then torch.allclose."""
        results, own = self._results, self._own()
        if [x.shape for x in results] != [x.shape for x in own]:
            return {"failed": f"shapes {[tuple(x.shape) for x in results]} instead of {[tuple(x.shape) for x in own]}"}
        if failed := self._elsewhere(results, own):
            return {"failed": failed}
        for result, right in zip(results, own, strict=True):
            tolerance = 1e-2 if right.dtype in (torch.float16, torch.bfloat16) else 1e-4
            if not torch.allclose(result.to(right.dtype), right, atol=tolerance, rtol=tolerance):
                largest = (result.double() - right.double()).abs().max().item()
                return {"failed": f"not close within {tolerance:g}: the largest difference is {largest:.3g}"}
        return {}

    def work(self) -> wire.Message:
        """What the model must do on the given inputs at least: operations of its products, and bytes."""
        read = [*(x for x in self._inputs if isinstance(x, Tensor)), *self._model.parameters()]
        written = sum(x.nbytes for x in self._own())
        return {"flops": self._flops, "read": sum(x.nbytes for x in read), "written": written}


def _exact_float32() -> None:
    """torch's float32 in float32, whatever TF32 setting the environment brought."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    convolutions: Any = torch.backends.cudnn  # torch's stub lacks them
    convolutions.conv.fp32_precision = "ieee"


def _overflows(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether a value is not finite that is so in float64."""
    return any(bool((~x.isfinite() & y.isfinite()).any()) for x, y in pairs)


def _badness(found: wire.Message) -> float:
    """By which the worse of two comparisons is the larger one."""
    error = found.get("error", math.inf)
    return math.inf if math.isnan(error) or found.get("not_finite") else error


def _tensors(after: list[Any], before: list[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for x, y in zip(after, before, strict=True) if isinstance(y, Tensor)]


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are the same bit by bit: a NaN is itself, and -0 is not 0."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return torch.equal(x.contiguous().reshape(-1).view(torch.uint8), y.contiguous().reshape(-1).view(torch.uint8))


def _all_same(xs: list[Tensor], ys: list[Tensor]) -> bool:
    return len(xs) == len(ys) and all(_same(x, y) for x, y in zip(xs, ys, strict=True))


def main() -> None:
    reference = Reference()
    handlers = ("load", "unfit", "make", "take", "take_again", "compare", "allclose", "work")
    wire.serve({name: _sparing(getattr(reference, name)) for name in handlers})


def _sparing(handler: wire.Handler) -> wire.Handler:
    """A handler that leaves the GPU's memory to the other process as soon as it does not need it."""

    @wraps(handler)
    def handle(**arguments: Any) -> wire.Message:
        try:
            return handler(**arguments)
        finally:
            torch.cuda.empty_cache()

    return handle


if __name__ == "__main__":
    main()
