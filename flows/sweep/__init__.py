"""Sweeps, ``r1flow run -m``: many runs (arms) of one pipeline, each in a process of its own, on one store.

`grid` says which runs a command line means, `search` lets Optuna choose them, `pool` runs them, `launch` says where,
`record` keeps what became of each, `summary` compares them.
"""

from flows.sweep.grid import expand as expand
from flows.sweep.grid import sweep_values as sweep_values
