"""A Ray cluster on this machine that ends with the process that started it, in whatever way that process ends.

Run as a program: starts the cluster, prints its address and waits for the end of its input. Ray's daemons notice late, some
never, that the driver below which they run was killed. This program is their parent instead, also of those whose own parent
ended, so that it finds and kills them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from specdec_lib.processes import adopt_orphans, kill_children


@contextmanager
def local_cluster() -> Iterator[str]:
    """The address of a new cluster on this machine, all of whose processes are gone after the block."""
    # In a session of its own: a key that interrupts this process must not end the cluster before it.
    program = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        address = program.stdout.readline().strip()
        if not address:
            raise RuntimeError("Ray did not start on this machine; its own error is printed above")
        yield address
    finally:
        program.stdin.close()
        program.wait()
        program.stdout.close()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    kill_children()
    os._exit(0)


def main() -> None:
    """Start a cluster, print its address, and end it when the input ends."""
    adopt_orphans()
    # Before Ray: whoever started this may end while the cluster is being started.
    waiting = threading.Thread(target=_end_with_input)
    waiting.start()
    try:
        import ray

        ray.init(address="local", include_dashboard=False, log_to_driver=False)
        print(ray.get_runtime_context().gcs_address, flush=True)
    except BaseException:
        print(flush=True)  # no address
        raise
    waiting.join()


if __name__ == "__main__":
    main()
