"""A real RabbitMQ node on a free port of 127.0.0.1, with its data, logs, cookie and home in one directory.

Invariant: one node is one process that `stop()` ends by its own pid. The start script is made to `exec`, so
the process is the Erlang VM itself, and dies with the test run; and there is no epmd, the daemon that the
first Erlang node of a machine otherwise leaves running. Nodes never meet, so they need no distribution port.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
from pathlib import Path

from .daemons import Daemon, pick_port
from .machine import require_program
from .processes import Process

# Debian's rabbitmq-server on PATH changes to another user and keeps a shell around; this is what it calls.
_DEBIAN_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_READY = ["Server startup complete", "redbeat control\n"]

# In Erlang's own format: reading rabbitmq.conf adds half a second to every start.
_CONFIGURATION = """\
[{{rabbit, [
    {{tcp_listeners, [{{"{host}", {port}}}]}},
    {{num_tcp_acceptors, 2}},
    {{vm_memory_high_watermark, 0.9}},
    {{disk_free_limit, 1000000}},
    {{log, [{{console, [{{enabled, true}}, {{level, info}}]}}, {{file, [{{file, false}}]}}]}}
]}}].
"""

# RABBITMQ_… to what is there in a node's directory, or is not.
_PATHS = {
    "ADVANCED_CONFIG_FILE": "no-advanced.config", "CONFIG_FILE": "rabbitmq.config",
    "CONF_ENV_FILE": "no-env.conf", "ENABLED_PLUGINS_FILE": "enabled_plugins",
    "GENERATED_CONFIG_DIR": "config", "LOG_BASE": "log", "MNESIA_BASE": "data",
}  # fmt: skip

# No name is ever looked up: a resolver that is away would cost the start seconds.
_NAME_RESOLUTION = '{lookup, [file]}.\n{host, {127, 0, 0, 1}, ["localhost"]}.\n'

# Evaluates what `evaluate` sends: rabbitmqctl would take a second, and an Erlang distribution.
_CONTROL = Path(__file__).with_name("rabbitmq_control.script")
_RUN_CONTROL = 'file:script(os:getenv("REDBEAT_CONTROL_SCRIPT"))'

# Closes all connections too. They are closed by a handler of events: until the last line has been answered, a
# connection to the new virtual host could be taken for one to the old.
_FLUSH = """
    ok = rabbit_vhost:delete(<<"/">>, <<"tests">>),
    ok = rabbit_vhost:add(<<"/">>, <<"tests">>),
    ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"/">>, <<".*">>, <<".*">>, <<".*">>,
                                                      <<"tests">>),
    gen_event:which_handlers(rabbit_event).
"""


class RabbitMQ(Daemon):
    """A node that runs from construction until `stop()`, without plugins, for the user guest."""

    _name = "rabbitmq"
    _port_taken = re.compile(r"eaddrinuse|address already in use")

    def __init__(self) -> None:
        require_program("erl", purpose="which RabbitMQ needs")
        is_debian = _DEBIAN_PROGRAM.exists()
        self._program = _DEBIAN_PROGRAM if is_debian else Path(require_program("rabbitmq-server"))
        super().__init__()

    def url(self) -> str:
        """amqp:// of the virtual host `/`."""
        return f"amqp://guest:guest@{self.host}:{self.port}//"

    def evaluate(self, source: str, timeout: float = 10) -> str:
        """The value of Erlang expressions, such as `rabbit_amqqueue:count().`, inside the broker.

        Raises AssertionError when they fail, TimeoutError of a paused broker after `timeout` seconds.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(self._control_path))
            request = source.encode()
            connection.sendall(struct.pack(">I", len(request)) + request)
            with connection.makefile("rb") as answer:
                (length,) = struct.unpack(">I", answer.read(4))
                status, _, value = answer.read(length).decode().partition(" ")
        assert status == "ok", f"{source} failed: {value}"
        return value

    def flush(self) -> None:
        """Delete all queues and exchanges, and close all connections, by a new virtual host."""
        self.evaluate(_FLUSH)

    def close_connections(self) -> None:
        """Close all connections, as an administrator does: their clients are told."""
        close = '(catch rabbit_networking:close_connection(P, "bye"))'  # one may end by itself meanwhile
        self.evaluate(f"[{close} || P <- rabbit_networking:connections()].")

    def set_memory_alarm(self) -> None:
        """It has no memory to spare from now on, and reads nothing from those who publish."""
        # what is asked after it is answered after it: by then each connection knows of the alarm
        self.evaluate("""
            rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}),
            [_ | _] = rabbit_alarm:get_alarms(),
            [rabbit_networking:connection_info(Pid, [state]) || Pid <- rabbit_networking:connections()].
        """)

    def clear_memory_alarm(self) -> None:
        """It reads again."""
        self.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")

    def pause(self) -> None:
        """Freeze it: the kernel still accepts connections and bytes for it, and nothing answers."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on where it was paused. Harmless when it was not."""
        self.process.signal(signal.SIGCONT)

    @property
    def _control_path(self) -> Path:
        return self.directory / "control"

    def _configure(self) -> None:
        (self.directory / "inetrc").write_text(_NAME_RESOLUTION)
        (self.directory / "enabled_plugins").write_text("[].\n")
        configuration = _CONFIGURATION.format(host=self.host, port=self.port)
        (self.directory / "rabbitmq.config").write_text(configuration)

    def _launch(self) -> Process:
        process = Process([self._program], cwd=self.directory, env=self._environment())
        try:
            for line in _READY:
                process.wait_for(line, timeout=60)
        except BaseException:
            process.kill()
            raise
        return process

    def _environment(self) -> dict[str, str]:
        node = f"redbeat-{self.port}@localhost"
        return {
            "HOME": str(self.directory),  # of the cookie
            "REDBEAT_CONTROL": str(self._control_path),
            "REDBEAT_CONTROL_SCRIPT": str(_CONTROL),
            "RUNNING_UNDER_SYSTEMD": "true",  # makes the script exec the Erlang VM; nothing else looks at it
            # Also seen by the VM that RabbitMQ starts every minute, to have an epmd. With a fixed port of the
            # distribution nobody asks an epmd, and nobody listens on it either (by Erlang 25 or newer).
            "ERL_FLAGS": f"-start_epmd false -dist_listen false -erl_epmd_port {pick_port()}",
            "ERL_EPMD_PORT": "1",
            "ERL_INETRC": str(self.directory / "inetrc"),
            "RABBITMQ_NODENAME": node,
            # Split at every space; one scheduler is as quick as one for each core, and needn't spin.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 1:1 +sbwt none -sname {node} -eval {_RUN_CONTROL}",
            "RABBITMQ_LOGS": "-",
            **{f"RABBITMQ_{name}": str(self.directory / path) for name, path in _PATHS.items()},
        }
