"""Two hosts by --hostfile, of which one is lost: scripts/two_hosts.py, as root and with what it
needs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PATH = f"{os.environ['PATH']}:/usr/sbin"


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not all(shutil.which(name, path=PATH) for name in ("sshd", "pdsh", "ip")),
    reason="sshd, pdsh or ip is not installed (Debian: openssh-server pdsh iproute2)",
)
def test_a_run_on_two_hosts_goes_on_after_one_is_lost():
    command = [sys.executable, "scripts/two_hosts.py", "hostfile"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": PATH}
    )
    if "network namespaces cannot be made here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "hostfile: host lost after step" in done.stderr
    assert "resumed to the same bits" in done.stderr
