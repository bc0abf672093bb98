"""How a command ends: what was done, what was interrupted and what was refused."""

from __future__ import annotations

import sys
from collections.abc import Callable


def exit_status(work: Callable[[], None], interrupted: str) -> int:
    """Do the work of a command and give its exit status.

    Parameters
    ----------
    work : callable
    interrupted : str
        Said when the user stops it.

    Returns
    -------
    int
        0; 130 if interrupted; 2 after a ValueError or OSError, whose message is printed.
    """
    try:
        work()
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
