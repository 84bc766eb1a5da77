"""The ``fedcs`` command. Each package has its own commands, loaded only when one of them is called."""

import sys
from importlib import import_module

import click

from services.errors import FedCSError

_COMMANDS = {
    "up": "operator_api.commands",
    "serve": "operator_api.commands",
    "plan": "operator_api.commands",
    "worker": "trainer_worker.commands",
    "simulate": "client_sim.commands",
    "demo": "client_sim.commands",
    "loadtest": "client_sim.commands",
    "reproduce": "client_sim.commands",
}


class _LazyGroup(click.Group):
    """Finds a command by the name of its module, so that `fedcs serve` never loads torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedcs-operator")
def cli() -> None:
    """Federated learning over a cellular network: select clients, schedule their uploads, train."""


def main() -> None:
    """Run a command; an error the user can mend is one line, not a traceback."""
    try:
        cli(prog_name="fedcs")
    except (FedCSError, OSError) as error:
        click.echo(f"fedcs: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
