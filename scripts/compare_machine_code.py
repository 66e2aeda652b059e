"""Proves that a change of the sources changes neither an instruction nor what a kernel is launched with.

    PYTHONPATH=src python3 scripts/compare_machine_code.py record FILE [--limit N]    # in the tree before, and after
    PYTHONPATH=src python3 scripts/compare_machine_code.py compare BEFORE AFTER       # exits with 1 if they differ

With --moved-parameters, plans may have other names, and parameters other places; all else must be the same.

`record` plans products of every family, type and layout, compiles each kernel once and writes what there is to compare,
as compressed JSON. It needs no GPU. What it has compiled is kept in a temporary folder, so that it can be interrupted.
The code is compared to the bit, and what the driver is told of it; but not the names of symbols, functions, sections
and files, which may change, nor data that no instruction reads. The offsets of parameters in the constant bank are in
the code. A plan is known by its product and its place among the candidates. Both records must come from the same NVRTC.
"""

import argparse
import gzip
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from products_to_compare import Case, cases

from tilesmith.core import device
from tilesmith.core.epilogue import Epilogue
from tilesmith.core.plan import KernelLaunch, Plan
from tilesmith.core.problem import Problem
from tilesmith.kernels.simt import family as simt
from tilesmith.planner import candidates, choose, packing
from tilesmith.runtime import compiler, source

Json = dict[str, Any]
KEPT = Path(tempfile.gettempdir(), f"tilesmith_machine_code_{os.getuid()}")


# All that knows the package. What is renamed there is renamed here, and nowhere below.


