"""Tools that a policy calls: typed Python functions, and toolsets with state of an episode's own.

A toolset has ``name``, ``tools`` (functions whose first parameter is the session) and ``open(task) -> session``; a
session has those methods, ``state()`` (what is left at the end, JSON values) and ``close()``. What an episode begins
with stands in the task's ``meta``, so that a task carries its world with it.
"""
