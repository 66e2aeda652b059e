"""The judge of the upstream lane: whether a call under an override has what torch has.

It asks for torch's types, sizes and strides, and for values that are no further from the same call in float64 than
torch's own are, by more than docs/accuracy.md grants: of results, gradients and second gradients.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import programs
import torch
from programs import WITHIN_THE_PROMISE
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from upstream_samples import (
    MAX_OTHER_SAMPLES,
    MAX_SAMPLES,
    Error,
    Sample,
    as_doubles,
    errors_of,
    name_of,
    samples_of,
)

import tilesmith

Scope = Callable[[], AbstractContextManager[Any]]
Pieces = dict[str, Any]  # the results and gradients of a call, by what they are

# The floor of the promise for float32, and one rounding for 16 bits, where sums are in float32. Relative to the norm.
FLOOR: Final = {torch.float32: programs.FLOOR, torch.float16: 1.05 * 2.0**-11, torch.bfloat16: 1.05 * 2.0**-8}
ONE_ROUNDING: Final = 2.0**-24
MEANINGLESS: Final = 0.1  # torch's error, where float64 may have other random numbers
_SHAKES: Final = 3  # times that arguments are shaken, to see how errors are magnified
SAME_CALL: Final = 1e-11  # of float64, which is left to torch: only sums by atomic additions differ


@dataclass
class Tally:
    """What was done, for the summary."""

    samples: int = 0
    reached: int = 0  # of them those with a product
    drawn: int = 0  # of which the samples were taken
    pieces: int = 0  # tensors that were compared
    undrawn: list[str] = field(default_factory=list)  # of what torch's database draws nothing, and why
    with_torch_alone: int = 0  # of those that were compared with torch's, since float64 says nothing
    errors: int = 0
    raised: int = 0  # samples that torch does not do, or whose gradients it has not
    ours: int = 0
    left: Counter[str] = field(default_factory=Counter)  # the products that were left to torch, by the reason
    complaints: list[str] = field(default_factory=list)


def judge_entry(
    entry: Any, device: str, dtype: torch.dtype, scope: Scope, tally: Tally, *, count: int = 0, is_listed: bool = True
) -> None:
    """All that there is to say of an operator or a module and a type. Of those that are not listed, the samples that
    reach a product are compared."""
    try:
        count = count or (MAX_SAMPLES if is_listed else MAX_OTHER_SAMPLES)
        samples, drawn = samples_of(entry, device, dtype, count)
    except Exception as error:  # torch's own: it has no samples of this type, or none on this device
        reason = (str(error) or repr(error)).splitlines()[0]
        tally.undrawn.append(f"{name_of(entry)} of {dtype}: {reason}")
        return
    tally.drawn += drawn
    for sample in samples:
        reached = judge(sample, scope, tally, always=is_listed)
        if reached or is_listed:
            judge_writing(sample, scope, tally)


def judge_errors(entry: Any, device: str, scope: Scope, tally: Tally) -> None:
    """The same of all wrong calls of an operator or a module."""
    for error in errors_of(entry, device):
        judge_error(error, scope, tally)


def judge(sample: Sample, scope: Scope, tally: Tally, *, always: bool = True) -> bool:
    """Adds to the tally what is wrong with a sample, and says whether it reached a product. If it did not, there is
    nothing to compare, unless `always`."""
    with scope():
        ours = _pieces(sample, sample.arguments)
    reached = _count(tally)
    tally.samples += 1
    tally.reached += reached
    if not reached and not always:
        return False
    torchs = _pieces(sample, sample.arguments)
    tally.raised += any(isinstance(each, Raised) for each in torchs.values())
    exact = _pieces(sample, as_doubles(sample.arguments)) if _may_be_ours(ours, torchs) else {}
    for complaint in _compared(sample, ours, torchs, exact, tally):
        tally.complaints.append(f"{sample.name}: {complaint}")
    return reached


def judge_writing(sample: Sample, scope: Scope, tally: Tally) -> None:
    """The same of calls that write into a given tensor, and of those in place."""
    result = _result(lambda: sample.run(_leaves(sample.arguments, False)))
    if not isinstance(result, Tensor):
        return
    exact = {}
    if result.dtype in FLOOR:
        exact = {"result": _result(lambda: sample.run(_leaves(as_doubles(sample.arguments), False)))}
    first = sample.arguments[0]
    calls: list[tuple[str, Callable[[], Any]]] = []
    if sample.out is not None:
        out = sample.out
        calls.append(("out", lambda: out(_leaves(sample.arguments, False), torch.empty_like(result))))
        across = torch.empty_like(result.mT if result.dim() > 1 else result, memory_format=torch.contiguous_format)
        across = across.mT if result.dim() > 1 else across
        calls.append(("out across", lambda: out(_leaves(sample.arguments, False), torch.empty_like(across))))
    if sample.in_place is not None and isinstance(first, Tensor) and _has_place_for(first, result):
        in_place = sample.in_place
        calls.append(("in place", lambda: in_place(_own_first(sample.arguments))))
    for name, call in calls:
        with scope():
            ours = {"result": _result(call)}
        _count(tally)
        torchs = {"result": _result(call)}
        for complaint in _compared(sample, ours, torchs, exact, tally):
            tally.complaints.append(f"{sample.name}, {name}: {complaint}")


def judge_error(error: Error, scope: Scope, tally: Tally) -> None:
    """Whether torch's exception comes through, with its words; and no exception where torch has none."""
    torchs = _raised(error.run)
    with scope():
        ours = _raised(error.run)
    tally.errors += 1
    if ours != torchs:
        tally.complaints.append(f"{error.name}: {ours} where torch has {torchs}")


