"""Standard output and error that outlive whoever reads them: ``r1flow run | head -1`` is a run like any other."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any


class Sturdy:
    """A text stream that goes on after an error, into nothing.

    Attributes:
        lost: the first error; None while all is well.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        """What is in the buffer, and all that follows, goes nowhere; child processes inherit that."""
        if self.lost is None:
            self.lost = error
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    @property
    def problem(self) -> str:
        """Why output is missing, in words; empty if none is, or if its reader only had enough (``| head``)."""
        if self.lost is None or self.lost.errno == errno.EPIPE:
            return ""
        return self.lost.strerror or str(self.lost)


@contextlib.contextmanager
def sturdy_output() -> Iterator[Sturdy]:
    """Make both streams sturdy inside this block; gives standard output."""
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as opened:
        streams = [
            Sturdy(opened.enter_context(open(os.devnull, "w")) if stream is None else stream)  # closed: >&-
            for stream in before
        ]
        sys.stdout, sys.stderr = streams  # type: ignore[assignment]
        try:
            yield streams[0]
        finally:
            for stream in streams:
                stream.flush()
            sys.stdout, sys.stderr = before
