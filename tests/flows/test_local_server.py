"""Servers of ours: two that are started at the same time don't get one port."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.local_server import ensure_server, free_port, stop_server, wait_until_it_answers

PAGE = """
import http.server, pathlib, sys, time
while not pathlib.Path(sys.argv[2]).exists():  # as servers do: seconds pass before the port is bound
    time.sleep(0.01)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[3].encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ports are reserved on Linux only")
def test_servers_that_start_at_the_same_time_get_ports_of_their_own(tmp_path: Path):
    go, port = tmp_path / "go", free_port(0)
    homes = [tmp_path / "a", tmp_path / "b"]
    try:
        servers = [
            ensure_server(
                home, port, lambda at, home=home: ([sys.executable, "-c", PAGE, str(at), str(go), home.name], {})
            )
            for home in homes
        ]
        assert servers[0].port == port != servers[1].port
        go.write_text("")
        for server in servers:
            wait_until_it_answers(server.url, server=server, limit_s=120)
        stop_server(homes[0])
        again = ensure_server(homes[0], port, lambda at: ([sys.executable, "-c", PAGE, str(at), str(go), "a"], {}))
        assert again.port == port  # given back with the process
    finally:
        for home in homes:
            stop_server(home)
