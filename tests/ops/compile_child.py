"""Run as a program: compile every kernel for a CUDA target, with no GPU, on the specs' own inputs.

The interpreter takes things that the compiler refuses. Here each launch of each twin becomes a
compilation for the named target and nothing runs. Prints one line a kernel: name and how often.
"""

import sys
from collections import Counter
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from kvlab.ops import SPECS, backend
from tests.ops.sizes import SIZES

CAPABILITY = 90


class Driver:
    """As much of a driver as a compilation asks for."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> int:
    triton.runtime.driver.set_active(Driver())
    compiled: Counter[str] = Counter()
    run = triton.runtime.JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> None:
        kernel = run(self, *args, **{**options, "warmup": True})
        assert ".target sm_90" in kernel.asm["ptx"]
        compiled[self.fn.__name__] += 1

    triton.runtime.JITFunction.run = compile_only
    backend.choose = lambda *_: "triton"
    for spec in SPECS:
        module = sys.modules[spec.op.__module__]
        module.choose = lambda *_: "triton"  # type: ignore[attr-defined]
        for sizes in SIZES[spec.name][2 :: len(SIZES[spec.name]) // 2]:
            spec.run(spec.make_inputs(sizes, 1, "cpu"), "triton")
    for name, times in sorted(compiled.items()):
        print(name, times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
