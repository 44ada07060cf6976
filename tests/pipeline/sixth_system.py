"""`ds-minimodel` with a sixth system, declared here and nowhere else: MiniPost's layers over MiniJoint's body."""

import sys

from ds_minimodel.cli.main import main
from ds_minimodel.systems import SYSTEMS, System

SYSTEMS["jointpost"] = System("jointpost", "JointPost", body="minijoint", builds_mini=True, color="#CC79A7", marker="P")

if __name__ == "__main__":
    main(sys.argv[1:])
