"""Become another program that does not outlive its parent: `python child.py <parent's pid> <command> …`.

Run by its path with `-I -S`, so that it imports nothing that is slow and nothing of ours. On Linux the kernel then
kills the program when `up` dies, however `up` dies; elsewhere `director down` and the next `up` end what is left.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent's life, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was told
            sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is up's own
    except OSError as exc:
        sys.exit(f"{command[0]}: {exc.strerror}")


if __name__ == "__main__":
    main()
