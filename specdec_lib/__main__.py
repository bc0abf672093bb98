"""``python -m specdec_lib``: see ``specdec_lib.cli``."""

from __future__ import annotations

import sys

from specdec_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
