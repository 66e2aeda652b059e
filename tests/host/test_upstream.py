"""The upstream lane without a GPU: a few of PyTorch's own samples by the emulated kernels, and the lane's judge itself,
who must find what is wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from upstream_judge import Tally, judge, judge_entry, judge_error, judge_errors, judge_writing
from upstream_samples import Error, Sample, modules, operators

import tilesmith


@contextmanager
def emulated() -> Iterator[None]:
    with tilesmith.emulate(), tilesmith.override():
        yield


@pytest.mark.usefixtures("emulator_cache")
def test_samples_of_products_have_what_torch_has() -> None:
    found = operators()
    for name, dtype in (("mm", torch.float32), ("addmm", torch.float32), ("addbmm", torch.bfloat16)):
        tally = Tally()
        judge_entry(found[name], "cpu", dtype, emulated, tally, count=2)
        assert not tally.complaints, tally.complaints
        assert tally.ours >= 2 and tally.samples == tally.reached == 2 and tally.pieces >= 6


@pytest.mark.usefixtures("emulator_cache")
def test_samples_of_a_module_have_gradients_of_its_parameters() -> None:
    tally = Tally()
    judge_entry(modules()["Linear"], "cpu", torch.float32, emulated, tally, count=1)
    assert not tally.complaints, tally.complaints
    assert tally.samples == 2 and tally.pieces == 2 * 7  # in training and evaluated, the result and two orders of three
    assert tally.ours >= 6


def test_wrong_calls_have_torchs_words_and_other_operators_are_not_compared() -> None:
    found, tally = operators(), Tally()
    judge_errors(found["vdot"], "cpu", emulated, tally)
    assert tally.errors >= 3
    judge_entry(found["sin"], "cpu", torch.float32, emulated, tally, is_listed=False)
    assert tally.samples > 0 and tally.pieces == tally.reached == 0 and not tally.complaints


def test_what_torch_cannot_draw_is_told() -> None:
    def nothing(*_: object, **__: object) -> None:
        raise ValueError("no such type\nhere")

    entry = SimpleNamespace(full_name="made.up", sample_inputs=nothing, supports_autograd=False)
    tally = Tally()
    judge_entry(entry, "cpu", torch.float32, emulated, tally)
    assert tally.undrawn == ["made.up of torch.float32: no such type"]


class AcrossBackwards(torch.autograd.Function):
    """The same tensor, whose gradient has the other strides."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return across(gradient)


def _across_backwards(x: Tensor) -> Tensor:
    return AcrossBackwards.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def across(x: Tensor) -> Tensor:
    return x.T.contiguous().T


def with_nan(x: Tensor) -> Tensor:
    return torch.where(torch.arange(x.numel()).view_as(x) == 3, torch.nan, x)


def refuses(x: Tensor) -> Tensor:
    raise RuntimeError("not today")


def product(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


SPOILT: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "value": (lambda a, b: product(a, b) * (1 + 2e-6), "result 0 has an error of"),
    "one value": (lambda a, b: product(a, b).index_fill(1, torch.tensor(2), 0.0), "result 0 has an error of"),
    "nan": (lambda a, b: with_nan(product(a, b)), "result 0 has infinities or NaNs at other places"),
    "strides": (lambda a, b: across(product(a, b)), r"result 0 has strides \(1, 4\) where torch has \(5, 1\)"),
    "dtype": (lambda a, b: product(a, b).double(), "result 0 has dtype torch.float64"),
    "shape": (lambda a, b: product(a, b)[:3], r"result 0 has shape \(3, 5\)"),
    "error": (lambda a, b: refuses(a), r"\['error'\] where torch has"),
    "gradient": (lambda a, b: (y := product(a, b)) + (y - y.detach()), "gradient 0 has an error of"),
    "gradient's strides": (lambda a, b: product(_across_backwards(a), b), "gradient 0 has strides"),
    "no gradient": (lambda a, b: product(a, b.detach()) + 0 * a.square().sum(), "gradient 1 is None"),
    "second gradient": (
        lambda a, b: (y := product(a, b)) + (y - y.detach()).square(),
        "second gradient 0 has an error of",
    ),
}


class Switch:
    """A scope in which a call is spoilt."""

    is_on = False

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


def sample_of(
    switch: Switch, spoilt: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float32, **how: Any
) -> Sample:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in ((4, 6), (6, 5)))

    def run(arguments: Any) -> Tensor:
        return spoilt(*arguments) if switch.is_on else product(*arguments)

    return Sample("made up", run, (a, b), is_product=True, has_second_gradients=True, **how)


