"""Environments made of what agents did: from recorded transcripts to tasks with a world and a verifier of its end.

A transcript is one JSON object a line; the other forms (`importing`) are read into this one::

    {"id": "t1", "instruction": "Sort names.txt into sorted.txt.",
     "files": {"names.txt": "bo\\nal\\n"},                   or "database": "CREATE TABLE …", or "store": {…}
     "actions": [{"shell": "cat names.txt", "output": "bo\\nal"},
                 {"shell": "sort names.txt > sorted.txt", "output": "", "exit_code": 0}],
     "finished": true, "success": true, "root": "/home/me/project"}

Only ``instruction`` and ``actions`` are required. An action names its tool (``shell``; ``query`` for SQL; ``get``,
``put``, ``delete`` of the store) with what was passed to it: a text, or an object of arguments. What the world was at
the beginning is read from the actions' outputs where the transcript does not say it (`seen`). ``root`` is the directory
that was the workspace; paths below it are read as paths in the workspace.

What becomes of a transcript: it is replayed in the sandbox from the reconstructed beginning; what that changed becomes
a verifier in the vocabulary of a task's ``meta.check``; and both are put to the test (`validate`) before the task is
kept. Every transcript that is not kept has one reason of `transcript.REASONS`.
"""
