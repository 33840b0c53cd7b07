"""Commands on results: ``plots``, ``report``, ``export``; and ``data`` for what is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path, typer.Argument(help="A sweep's folder.", envvar="TESTBED_RESULTS", exists=True)
]
QUICK = Path("results/quick")

data = typer.Typer(help="Data sets: fetched, verified, kept in the cache.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (plots, report, export):
        app.command()(command)
    app.add_typer(data, name="data")


def plots(folder: Folder = QUICK) -> None:
    """Draw a sweep's figures again, from its records alone.

    Example:  testbed plots results/quick
    """
    from testbed.analysis.figures import draw_all
    from testbed.experiment import store

    for figure in draw_all(store.records(folder), folder / "figures"):
        for path in figure.paths:
            typer.echo(path)


def report(folder: Folder = QUICK) -> None:
    """Draw the figures and write report.html again, from the records alone.

    Example:  testbed report results/quick
    """
    write_products(folder)


def write_products(folder: Path) -> None:
    """Write figures and report of a sweep's folder, and print where the report is."""
    from testbed.analysis.report import write_report

    typer.echo(write_report(folder))


def export(
    folder: Folder = QUICK,
    file: Annotated[Path | None, typer.Option("--to", help="Default: FOLDER/trials.csv.")] = None,
) -> None:
    """Write all records of a sweep as one CSV table, a row per attempt.

    Example:  testbed export results/quick --to quick.csv
    """
    from testbed.experiment import store

    typer.echo(store.export_csv(store.records(folder), file or folder / "trials.csv"))


@data.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="fashion-mnist, mnist.", metavar="NAME...")],
) -> None:
    """Fetch data sets and check every byte; nothing else is ever taken in their place.

    Example:  testbed data fetch mnist
    """
    from testbed.cli.screen import say
    from testbed.errors import DataError
    from testbed.workload.data.fetch import default_cache_dir
    from testbed.workload.data.fetch import fetch as fetch_one
    from testbed.workload.data.published import DataFault

    for name in names:
        try:
            found = fetch_one(name, default_cache_dir(), log=say)
        except DataFault as error:
            raise DataError(str(error)) from error
        typer.echo(found.folder)