@pytest.mark.parametrize("what", SPOILT)
def test_the_judge_finds_what_is_wrong(what: str) -> None:
    switch, tally = Switch(), Tally()
    spoilt, words = SPOILT[what]
    judge(sample_of(switch, spoilt), switch.scope, tally)
    assert tally.complaints
    with pytest.raises(AssertionError, match=f"made up: {words}"):
        assert not tally.complaints, "\n".join(tally.complaints)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_judge_finds_twice_the_error_of_a_rounding_in_every_type(dtype: torch.dtype) -> None:
    switch, right, wrong = Switch(), Tally(), Tally()
    judge(sample_of(switch, product, dtype), switch.scope, right)
    assert not right.complaints, right.complaints
    assert right.pieces == 5
    eps = torch.finfo(dtype).eps * (1 if dtype != torch.float32 else 4)  # of which the promise has 2.5
    eps = max(eps, 1e-9)
    judge(
        sample_of(switch, lambda a, b: (product(a, b).double() * (1 + 2 * eps)).to(dtype), dtype), switch.scope, wrong
    )
    assert any("result 0" in complaint for complaint in wrong.complaints), wrong.complaints


def test_the_judge_is_content_where_truth_is_next_to_nothing() -> None:
    """There float64 has other roundings, and so may we have; but not larger ones."""
    switch = Switch()

    def cancelled(size: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda a, b: (product(a, b) / 3 * 3 - product(a, b)) * size

    for size, is_right in ((1.0, True), (-1.0, True), (100.0, False)):
        tally = Tally()
        sample = sample_of(switch, cancelled(size), has_gradients=False)
        spoilt = sample.run

        def run(arguments: Any, spoilt: Callable[[Any], Any] = spoilt) -> Any:
            return spoilt(arguments) if switch.is_on else cancelled(1.0)(*arguments)

        judge(replace(sample, run=run), switch.scope, tally)
        assert bool(tally.complaints) != is_right, tally.complaints


@pytest.mark.parametrize(("relative", "is_right"), [(3e-7, True), (3e-5, False)])
def test_what_torchs_own_operations_magnify_may_be_as_large(relative: float, is_right: bool) -> None:
    """After a steep function an error of the promised size in a product is fifty times as large."""
    switch, tally = Switch(), Tally()

    def steep(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(10 * product(a, b) * (1 + relative * switch.is_on))

    sample = sample_of(switch, steep, has_gradients=False)
    judge(replace(sample, run=lambda x: steep(*x), is_product=False), switch.scope, tally)
    assert bool(tally.complaints) != is_right, tally.complaints


def test_random_numbers_are_compared_with_torchs_alone() -> None:
    """float64 has others."""

    def dropped(a: Tensor, b: Tensor) -> Tensor:
        return product(a, b) * torch.randint(1, 9, (4, 5)) * (1 if a.dtype == torch.float32 else 7)

    for factor, is_right in ((1.0, True), (1.001, False)):
        switch, tally = Switch(), Tally()

        def run(arguments: Any, switch: Switch = switch, factor: float = factor) -> Tensor:
            return dropped(*arguments) * (factor if switch.is_on else 1.0)

        judge(replace(sample_of(switch, product), run=run), switch.scope, tally)
        assert tally.with_torch_alone == 5
        assert bool(tally.complaints) != is_right, tally.complaints


def test_infinities_must_be_at_the_same_places() -> None:
    def infinite(a: Tensor, b: Tensor, place: int, sign: int) -> Tensor:
        return product(a, b).masked_fill(torch.arange(20).view(4, 5) == place, sign * torch.inf)

    for place, sign, is_right in ((3, 1, True), (4, 1, False), (3, -1, False)):
        switch, tally = Switch(), Tally()

        def run(arguments: Any, switch: Switch = switch, place: int = place, sign: int = sign) -> Tensor:
            a, b = arguments
            return infinite(a, b, place, sign) if switch.is_on else infinite(a, b, 3, 1)

        judge(replace(sample_of(switch, product), run=run), switch.scope, tally)
        assert bool(tally.complaints) != is_right, tally.complaints


def test_the_judge_looks_at_what_is_written() -> None:
    for is_right in (True, False):
        switch, tally = Switch(), Tally()

        def into(arguments: Any, out: Tensor, switch: Switch = switch, is_right: bool = is_right) -> Tensor:
            torch.mm(*arguments, out=out)
            return out if is_right or not switch.is_on else out.mul_(1.01)

        judge_writing(sample_of(switch, product, out=into), switch.scope, tally)
        assert tally.pieces == 2
        starts = [complaint.split(": ")[0] for complaint in tally.complaints]
        assert starts == ([] if is_right else ["made up, out", "made up, out across"])


def test_the_judge_reads_exceptions() -> None:
    switch = Switch()

    def raises(kind: type[Exception], words: str) -> None:
        raise kind(words)

    calls: list[tuple[Callable[[], None], bool]] = [
        (lambda: raises(RuntimeError, "at 0x12ab" if switch.is_on else "at 0x99"), True),
        (lambda: raises(RuntimeError, "ours" if switch.is_on else "torch's"), False),
        (lambda: raises(ValueError if switch.is_on else RuntimeError, "the same"), False),
        (lambda: None if switch.is_on else raises(RuntimeError, "only torch's"), False),
        (lambda: raises(RuntimeError, "only ours") if switch.is_on else None, False),
    ]
    for call, is_right in calls:
        tally = Tally()
        judge_error(Error("made up", call), switch.scope, tally)
        assert (not tally.complaints) == is_right
