"""The commands, one function each, with their options; what an option names is checked before a model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable


def exit_status(work: Callable[[], int | None], interrupted: str) -> int:
    """The exit status of ``work``, 130 with ``interrupted`` said after the user stops it, or 2 after an error that is printed."""
    try:
        return work() or 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
