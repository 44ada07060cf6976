"""`ds-minimodel hosts` on the command line."""


def add_arguments(commands):
    """The command, added to argparse's `commands`."""
    hosts = commands.add_parser("hosts", help="check a hostfile: hosts reached, programs, slots")
    hosts.add_argument("hostfile", metavar="FILE", help="lines of HOST slots=N")
    hosts.set_defaults(run=_hosts)


def _hosts(options):
    from ds_minimodel.engine.ranks.hosts import read_hostfile, survey

    hosts = read_hostfile(options.hostfile)
    for host, facts in zip(hosts, survey(hosts)):
        print(
            f"{host.name}: {host.slots} slots, {facts['cores']} cores, {facts['gpus']} GPUs, "
            f"at {facts['address']}, Python {facts['python']}, ds_minimodel {facts['version']}"
        )
