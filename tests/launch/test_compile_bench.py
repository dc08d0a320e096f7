"""The bench that compiles for described accelerators: what it reads from a program, and what it refuses.

Their compilers are not needed: programs are written by hand, in the forms of both.
"""

import importlib.util
import json

import pytest

from launch.bench import compile as bench
from launch.bench.hlo import Work, program_work
from launch.bench.hot_functions import HOT_FUNCTIONS
from launch.bench.run import main

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
  ROOT %lt = pred[]{:T(512)} compare(%m, %limit), direction=DIRECTION
}

ENTRY %main (z: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %z = (s32[], f32[8,4]) parameter(0)
  ROOT %w = (s32[], f32[8,4]) while(%z), condition=%condition, body=%body
}
"""
ROWS = """
%fused (a: f32[1000,4], b: s32[2]) -> f32[2,4] {
  %a = f32[1000,4]{1,0} parameter(0)
  %b = s32[2]{0} parameter(1)
  ROOT %g = f32[2,4]{1,0} gather(%a, %b), offset_dims={1}
}

%add (l: f32[], r: f32[]) -> f32[] {
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %s = f32[] add(%l, %r)
}

ENTRY %main (table: f32[1000,4], rows: s32[2]) -> f32[1000,4] {
  %table = f32[1000,4]{1,0} parameter(0)
  %rows = s32[2]{0} parameter(1)
  %read = f32[2,4]{1,0} fusion(%table, %rows), kind=kLoop, calls=%fused
  ROOT %out = f32[1000,4]{1,0} scatter(%table, %rows, %read), to_apply=%add
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
  ROOT %g = f32[4]{0} exponential(%f)
}

ENTRY %main (n: s32[], z: f32[4]) -> f32[4] {
  %n = s32[] parameter(0)
  %z = f32[4]{0} parameter(1)
  ROOT %c = f32[4]{0} conditional(%n, %z, %z), branch_computations={%one, %two}
}
"""


def test_a_loop_counts_as_often_as_it_runs():
    assert program_work(LOOP.replace("DIRECTION", "LT")) == Work(6, 6 * 2 * 8 * 4 * 4)
    with pytest.raises(ValueError, match="loop w: its number of trips is not known"):
        program_work(LOOP.replace("DIRECTION", "NE"))


def test_rows_of_a_table_count_not_the_table():
    row_ids, rows = 2 * 4, 2 * 4 * 4
    assert program_work(ROWS) == Work(2, (rows + row_ids + rows) + (rows + row_ids + rows + rows))


def test_of_branches_the_largest_counts():
    assert program_work(BRANCHES) == Work(2, 4 * 4 * 4)


def test_more_kernels_than_before_are_an_error_with_the_function():
    row = bench.function_row("counting", "h100", Work(5, 0))
    bench.check_kernels([{**row, "baseline": 5}, {**row, "baseline": None}])
    with pytest.raises(ValueError, match="more kernels on h100 than before: counting 5 instead of 4; fix these functions"):
        bench.check_kernels([{**row, "baseline": 4}])


def test_every_hot_function_has_kernels_and_bytes_on_every_platform():
    kept = json.loads(bench.BASELINE.read_text())
    assert set(kept) == set(bench.PLATFORMS)
    assert all(set(of_platform) == set(HOT_FUNCTIONS) for of_platform in kept.values())
    assert all(set(row) == set(Work._fields) and min(row.values()) > 0 for rows in kept.values() for row in rows.values())


def test_unknown_functions_and_missing_compilers_are_refused(tmp_path, capsys):
    assert main(["compile", "--functions", "sorting", "--out", str(tmp_path / "run")]) == 2
    assert "sorting: choose from counting" in " ".join(capsys.readouterr().err.split())
    if not importlib.util.find_spec("libtpu"):
        with pytest.raises(ValueError, match=r"platform v5e: no compiler for it is installed; pip install -e '\.\[compile\]'"):
            bench.described_mesh("v5e")
    assert not (tmp_path / "run").exists()
