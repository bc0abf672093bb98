"""Work that is killed, or that finds the disk full, at any of the steps by which it reaches the disk."""

import errno
import os
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial

from tqdm.auto import tqdm

#: What brings files onto the disk, each call of which may be the last one.
STEPS = tuple((os, name) for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate"))


def full() -> None:
    """The disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kill() -> None:
    """The process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(work: Callable[[], object], count: int, how: Callable[[], None]) -> int:
    """Do some work in a process of its own in which ``how()`` happens before step ``count`` from 0; the steps of work that
    came to its end, else -1."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        # tqdm's lock is shared with forked processes: killed while holding it, the child would stop the parent for ever.
        tqdm.set_lock(threading.RLock())
        taken = 0

        def counted(step, *args, **options):
            nonlocal taken
            if taken == count:
                how()
            taken += 1
            return step(*args, **options)

        for module, name in STEPS:
            setattr(module, name, partial(counted, getattr(module, name)))
        try:
            work()
            os.write(write, str(taken).encode())
        except Exception:
            if count < 0:  # nothing was to stop it
                traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return int(said or -1)
