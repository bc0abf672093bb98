"""How a notebook's process ends in a test. That process imports this module, and so nothing heavy."""

import os
import signal


def killed(*work) -> None:
    """As by a system that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