@dataclass(frozen=True)
class Raised:
    """What a call has in the place of a result, where torch does not do it."""

    kind: type[Exception]
    words: str

    @classmethod
    def of(cls, error: Exception) -> "Raised":
        words = re.sub(r"0x[0-9a-f]+", "0x", str(error))
        return cls(type(error), words.split("\nException raised from")[0])  # what follows are addresses of C++


def _raised(run: Callable[[], Any]) -> Raised | None:
    try:
        run()
    except Exception as error:
        return Raised.of(error)
    return None


def _result(run: Callable[[], Any]) -> Any:
    """The result of a call without gradients."""
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            return run()
    except Exception as error:
        return Raised.of(error)


def _may_be_ours(ours: Pieces, torchs: Pieces) -> bool:
    return any(isinstance(x, Tensor) and x.dtype in FLOOR for x in (*ours.values(), *torchs.values()))


def _has_place_for(first: Tensor, result: Tensor) -> bool:
    return first.shape == result.shape and first.dtype == result.dtype


def _own_first(arguments: Any) -> Any:
    first, *others = _leaves(arguments, False)
    return first.clone(), *others


def _leaves(arguments: Any, with_gradients: bool) -> Any:
    """The arguments, whose tensors are leaves of a graph of their own."""

    def leaf(x: Tensor) -> Tensor:
        return x.detach().requires_grad_(with_gradients and x.requires_grad)

    return tree_map_only(Tensor, leaf, arguments)


def _pieces(sample: Sample, arguments: Any) -> Pieces:
    """The results of a call, its gradients and second gradients, as far as torch has them. Random numbers are the same
    each time."""
    torch.manual_seed(0)
    arguments = _leaves(arguments, sample.has_gradients)
    leaves = [x for x in tree_leaves(arguments) if isinstance(x, Tensor) and x.requires_grad]
    found: Pieces = {}
    try:
        result = sample.run(arguments)
        found |= {f"result {index}": each for index, each in enumerate(tree_leaves(result))}
        ends = _differentiable(sample.finish(result)) if sample.has_gradients and leaves else []
        for order in ("gradient", "second gradient")[: 1 + sample.has_second_gradients]:
            if not ends:
                break
            again = order == "gradient" and sample.has_second_gradients
            gradients = torch.autograd.grad(ends, leaves, _drawn_like(ends), allow_unused=True, create_graph=again)
            found |= {f"{order} {index}": each for index, each in enumerate(gradients)}
            ends = _differentiable(gradients)
    except Exception as error:
        found["error"] = Raised.of(error)
    return found


def _differentiable(result: Any) -> list[Tensor]:
    return [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]


