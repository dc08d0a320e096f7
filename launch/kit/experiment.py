"""An experiment: a config, `measure`, which yields rows, and views.

def measure(config, folder):
    for radius in config.radii:
        yield {"radius": radius}, lambda K=radius: [{"loss": loss_of(K)}]

EXPERIMENT = Experiment("losses", Config, measure, views=[Table([Column("K", "radius"), Column("loss", "loss", ".3f")])])

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
"""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jexplicit.runs.processes import is_first
from jexplicit.runs.progress import console, show
from launch.kit.command import Preset, run_command
from launch.kit.folder import RunFolder
from launch.kit.rows import Row, read_results, where
from launch.kit.views import Section, Table, View

Part = tuple[Row, Callable[[], Iterable[Row]]]


class Experiment(NamedTuple):
    """An experiment, `python -m launch.NAME`.

    name: of the command, stored in config.json.
    config: a frozen dataclass with the fields `out` and `resume`; its docstring is the first line of the report.
    measure: `(config, folder) -> (key, part) ...`. A part computes some rows, to which the fields of the key are added. A part
        whose key is in a row of the run is skipped, so that a run can be resumed and extended.
    views: of the report, in order.
    presets: named configurations.
    check: refuses a configuration before anything is written; may return a replacement.
    extend: fields of the configuration that a resumed run may change.
    title: of the report.
    after: called with the config and the folder after all parts, before the report.
    """

    name: str
    config: Any
    measure: Callable[[Any, RunFolder], Iterable[Part]]
    views: Sequence[View]
    presets: Mapping[str, Preset] = {}
    check: Callable[[Any], Any] = lambda config: None
    extend: Sequence[str] = ()
    title: str = ""
    after: Callable[[Any, RunFolder], None] = lambda config, folder: None

    def run(self, config: Any) -> dict[str, Any]:
        """Compute missing parts, write the report, and print the first table."""
        start = time.perf_counter()
        config = self.check(config) or config
        folder = RunFolder(config.out, config, resume=config.resume, extend=self.extend, experiment=self.name)
        try:
            for key, part in self.measure(config, folder):
                if not where(folder.rows(), **key):
                    folder.add_rows([{**key, **row, **key} for row in part()])
        except FloatingPointError:  # diverged training
            if folder.rows() and is_first():
                console.print(f"report {self.report(folder.path)}, on the rows before", soft_wrap=True)
            raise
        if not is_first():
            return {}
        self.after(config, folder)
        report, table = self.report(folder.path), first_table(self.views)
        if table and (shown := table.terminal(read_results(folder.path))).row_count:
            show(shown)
        folder.log(event="finished", seconds=(seconds := time.perf_counter() - start))
        console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)
        return {"out": str(folder.path), "seconds": seconds, "rows": folder.rows()}

    def report(self, out: Path) -> Path:
        """Write report.md and the figures from the files of a run only."""
        results = read_results(out)
        about = [inspect.cleandoc(self.config.__doc__ or "").split("\n\n")[0], ""]
        lines = [f"# {self.title or self.name}", "", *about, *(line for view in self.views for line in view(results))]
        path = out / "report.md"
        path.write_text("\n".join([*(line for line, before in zip(lines, ["-", *lines], strict=False) if line or before), ""]))
        return path

    def main(self, argv: Sequence[str] | None = None, *, description: str = "") -> int:
        """Entry point of the command line; see `run_command`."""
        about = description or inspect.cleandoc(self.config.__doc__ or "")
        return run_command(self.run, self.config, presets=self.presets, description=about, argv=argv, experiment=self.name)


def first_table(views: Sequence[View]) -> Table | None:
    """The first table among views, also in sections."""
    for view in views:
        found = first_table(view.views) if isinstance(view, Section) else view
        if isinstance(found, Table):
            return found
    return None
