"""SIGINT, SIGTERM and SIGHUP become one polite request to stop; the second one means at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from components.runtime import Interrupted

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Latch:
    """A flag that threads can block on: its descriptor is readable from the moment it is set, for every waiter."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._set = False

    def fileno(self) -> int:
        return self._read

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Safe in a signal handler: closing the only write end is all it does."""
        if not self._set:
            self._set = True
            os.close(self._write)

    def __del__(self) -> None:
        if not self._set:
            os.close(self._write)
        os.close(self._read)


class Stop:
    """The run's request to stop.

    Attributes:
        asked: set by the first signal: finish the step, write a checkpoint.
        now: set by the second: kill what is running.
        signum: the first signal, None until there is one.
        refused: the promotion gate asked, not a signal.
    """

    def __init__(self) -> None:
        self.asked, self.now = Latch(), Latch()
        self.signum: int | None = None
        self.refused = False
        self.on_request: Callable[[], None] = lambda: None
        self._raise = False

    @property
    def exit_code(self) -> int:
        """128 + signal, as shells have it: 130 for Ctrl-C, 143 for SIGTERM; 1 after a refusal."""
        if self.refused and self.signum is None:
            return 1
        return 128 + (self.signum or signal.SIGTERM)

    def requested(self) -> bool:
        return self.asked.is_set()

    def request(self, signum: int = signal.SIGTERM) -> None:
        """What a signal does; callable from code as well."""
        if self.asked.is_set():
            self.now.set()
            if self._raise and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
        else:
            self.signum = int(signum)
            self.asked.set()
        self.on_request()

    def refuse(self) -> None:
        """Stop as after a first signal, with exit code 1; a signal after it means at once."""
        self.refused = True
        if not self.asked.is_set():
            self.asked.set()
        self.on_request()

    def check(self) -> None:
        """Raise `Interrupted` if a stop was requested."""
        if self.requested():
            raise Interrupted("asked to stop")

    @contextlib.contextmanager
    def raising_at_once(self) -> Iterator[None]:
        """Inside this block, which is busy in the main thread, the second signal raises KeyboardInterrupt there."""
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[Stop]:
        """Handle the signals inside this block (main thread only); ignored ones (nohup) stay ignored."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, lambda signum, frame: self.request(signum))
            yield self
        finally:
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)