def _plans(case: Case) -> Iterator[tuple[str, Plan]]:
    """The plan that is chosen, and a few of the others, by their place among the candidates."""
    gpu = device.named(case.gpu)
    problem = Problem.of(
        case.a,
        case.b,
        accuracy=case.accuracy,
        out_dtype=case.out_dtype,
        out=case.out,
        packed=("a" in case.packed, "b" in case.packed),
        may_mix=True,
        skips_zeros=case.skips_zeros,
        epilogue=Epilogue(*case.epilogue) if case.epilogue else None,
    )
    chosen = choose(problem, gpu)
    yield "chosen", chosen
    if len(case.packed) == 1 and (packed := packing(problem, gpu)):
        yield "packing", packed
    if case.adds:
        plan = simt.plan(problem, gpu, next(tile for tile in simt.TILES[4] if tile.wide_index))
        for i, kernel in enumerate(simt.general_kernels(gpu)):
            yield f"adding {i}", replace(plan, launches=(plan.product._replace(kernel=kernel),))
    legal = candidates(problem, gpu)
    first = int(hashlib.sha256(case.key.encode()).hexdigest()[:8], 16)
    for i in sorted({(first + j * len(legal) // case.further) % len(legal) for j in range(case.further)}):
        if legal[i].name != chosen.name:
            yield f"candidate {i} of {len(legal)}", legal[i].plan()


def _launches(plan: Plan) -> tuple[KernelLaunch, ...]:
    return plan.launches


def _text(launch: KernelLaunch) -> str:
    return source.render(launch.kernel)


def _facts(plan: Plan) -> Json:
    return {"name": plan.name, "workspace_bytes": plan.workspace_bytes}


def _launch_facts(launch: KernelLaunch) -> Json:
    """All that a launch is, but for its kernel."""
    parameters = launch.parameters
    arguments = parameters.packed()
    return {
        "grid": list(launch.grid),
        "threads": launch.kernel.threads,
        "cluster": launch.cluster,
        "dynamic_shared_bytes": launch.kernel.shared_bytes,
        "awaits_predecessor": launch.awaits_predecessor,
        "arguments": [arguments[i : i + 8].hex() for i in range(0, len(arguments), 8)],
        "addresses": [[position, each.buffer, each.offset] for position, each in parameters.addresses()],
        "tensor_maps": [
            [position, m.buffer, m.offset, str(m.dtype), list(m.sizes), list(m.strides), list(m.box), m.line_bytes]
            for position, m in parameters.tensor_maps()
        ],
    }


def _arch(plan: Plan) -> str:
    return plan.device.arch


def _compiled(text: str, arch: str) -> tuple[bytes, str]:
    """The cubin, and what ptxas says of it."""
    return compiler._compile(text, arch, "--ptxas-options=-v")


def _inputs() -> tuple[object, ...]:
    """All that the code of a kernel depends on besides its own text, the GPU and the compiler."""
    return compiler.OPTIONS, source.headers()


# What there is to compare of a kernel.


def _toolchain() -> list[str]:
    return [f"{name} {importlib.metadata.version(name)}" for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvdisasm")]


def _sections(cubin: bytes) -> dict[str, bytes]:
    """Of a cubin, which is an ELF file."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, of_names = struct.unpack_from("<3H", cubin, 58)
    found = [struct.unpack_from("<2I4Q", cubin, headers + i * size) for i in range(count)]
    names = cubin[found[of_names][4] :]
    return {names[n : names.index(b"\0", n)].decode(): cubin[at : at + length] for n, _, _, _, at, length in found}


def _attributes(content: bytes) -> Iterator[str]:
    """What the driver is told of a kernel: the most threads, the size of its parameters and the like."""
    at = 0
    while at < len(content):
        form, attribute, size = struct.unpack_from("<2BH", content, at)
        value = content[at + 4 : at + 4 + size] if form == 4 else content[at + 2 : at + 4]
        at += 4 + (size if form == 4 else 0)
        if attribute != 0x0A:  # the number of a section
            yield f"attribute {attribute:#04x} {value.hex()}"


def _disassembled(code: bytes, arch: str) -> list[str]:
    """An instruction in a line: its address, its text, in which targets are addresses too, and its bits."""
    nvdisasm = importlib.metadata.distribution("nvidia-cuda-nvdisasm").locate_file("nvidia/cu13/bin/nvdisasm")
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        command = [str(nvdisasm), "-ndf", "-hex", "--binary", arch.replace("sm_", "SM"), file.name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s*/\* (0x[0-9a-f]{16}) \*/\s+/\* (0x[0-9a-f]{16}) \*/"
    lines = [" ".join(found) for found in re.findall(pattern, output)]
    if 16 * len(lines) != len(code):
        raise SystemExit(f"{len(code)} bytes of machine code are not {len(lines)} instructions")
    return lines


def _kept(key: list[object], make: Callable[..., Any], *arguments: object) -> Any:
    """What a function makes of its arguments, from the folder if that was made before, of what the key says."""
    sources = json.dumps([_toolchain(), *key], sort_keys=True).encode()
    path = KEPT / f"{hashlib.sha256(sources).hexdigest()}.json.gz"
    if not path.exists():
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(gzip.compress(json.dumps(make(*arguments)).encode(), mtime=0))
        os.replace(aside, path)
    return json.loads(gzip.decompress(path.read_bytes()))


def _kernel(text: str, arch: str) -> Json:
    """The code of a kernel and what it takes of the machine."""
    cubin, log = _compiled(text, arch)
    sections = _sections(cubin)
    (code,) = (content for name, content in sections.items() if name.startswith(".text."))
    lines: list[str] = _kept([arch, code.hex()], _disassembled, code, arch)
    # Bank 4 and relocations have addresses of data, whose names and order may change. No kernel may need them.
    relocated = any(content for name, content in sections.items() if re.match(r"\.rela?\.text", name))
    if relocated or any("c[0x4]" in line for line in lines):
        raise SystemExit(f"a kernel reads data by its address, which is not compared:\n{text}")
    for name, content in sorted(sections.items()):
        bank = re.match(r"\.nv\.constant([23])", name)
        if bank and any(f"c[0x{bank[1]}]" in line for line in lines):
            lines.append(f"literals {content.hex()}")
        elif name.startswith(".nv.info."):
            lines += _attributes(content)
    used = re.search(r"Used (\d+) registers(?:, used (\d+) barriers)?", log)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    shared = re.search(r"(\d+) bytes smem", log)
    if used is None or stack is None:
        raise SystemExit(f"ptxas did not report the kernel's resources:\n{log}")
    return {
        "code": lines,
        "resources": {
            "sass_sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            "instructions": len(code) // 16,
            "registers": int(used[1]),
            "barriers": int(used[2] or 0),
            "static_shared_bytes": int(shared[1]) if shared else 0,
            "stack_bytes": int(stack[1]),
            "spill_store_bytes": int(stack[2]),
            "spill_load_bytes": int(stack[3]),
        },
    }


def record(file: Path, limit: int | None) -> None:
    """Writes what there is to compare of this tree."""
    started = time.monotonic()
    KEPT.mkdir(exist_ok=True)
    plans: dict[str, Json] = {}
    kernels: dict[tuple[str, str], Json] = {}
    code: dict[str, list[str]] = {}
    families: Counter[str] = Counter()
    todo = [(f"{case.key}: {which}", plan) for case in cases() for which, plan in _plans(case)]
    todo = todo[:: max(len(todo) // limit, 1)][:limit] if limit else todo
    for i, (key, plan) in enumerate(todo, 1):
        launches = []
        for launch in _launches(plan):
            text, arch = _text(launch), _arch(plan)
            if (text, arch) not in kernels:
                kernel = _kept([arch, text, _inputs()], _kernel, text, arch)
                kernels[text, arch] = kernel["resources"]
                code[kernel["resources"]["sass_sha256"]] = kernel["code"]
            launches.append({**kernels[text, arch], **_launch_facts(launch)})
        if key in plans:
            raise SystemExit(f"two plans are called {key}")
        plans[key] = {**_facts(plan), "launches": launches}
        name = plans[key]["name"]
        families[name.split()[0]] += 1
        print(f"{i}/{len(todo)} {len(kernels)} kernels {time.monotonic() - started:.0f} s {name}", flush=True)
    content = {"toolchain": _toolchain(), "plans": plans, "code": code}
    file.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    launched = sum(len(plan["launches"]) for plan in plans.values())
    print(f"{len(plans)} plans {dict(families)}, {launched} launches, {len(kernels)} kernels: {file}")


def _differences(before: object, after: object, at: str = "") -> Iterator[str]:
    """Where two values of JSON are not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from _differences(before.get(name), after.get(name), f"{at} {name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (x, y) in enumerate(zip(before, after, strict=True)):
            yield from _differences(x, y, f"{at} {i}")
    elif before != after:
        yield f"{at}: {before} -> {after}".lstrip()


def _without_places(record: Json) -> Json:
    """A record without the names of plans, and without what depends on where parameters are."""

    def masked(line: str) -> str:
        address, _, text = line.partition(" ")
        return f"{address} {re.sub(r'c.0x0..0x[0-9a-f]+..*', 'a parameter', text)}" if "c[0x0]" in line else line

    kept = {name: [masked(x) for x in lines if "attribute" not in x] for name, lines in record["code"].items()}
    renamed = {name: hashlib.sha256("\n".join(lines).encode()).hexdigest() for name, lines in kept.items()}
    for plan in record["plans"].values():
        del plan["name"]
        for launch in plan["launches"]:
            del launch["arguments"]
            launch["sass_sha256"] = renamed[launch["sass_sha256"]]
            launch["tensor_maps"] = [each[1:] for each in launch["tensor_maps"]]
            launch["addresses"] = sorted(each[1:] for each in launch["addresses"])
    return {**record, "code": {renamed[name]: lines for name, lines in kept.items()}}


def _first_difference(before: list[str], after: list[str]) -> str:
    """Of two codes that are not the same."""
    pairs = itertools.zip_longest(before, after, fillvalue="the end")
    return next(f"first: {x}  ->  {y}" for x, y in pairs if x != y)


def compare(before: Path, after: Path, *, moved_parameters: bool = False) -> bool:
    """Prints where two records differ, and returns whether they do."""
    old, new = (json.loads(gzip.decompress(path.read_bytes())) for path in (before, after))
    if moved_parameters:
        old, new = _without_places(old), _without_places(new)
    if old["toolchain"] != new["toolchain"]:
        print(f"These are of different compilers: {old['toolchain']} and {new['toolchain']}")
        return True
    different, codes = 0, set()
    for key in {**old["plans"], **new["plans"]}:
        x, y = old["plans"].get(key), new["plans"].get(key)
        if x == y:
            continue
        different += 1
        print(key)
        if x is None or y is None:
            print(f"    only in {after if x is None else before}")
            continue
        print(*(f"    {difference}" for difference in _differences(x, y)), sep="\n")
        for each, other in zip(x["launches"], y["launches"], strict=False):
            pair = each["sass_sha256"], other["sass_sha256"]
            if pair[0] != pair[1]:
                print(f"    {_first_difference(old['code'][pair[0]], new['code'][pair[1]])}")
                codes.add(pair)
    print(f"{different} of {len(old['plans'])} plans differ, and {len(codes)} of {len(old['code'])} codes")
    return different > 0


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--limit", type=int)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--moved-parameters", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "compare":
        sys.exit(int(compare(arguments.before, arguments.after, moved_parameters=arguments.moved_parameters)))
    record(arguments.file, arguments.limit)


if __name__ == "__main__":
    main()
