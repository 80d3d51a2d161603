"""Become another program that does not outlive its parent: `python child.py <parent's pid> <command> …`. Run by path
with `-I -S`, so that it imports only what is fast. On Linux the kernel kills the program when `up` dies. Elsewhere
`director down` and the next `up` end what is left.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def bind_to_parent(*command: str) -> list[str]:
    """Return the command line that runs `command` until this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the kernel knew
            sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is up's own
    except OSError as exc:
        sys.exit(f"{command[0]}: {exc.strerror}")


if __name__ == "__main__":
    main()
