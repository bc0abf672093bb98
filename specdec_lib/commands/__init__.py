"""How a command ends: what was done, what was interrupted and what was refused."""

from __future__ import annotations

import sys
from collections.abc import Callable


def exit_status(work: Callable[[], int | None], interrupted: str) -> int:
    """Do the work of a command and give its exit status: that of ``work``, 0 where it gives none; 130 after the user stops
    it, with ``interrupted`` said; 2 after a ValueError or OSError, whose message is printed."""
    try:
        return work() or 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
