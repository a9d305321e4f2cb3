"""Every twin gives what its reference gives, on every size of its spec, and writes nowhere else."""

import os
import random

import pytest
import torch

from kvlab.ops import SPECS, OpSpec
from kvlab.ops.specs import Sizes
from tests.ops.sizes import SIZES
from tests.ops.support import assert_same, cases, needs_interpreter, run_guarded


def fresh_seed() -> int:
    """Another one in each run, but in CI; shown when the test fails."""
    seed = 1 if os.environ.get("CI") else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    return seed


CASES = [case for spec in SPECS for case in cases(spec)]


@needs_interpreter
@pytest.mark.parametrize(("spec", "sizes"), CASES)
def test_the_interpreted_twin_gives_what_the_reference_gives(spec: OpSpec, sizes: Sizes) -> None:
    seed = fresh_seed()
    wanted = run_guarded(spec, sizes, seed, "cpu", twin=False)
    assert_same(spec, run_guarded(spec, sizes, seed, "cpu", twin=True), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize(("spec", "sizes"), CASES)
def test_the_compiled_twin_gives_what_the_reference_gives_on_the_cpu(
    spec: OpSpec, sizes: Sizes
) -> None:
    seed = fresh_seed()
    wanted = run_guarded(spec, sizes, seed, "cpu", twin=False)
    found = run_guarded(spec, sizes, seed, "cuda", twin=True)
    assert_same(spec, [output.cpu() for output in found], wanted)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_spec_makes_equal_inputs_of_equal_seeds(spec: OpSpec) -> None:
    sizes = SIZES[spec.name][len(SIZES[spec.name]) // 2]
    first, second = (run_guarded(spec, sizes, 5, "cpu", twin=False) for _ in range(2))
    assert_same(spec, first, second)
    other = run_guarded(spec, sizes, 6, "cpu", twin=False)
    assert any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, other, strict=True)
    )
    assert spec.bytes_moved(spec.make_inputs(sizes, 5, "cpu")) > 0


def test_the_specs_go_through_every_rank_count_and_empty_inputs() -> None:
    for spec in SPECS:
        counts = {int(sizes["dcp_size"]) for sizes in SIZES[spec.name] if "dcp_size" in sizes}
        assert counts in (set(), set(range(1, 9)))
        assert any(0 in sizes.values() for sizes in SIZES[spec.name])