def _drawn_like(ends: list[Tensor]) -> list[Tensor]:
    """Gradients to begin with, which are the same numbers for float16, bfloat16 and float64."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(-8, 9, x.shape, generator=generator) / 8 for x in ends)
    return [values.to(x) for values, x in zip(drawn, ends, strict=True)]


def _count(tally: Tally) -> bool:
    stats = tilesmith.stats()
    tally.ours += stats.calls("tilesmith")
    for each in stats.entries:
        if each.where == "torch":
            tally.left[each.reason] += each.calls
    return bool(stats.entries)


def _compared(sample: Sample, ours: Pieces, torchs: Pieces, exact: Pieces, tally: Tally) -> Iterator[str]:
    if ours.keys() != torchs.keys():
        yield f"{sorted(ours)} where torch has {sorted(torchs)}"
        return
    for name, found in ours.items():
        expected = torchs[name]
        tally.pieces += 1
        if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
            if type(found) is not type(expected) or found != expected:
                yield f"{name} is {found} where torch has {expected}"
            continue
        unlike = [
            f"{name} has {what} {mine} where torch has {theirs}"
            for what, mine, theirs in zip(
                ("dtype", "shape", "layout", "device", "strides"), _make(found), _make(expected), strict=True
            )
            if mine != theirs
        ]
        if unlike:
            yield from unlike
            continue
        strict = sample.is_product and name.startswith("result")
        truth = exact.get(name)
        wrong = _wrong(sample, name, found, expected, truth if isinstance(truth, Tensor) else None, strict, tally)
        if wrong is not None:
            yield f"{name} {wrong}"


def _make(x: Tensor) -> tuple[Any, ...]:
    """What of a tensor is neither a value nor where it is."""
    return x.dtype, tuple(x.shape), x.layout, x.device, x.stride() if x.layout == torch.strided else None


def _wrong(
    sample: Sample, name: str, found: Tensor, expected: Tensor, exact: Tensor | None, strict: bool, tally: Tally
) -> str | None:
    """What is wrong with values, if anything is."""
    found, expected = _values(found), _values(expected)
    if not found.dtype.is_floating_point:
        return None if torch.equal(found, expected) else f"differs from torch's {found.dtype}"
    if found.numel() == 0:
        return None
    mine, theirs = found.double(), expected.double()
    if not _same_specials(mine, theirs):
        return "has infinities or NaNs at other places than torch's"
    finite = theirs.isfinite()
    smallest = torch.finfo(found.dtype).smallest_normal * torch.finfo(found.dtype).eps * found.numel() ** 0.5
    if found.dtype in FLOOR and exact is not None and exact.shape == found.shape:
        truth = _values(exact).double()
        finite &= truth.isfinite()
        error, others = (_distance(x, truth, finite) for x in (mine, theirs))
        if others <= MEANINGLESS or not _is_random(sample):
            least = max(others, FLOOR[found.dtype])
            limit = least * 1.05 + ONE_ROUNDING if strict else least * WITHIN_THE_PROMISE
            limit += smallest / (truth[finite].norm().item() or 1.0)
            if error > limit and not strict:  # which is rare, and so may take its time
                limit = WITHIN_THE_PROMISE * _magnified(sample, name, truth, finite, FLOOR[found.dtype])
            return None if error <= limit else f"has an error of {error:.2e} where torch has {others:.2e}"
    tally.with_torch_alone += found.dtype in FLOOR
    distance = _distance(mine, theirs, finite)
    limit = WITHIN_THE_PROMISE**2 * FLOOR[found.dtype] if found.dtype in FLOOR else SAME_CALL
    return None if distance <= limit else f"differs from torch's by {distance:.2e}"


def _magnified(sample: Sample, name: str, truth: Tensor, where: Tensor, size: float) -> float:
    """What errors of this size in all arguments, relative and at random, make of a piece: those of torch's own
    operations are magnified as much, and may by chance cancel."""
    generator = torch.Generator().manual_seed(0)

    def shaken(x: Tensor) -> Tensor:
        if not x.dtype.is_floating_point or x.layout != torch.strided:
            return x
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        return (x.detach() * (1 + size * noise)).requires_grad_(x.requires_grad)

    found = []
    for _ in range(_SHAKES):
        piece = _pieces(sample, tree_map_only(Tensor, shaken, as_doubles(sample.arguments))).get(name)
        if isinstance(piece, Tensor) and piece.shape == truth.shape:
            found.append(_distance(_values(piece).double(), truth, where))
    return max(found, default=0.0)


def _values(x: Tensor) -> Tensor:
    x = x.detach()
    return x.to_dense() if x.layout != torch.strided else x


def _same_specials(mine: Tensor, theirs: Tensor) -> bool:
    signs = (torch.where(x.isinf(), x.sign(), 0.0) for x in (mine, theirs))
    return torch.equal(mine.isnan(), theirs.isnan()) and torch.equal(*signs)


def _is_random(sample: Sample) -> bool:
    """Whether a call's result depends on the seed: doubles are then other random numbers."""

    def result(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        with torch.no_grad():
            return tree_leaves(sample.run(_leaves(sample.arguments, False)))

    pairs = zip(result(0), result(1), strict=True)
    return any(isinstance(x, Tensor) and not torch.allclose(x, y, equal_nan=True) for x, y in pairs)


def _distance(x: Tensor, truth: Tensor, where: Tensor) -> float:
    """The norm of the difference, relative to that of the truth."""
    difference, norm = (x - truth)[where].norm().item(), truth[where].norm().item()
    return float(difference / norm if norm else difference)
