"""The database of runs below the artifacts: written without waiting for the disk each time, and whole all the same."""

import sqlite3
import subprocess
import sys

import pytest

from components.tracking.mlflow.sqlite import file_system


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path):
    inside = tmp_path / "shared disk" / "runs"
    mounts = tmp_path / "mounts"
    escaped = str(tmp_path / "shared disk").replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/b {escaped} nfs4 rw 0 0\n/dev/c {inside}er xfs rw 0 0\n")
    assert file_system(inside, mounts) == "nfs4"
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(inside, tmp_path / "absent") == ""


def test_what_a_killed_process_recorded_is_there(tmp_path):
    pytest.importorskip("mlflow")
    if file_system(tmp_path) not in ("ext4", "xfs", "btrfs", "overlay", "tmpfs"):
        pytest.skip("temporary files lie on a file system of several machines")
    code = """
import os, sys
from pathlib import Path
from components.tracking.mlflow.store import connect
client = connect(Path(sys.argv[1]))
run = client.create_run("0", tags={"made": "here"})
[synchronous] = client._tracking_client.store.engine.connect().exec_driver_sql("PRAGMA synchronous").fetchone()
print(run.info.run_id, synchronous, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    run, synchronous = done.stdout.split()
    assert synchronous == "1"  # NORMAL
    database = sqlite3.connect(tmp_path / "mlflow.db")
    assert database.execute("SELECT value FROM tags WHERE run_uuid=? AND key='made'", [run]).fetchall() == [("here",)]
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
