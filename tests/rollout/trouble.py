"""A tool that misbehaves where its task says so, in a module that another process can import quickly."""

import os
import sys
import time


class TroubleSession:
    def __init__(self, task):
        self.how = None if task is None else task.meta.get("how")
        self.said = 0

    def say(self, n: int) -> str:
        """Say a number.

        Args:
            n: which.
        """
        if self.how == "raise":
            raise ZeroDivisionError("as asked")
        if self.how == "exit":
            sys.exit(3)
        if self.how == "kill":
            os._exit(9)
        if self.how == "hang":
            time.sleep(3600)
        if self.how == "flood" and not self.said:
            for _ in range(1 << 10):
                os.write(1, b"x" * (1 << 20))
        self.said += 1
        return str(n)

    def state(self):
        return {"said": self.said}

    def close(self):
        pass


class Trouble:
    name = "trouble"
    tools = (TroubleSession.say,)

    def open(self, task):
        return TroubleSession(task)
