"""Programs that JAX compiles, by file of tests; `make test` fails above LIMIT programs.

A program counts when a process needs it for the first time, compiled or read from a cache of an earlier run.
"""

import collections

import jax
import pytest

LIMIT = 2_600  # of a run without slow tests, of which 2,428 were seen; a commit may only lower it
KEPT = 2_500  # by one process at a time
EVENT = "/jax/core/compile/backend_compile_duration"
_compiled = {"new": 0, "kept": 0}  # since the last report of this process, and since it dropped them
_of_file = collections.Counter[str]()


def listen() -> None:
    """Count in this process from now on."""

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        for kind in _compiled:
            _compiled[kind] += event == EVENT

    jax.monitoring.register_event_duration_secs_listener(count)


def too_many() -> bool:
    """Whether this process keeps more compiled programs than it should, some gigabytes of them; true once."""
    over = _compiled["kept"] > KEPT
    _compiled["kept"] = 0 if over else _compiled["kept"]
    return over


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file that compiles something when it is imported fails: every worker imports every file."""
    before = _compiled["new"]
    report = yield
    if isinstance(collector, pytest.Module) and _compiled["new"] > before:
        report.outcome, report.result = "failed", []
        report.longrepr = f"{collector.path} compiles programs when it is imported: use a fixture"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """What was compiled since the last report travels with this one, from a worker to the process that prints."""
    item.user_properties.append(("programs", _compiled["new"]))
    _compiled["new"] = 0


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        _of_file[report.nodeid.split("::")[0]] += sum(n for name, n in report.user_properties if name == "programs")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section(f"{_of_file.total()} programs compiled, at most {LIMIT} without slow tests")
    for name, programs in _of_file.most_common(10):
        terminalreporter.write_line(f"{programs:8d} {name}")


def pytest_sessionfinish(session):
    short = session.config.option.markexpr == "not slow" and not hasattr(session.config, "workerinput")
    if short and _of_file.total() > LIMIT:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
