"""The ``fedcs`` command. Each package has its own commands, loaded only when one of them is called."""

import sys
from difflib import get_close_matches
from importlib import import_module

import click

from services.errors import FedCSError
from services.escaping import escape_unprintable

_COMMANDS = {
    "up": "operator_api.commands",
    "serve": "operator_api.commands",
    "plan": "operator_api.commands",
    "status": "operator_api.commands",
    "worker": "trainer_worker.commands",
    "simulate": "client_sim.commands",
    "demo": "client_sim.commands",
    "loadtest": "client_sim.commands",
    "reproduce": "client_sim.commands",
}


_EXTRAS = {"operator_api": "server", "trainer_worker": "trainer", "client_sim": "simulator"}
"""What has to be installed for the commands of each package."""


class _LazyGroup(click.Group):
    """Finds a command by the name of its module, so that `fedcs serve` never loads torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and (near := get_close_matches(args[0], _COMMANDS, n=1)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedcs-operator")
def cli() -> None:
    """Federated learning over a cellular network: select clients, schedule their uploads, train."""


def main() -> None:
    """Run a command; an error the user can mend is one line, not a traceback."""
    try:
        cli(prog_name="fedcs")
    except ModuleNotFoundError as error:
        command = next((word for word in sys.argv[1:] if word in _COMMANDS), "")
        extra = _EXTRAS.get(_COMMANDS.get(command, "").partition(".")[0])
        if extra is None:
            raise
        text = f"`fedcs {command}` needs {error.name!r}; install it: pip install 'fedcs-operator[{extra}]'"
        click.echo(f"fedcs: {text}", err=True)
        sys.exit(1)
    except (FedCSError, OSError) as error:
        click.echo(escape_unprintable(f"fedcs: {error}", keep="\n"), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
