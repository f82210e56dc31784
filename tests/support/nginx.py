"""A real nginx in front of a server: Debian's package `nginx-light` has it."""

from __future__ import annotations

import re

from .daemons import Daemon
from .machine import require_program
from .processes import Process

_CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
    server {{
        listen 127.0.0.1:{port};
        {locations}
    }}
}}
"""


class Nginx(Daemon):
    """It serves `locations`, the text inside `server` in its configuration."""

    _name = "nginx"
    _port_taken = re.compile(r"Address already in use")

    def __init__(self, locations: str) -> None:
        self._program = require_program("nginx")
        self._locations = locations
        super().__init__()

    def _configure(self) -> None:
        text = _CONFIGURATION.format(directory=self.directory, port=self.port, locations=self._locations)
        (self.directory / "nginx.conf").write_text(text)

    def _launch(self) -> Process:
        process = Process([self._program, "-e", "stderr", "-c", self.directory / "nginx.conf"])
        process.wait_for("getrlimit(RLIMIT_NOFILE)")  # it listens by then
        return process
