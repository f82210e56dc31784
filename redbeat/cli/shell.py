"""Who is at the shell: the name and the machine with which pauses and the audit list know them."""

from __future__ import annotations

import getpass
import os
import socket


def login_name() -> str | None:
    """Return the name of the user; None: the machine doesn't know it."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name, as in a container
        return None


def host_name() -> str:
    """Return the name of the machine."""
    return socket.gethostname()
