"""`ds-minimodel hosts` on the command line."""

from ds_minimodel.cli.steps import Commands, Options


def add_arguments(commands: Commands) -> None:
    """Add the command to argparse's `commands`."""
    hosts = commands.add_parser("hosts", help="check a hostfile: hosts reached, programs, slots")
    hosts.add_argument("hostfile", metavar="FILE", help="lines of HOST slots=N")
    hosts.set_defaults(run=_hosts)


def _hosts(options: Options) -> None:
    from ds_minimodel.engine.ranks.hosts import read_hostfile, survey

    hosts = read_hostfile(options.hostfile)
    for host, facts in zip(hosts, survey(hosts), strict=True):
        print(
            f"{host.name}: {host.slots} slots, {facts['cores']} cores, {facts['gpus']} GPUs, "
            f"at {facts['address']}, Python {facts['python']}, ds_minimodel {facts['version']}"
        )
