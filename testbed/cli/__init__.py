"""The command line: parse, call one function, print. Products to stdout, progress to stderr.

Exit status: 0 done, 1 a fault that the user can mend, 2 misuse. Imports that take long are inside
the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

if os.environ.get("SUDO_UID"):
    # Under sudo, bytecode in the user's folders would be left owned by root.
    sys.dont_write_bytecode = True

import typer

from testbed import __version__
from testbed.cli import clusters, experiments, results, scenarios
from testbed.errors import TestbedError

app = typer.Typer(
    name="testbed",
    help="A virtual cluster on one Linux machine that answers: how long will it train?",
    epilog="Start here:  testbed doctor   then   testbed sweep scenarios/quick.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (scenarios, clusters, experiments, results):
    module.register(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"testbed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    del version


def main() -> None:
    """Run the command line; faults a user can mend become one message and exit status 1."""
    signal.signal(signal.SIGTERM, _end_on_sigterm)
    try:
        app()
    except TestbedError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from None


def _end_on_sigterm(number: int, _frame: FrameType | None) -> None:
    # As an exception, so that what was made is removed on the way out.
    raise SystemExit(128 + number)
