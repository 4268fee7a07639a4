"""Which Prefect server a run uses: the user's if one is set up, else our own under ``artifacts/prefect``."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from flows.local_server import Server, ensure_server, wait_until_it_answers

PREFERRED_PORT = 4210  # next to Prefect's own 4200, which stays free for a server of the user's
START_LIMIT_S = 300.0  # 10 s on an idle machine; nothing waits for it
THEIRS_LIMIT_S = 4.0  # a server of the user's runs already; a short run still hears that it doesn't
PRIVATE = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
# Nothing here uses them, and they keep an idle server busy.
_SERVICES_OFF = ("LATE_RUNS", "TRIGGERS", "FOREMAN", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP")


def configured_api_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """The server a user has set up for Prefect, in the environment or in the active profile; None without one.

    Read without importing Prefect, whose settings are fixed at import.
    """
    if url := environment.get("PREFECT_API_URL"):
        return url
    home = Path(environment.get("PREFECT_HOME") or "~/.prefect").expanduser()
    file = Path(environment.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser()
    try:
        profiles = tomllib.loads(file.read_text())
        name = environment.get("PREFECT_PROFILE") or profiles["active"]
        return profiles["profiles"][name].get("PREFECT_API_URL")
    except (OSError, KeyError, AttributeError, tomllib.TOMLDecodeError):
        return None


def ensure_prefect_server(home: Path) -> Server:
    """Our server for ``home``, started if it isn't running; it may need another 10–15 s before it answers."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}

    def recipe(port: int) -> tuple[list[str], dict[str, str]]:
        api = f"http://127.0.0.1:{port}/api"
        return [sys.executable, "-m", "prefect", "server", "start"], {
            **variables,
            **PRIVATE,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_API_HOST": "127.0.0.1",
            "PREFECT_SERVER_API_PORT": str(port),  # --port alone leaves the UI calling 4200
            "PREFECT_API_URL": api,
            "PREFECT_UI_API_URL": api,
            **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _SERVICES_OFF},
        }

    return ensure_server(home, PREFERRED_PORT, recipe)


def client_environment(home: Path, server: Server) -> dict[str, str]:
    """Variables for a client of our server, to be set before ``import prefect``."""
    return {**PRIVATE, "PREFECT_HOME": str(home), "PREFECT_API_URL": f"{server.url}/api"}


def wait_for_prefect(api_url: str, *, home: Path | None = None, server: Server | None = None) -> None:
    """Block until the server answers; the user's own is expected to run. Raises: ServerFailed."""
    log = home / "server.log" if home and server else None
    limit_s = START_LIMIT_S if server is not None else THEIRS_LIMIT_S
    wait_until_it_answers(f"{api_url}/health", server=server, log=log, limit_s=limit_s)


def point_prefect_at_its_server(home: Path) -> str:
    """Set this process's environment for the user's server, or for ours, started if need be; its pages' address.

    Call it before Prefect is imported. Raises: ServerFailed.
    """
    if (url := configured_api_url()) is None:
        server = ensure_prefect_server(home)
        os.environ.update(client_environment(home, server))
        wait_for_prefect(url := f"{server.url}/api", home=home, server=server)
    else:
        os.environ.update(PRIVATE)
        if not url.startswith("https://api.prefect.cloud"):
            wait_for_prefect(url)
    return url.removesuffix("/api")
