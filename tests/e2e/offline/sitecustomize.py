"""No network but this machine's own: on PYTHONPATH, every Python process refuses other addresses and writes them down.

The attempts go to the file that ``R1FLOW_TEST_NETWORK_LOG`` names, one line each.
"""

import errno
import os
import socket
import sys

_HERE = {"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}


def _refuse(host: object) -> None:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name in _HERE or name.startswith("127.") or name == socket.gethostname():
        return
    with open(os.environ["R1FLOW_TEST_NETWORK_LOG"], "a") as log:
        log.write(f"{name} from {' '.join(sys.orig_argv)[:300]}\n")
    raise OSError(errno.ENETUNREACH, f"no network in this test, asked for {name}")


def _guarded(call):
    def connect(self, address, *rest):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        return call(self, address, *rest)

    return connect


def _looked_up(call):
    def look_up(host, *arguments, **options):
        if host is not None:
            _refuse(host)
        return call(host, *arguments, **options)

    return look_up


socket.socket.connect = _guarded(socket.socket.connect)
socket.socket.connect_ex = _guarded(socket.socket.connect_ex)
socket.getaddrinfo = _looked_up(socket.getaddrinfo)
socket.gethostbyname = _looked_up(socket.gethostbyname)
