"""The words of benchmarks, without torch: suites, opponents, and how a product is written."""

from importlib import resources
from typing import Final, Literal, get_args

Opponent = Literal["torch", "torch-tf32", "torch-compile", "triton"]
OPPONENTS: Final[tuple[Opponent, ...]] = get_args(Opponent)

SUITES_FOLDER: Final = resources.files("tilesmith") / "bench" / "suites"
SUITES: Final = tuple(sorted(f.name.removesuffix(".toml") for f in SUITES_FOLDER.iterdir() if ".toml" in f.name))

SYNTAX: Final = "MxKxN[:LAYOUT][:BATCH]"
LAYOUTS: Final = ("nn", "nt", "tn", "tt")  # A's, then B's: n for rows, t for stored transposed

SECONDS: Final = 4.0  # that a product is timed, at most


def opponents(text: str) -> tuple[Opponent, ...]:
    """The opponents that a list with commas names, in our order. ValueError for one that is not there.

    >>> opponents("triton, torch")
    ('torch', 'triton')
    """
    chosen = [name.strip() for name in text.split(",")]
    if unknown := [name for name in chosen if name not in OPPONENTS]:
        raise ValueError(f"{', '.join(map(repr, unknown))}: choose from {', '.join(OPPONENTS)}")
    return tuple(name for name in OPPONENTS if name in chosen)
