"""A covariance matrix is factored in float32, and a system of equations solved with it.

    python examples/solve.py [--size 8192] [--block 1024]

The Cholesky factorisation is blocked and right-looking, in lines of plain torch: nearly all of its work is
`trailing -= panel @ panel.T`. With TF32 that is fast, but the solution has two or three digits, and there is none where
a matrix rounded so is no longer positive definite. With `tilesmith.override` it is fast, and as exact as in float32.
The residual |A - L L^T| / |A| and the error of the solution are measured in float64.
"""

import argparse

import torch
from side_by_side import device, machine, milliseconds, ours, relative_error, torchs_fp32, torchs_tf32

WAYS = {"torch fp32": torchs_fp32, "torch TF32": torchs_tf32, "tilesmith": ours}


def covariance(size: int, device: torch.device) -> torch.Tensor:
    """Of measurements that have as many common causes as there are of them, most of which are weak, and some noise."""
    causes = torch.randn(size, size, dtype=torch.float64, device=device)
    strengths = torch.logspace(0, -4, size, dtype=torch.float64, device=device)
    return (causes * strengths @ causes.T / size + 1e-3 * torch.eye(size, device=device)).float()


def cholesky(matrix: torch.Tensor, block: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """The lower factor; the panels, whose products were taken; and whether the matrix turned out not to be positive
    definite, as a tensor, so that nobody waits for it."""
    lower = matrix.clone()
    panels = []
    failures = []
    for start in range(0, len(matrix), block):
        here, below = slice(start, start + block), slice(start + block, None)
        diagonal, failure = torch.linalg.cholesky_ex(lower[here, here])
        lower[here, here] = diagonal
        failures.append(failure)
        if start + block < len(matrix):
            panel = torch.linalg.solve_triangular(diagonal.T, lower[below, here], upper=True, left=False)
            lower[below, here] = panel
            lower[below, below] -= panel @ panel.T
            panels.append(panel)
    return lower.tril_(), panels, torch.stack(failures).any()


def main() -> None:
    parser = argparse.ArgumentParser(description="A blocked Cholesky factorisation in float32, and a system solved.")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--block", type=int, default=1024)
    parser.add_argument("--small", action="store_true", help="96 equations, by emulated kernels on the CPU")
    arguments = parser.parse_args()
    size, block, rounds = (96, 32, 1) if arguments.small else (arguments.size, arguments.block, 15)

    torch.manual_seed(0)
    with device(arguments.small) as on:
        matrix = covariance(size, on)
        solution = torch.randn(size, 1, dtype=torch.float64, device=on)
        right_side = (matrix.double() @ solution).float()
        with torchs_fp32():
            _, panels, _ = cholesky(matrix, block)
        whole = milliseconds(lambda: cholesky(matrix, block), WAYS, on, calls=1, rounds=rounds)
        products = milliseconds(lambda: [panel @ panel.T for panel in panels], WAYS, on, calls=1, rounds=rounds)

        print(f"{machine(on)}: {size} equations in blocks of {block}")
        print(f"{'':12} {'ms':>9} {'ratio':>6} {'products ms':>12} {'ratio':>6}  residual  error of the solution")
        residuals = {}
        for name, way in WAYS.items():
            ratios = whole["torch fp32"] / whole[name], products["torch fp32"] / products[name]
            times = f"{whole[name]:9.2f} {ratios[0]:6.2f} {products[name]:12.2f} {ratios[1]:6.2f}"
            with way():
                lower, _, has_failed = cholesky(matrix, block)
                solved = torch.cholesky_solve(right_side, lower)
            if has_failed:
                print(f"{name:12} {times}  none: rounded so, the matrix is not positive definite")
                continue
            residuals[name] = relative_error(lower.double() @ lower.double().T, matrix.double())
            print(f"{name:12} {times}  {residuals[name]:8.1e}  {relative_error(solved, solution):.1e}")
        if not residuals.get("tilesmith", float("nan")) <= 1.1 * residuals["torch fp32"]:
            raise SystemExit("the residual is larger than with torch's float32")


if __name__ == "__main__":
    main()
