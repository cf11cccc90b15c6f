"""One command for a CUDA machine: are the fused kernels right here, how fast is a step, does every arm train?

    python benchmarks/gpu_check.py [--list] [--only accuracy speed ...] [--out benchmarks/gpu_check.md]

Needs torch, triton and the kernel packages (mamba-ssm, causal-conv1d, flash-linear-attention), in whatever versions the
machine has, and nothing else of this repository's dependencies but numpy. A section that cannot run says what is
missing; one that fails says why, and the others still run. Takes a few minutes on one GPU. Writes a dated Markdown
report whose first line says what ran. The exit code is 1 if anything failed.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Run as a file, Python puts benchmarks/ first on the path, where markdown.py would hide the library of that name.
sys.path[0] = str(ROOT)

PACKAGES = ("torch", "triton", "mamba-ssm", "causal-conv1d", "flash-linear-attention", "fla-core", "numpy")
MODULES = {
    "torch": "torch",
    "triton": "triton",
    "mamba_ssm": "mamba-ssm",
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "numpy": "numpy",
}
"""Module -> what to install for it."""
KERNELS = ("torch", "numpy", "triton", "mamba_ssm", "causal_conv1d", "fla")


@dataclass(frozen=True)
class Section:
    """One part of the check."""

    name: str
    title: str
    about: str
    modules: tuple[str, ...]
    gpus: int
    run: Callable[[], tuple[str, bool]]
    """Returns Markdown, and whether all of it is as it should be."""


def _accuracy() -> tuple[str, bool]:
    from benchmarks.gpu_kernels import accuracy

    return accuracy()


def _speed() -> tuple[str, bool]:
    from benchmarks.gpu_steps import speed

    return speed()


def _passing() -> tuple[str, bool]:
    from benchmarks.gpu_arms import passing

    return passing()


def _arms() -> tuple[str, bool]:
    from benchmarks.gpu_arms import arms

    return arms()


def _several() -> tuple[str, bool]:
    from benchmarks.gpu_steps import several_gpus

    return several_gpus()


SECTIONS = (
    Section(
        "accuracy",
        "Every fused path against `naive` in float64",
        "each architecture, fp32 and bf16, T = 7, 64, 200 and 300, from a given state: outputs, final state, gradients",
        KERNELS,
        1,
        _accuracy,
    ),
    Section(
        "speed",
        "Tokens a second beside a bare loop on the raw kernels",
        "forward, backward and loss in bf16; published sizes; aim: at least 95 % of the bare loop",
        KERNELS,
        1,
        _speed,
    ),
    Section(
        "passing",
        "A step with state passing over a step from zero state",
        "mamba2-130m in bf16, states kept on the device, medians of alternating steps",
        KERNELS,
        1,
        _passing,
    ),
    Section(
        "arms", "Every arm for 20 steps", "demo size, fused kernels: losses stay finite and fall",
        KERNELS, 1, _arms,
    ),
    Section(
        "several", "One GPU and all of them", "data-parallel steps of mamba2-130m, one process a GPU (torch DDP, nccl)",
        KERNELS, 2, _several,
    ),
)  # fmt: skip


def missing(section: Section) -> str:
    """What keeps a section from running here, as a sentence; empty if nothing does."""
    lacking = [MODULES[module] for module in section.modules if importlib.util.find_spec(module) is None]
    if lacking:
        return f"not run: {', '.join(lacking)} missing (pip install --no-deps {' '.join(lacking)})"
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "" if found >= section.gpus else f"not run: it needs {section.gpus} CUDA GPU(s), and {found} can be seen"


def run_section(section: Section) -> tuple[str, str]:
    """(state, Markdown) of a section: `passed`, `FAILED` or `not run`."""
    if lack := missing(section):
        return "not run", f"{lack}\n"
    started = time.perf_counter()
    try:
        text, right = section.run()
    except Exception as error:  # a kernel may raise anything; the other sections still have something to say
        traceback.print_exc()
        text, right = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}\n", False
    return "passed" if right else "FAILED", f"{text}\n{time.perf_counter() - started:.0f} s\n"


def machine() -> str:
    """GPU, driver side of CUDA, and versions."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} missing")
    gpu = "no GPU"
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            gpu = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"{gpu}; Python {sys.version.split()[0]}, {', '.join(versions)}"


def report(sections: Sequence[Section], out: Path) -> bool:
    """Run sections, write the report after each, and return whether none failed."""
    done: list[tuple[Section, str, str]] = []
    for section in sections:
        print(f"{section.name}: {section.title} ...", flush=True)
        state, text = run_section(section)
        print(f"{text}{section.name}: {state}", flush=True)
        done.append((section, state, text))
        out.write_text(_page(done, [one for one in sections if one not in [two for two, _, _ in done]]))
    print(f"report: {out}")
    return all(state != "FAILED" for _, state, _ in done)


def _page(done: Sequence[tuple[Section, str, str]], coming: Sequence[Section]) -> str:
    states = ", ".join([f"{one.name} {state}" for one, state, _ in done] + [f"{one.name} not run" for one in coming])
    command = " ".join(["python benchmarks/gpu_check.py", *sys.argv[1:]])
    head = f"# GPU check: {states}\n\n{datetime.date.today().isoformat()}, {machine()}\n\n    {command}\n"
    parts = [f"\n## {one.title}: {state}\n\n{one.about}\n\n{text}" for one, state, text in done]
    return head + "".join(parts)


def main() -> int:
    """Run the sections that are asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [section.name for section in SECTIONS]
    parser.add_argument("--list", action="store_true", help="say what would run here and what is missing, and stop")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "gpu_check.md", help="the report")
    options = parser.parse_args()
    chosen = [section for section in SECTIONS if section.name in options.only]
    if not options.list:
        return 0 if report(chosen, options.out) else 1
    print(machine())
    for section in chosen:
        print(f"{section.name}: {section.title}: {section.about}; {missing(section) or 'can run here'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
