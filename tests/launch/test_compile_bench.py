"""The bench that compiles for described accelerators: what it reads from a program, and what it refuses.

Their compilers are not needed: programs are written by hand, in the forms of both.
"""

import importlib.util
import json

import pytest

from launch.bench import compile as bench
from launch.bench.compile import HOT_FUNCTIONS, count_kernels

pytestmark = pytest.mark.slow

LOOP = """
%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %n = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8,4]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %e = f32[8,4]{1,0:T(8,128)} exponential(%x)
  ROOT %t = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) tuple(%n, %e)
}

%condition (q: (s32[], f32[8,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  %q = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %m = s32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %lt = pred[]{:T(512)} compare(%m, %limit), direction=LT
}

ENTRY %main (z: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %z = (s32[], f32[8,4]) parameter(0)
  ROOT %w = (s32[], f32[8,4]) while(%z), condition=%condition, body=%body
}
"""
BRANCHES = """
%one (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %e = f32[4]{0} exponential(%x)
}

%two (y: f32[4]) -> f32[4] {
  %y = f32[4]{0} parameter(0)
  %f = f32[4]{0} exponential(%y)
  ROOT %g = f32[4]{0} fusion(%f), kind=kLoop, calls=%one
}

ENTRY %main (n: s32[], z: f32[4]) -> f32[4] {
  %n = s32[] parameter(0)
  %z = f32[4]{0} parameter(1)
  ROOT %c = f32[4]{0} conditional(%n, %z, %z), branch_computations={%one, %two}
}
"""


def test_a_loop_counts_as_often_as_it_runs_and_of_branches_the_largest():
    assert count_kernels(LOOP) == 6 and count_kernels(BRANCHES) == 2
    assert count_kernels(LOOP.replace("=LT", "=NE")) == 1  # once where its number of trips is not in the program


def test_more_kernels_than_before_are_an_error_with_the_function():
    row = {"function": "counting", "platform": "h100", "kernels": 5}
    bench.check_kernels([{**row, "baseline": 5}, {**row, "baseline": None}])
    with pytest.raises(ValueError, match="more kernels on h100 than before: counting 5 instead of 4; fix these functions"):
        bench.check_kernels([{**row, "baseline": 4}])


def test_every_hot_function_has_kernels_on_every_platform():
    kept = json.loads(bench.BASELINE.read_text())
    assert set(kept) == set(bench.PLATFORMS)
    assert all(set(kernels) == set(HOT_FUNCTIONS) and min(kernels.values()) > 0 for kernels in kept.values())


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="the compiler is installed")
def test_a_missing_compiler_is_named():
    with pytest.raises(ValueError, match=r"platform v5e: no compiler for it is installed; pip install -e '\.\[compile\]'"):
        bench.described_mesh("v5e")
