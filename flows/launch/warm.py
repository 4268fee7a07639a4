"""Imported once by the fork server, so that every worker starts with the heavy packages already in memory."""

from __future__ import annotations

import gc
import os
import signal

# Out of the terminal's session: Ctrl-C and a hang-up reach the driver alone. Blocked signals stay pending in a new
# worker until it has installed its handlers, so that a request to stop is never lost.
if os.getpid() != os.getsid(0):
    os.setsid()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})

import flows.launch.loaded  # noqa: E402, F401

# What was loaded stays: a worker's garbage collection neither walks over it nor copies its pages.
gc.collect()
gc.freeze()
