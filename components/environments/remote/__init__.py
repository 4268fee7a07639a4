"""Environments in a process of their own, over HTTP: ``server`` has them, ``client`` is one of them for the engine.

Every request is JSON and may be sent again. An episode's id is the client's choice, a step has its number, and the
server keeps the last answer, so that a request whose answer was lost is answered, not done, a second time.

    GET    /                       what the environment is: stop strings, wrapper, limits, digest
    POST   /schemas                {task} -> {schemas, manual}
    PUT    /episodes/ID            {task} begins an episode
    POST   /episodes/ID/steps/N    {text} -> a step
    GET    /episodes/ID/state      what it left behind
    DELETE /episodes/ID            ends it

Other answers are ``{"error": kind, "text": why}``; kinds are "late", "failed" (the environment raised), "full",
"unknown", "order" and "request".
"""
