#!/usr/bin/env bash
# Two hosts on this machine train together, one is lost in the middle, the run goes on: see two_hosts.py.
# As root on Debian or Ubuntu it installs what is missing of sshd, pdsh and ip. Arguments go on:
#   bash scripts/two_hosts.sh hostfile
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

packages=()
for pair in sshd:openssh-server ssh:openssh-client pdsh:pdsh ip:iproute2; do
    PATH=$PATH:/usr/sbin command -v "${pair%%:*}" >/dev/null || packages+=("${pair#*:}")
done
if [ ${#packages[@]} -gt 0 ]; then
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; } || fail "install these first: ${packages[*]}"
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null \
        || fail "apt-get could not install ${packages[*]}"
fi
prepare_environment ''
PATH=$PATH:/usr/sbin exec python scripts/two_hosts.py "$@"
