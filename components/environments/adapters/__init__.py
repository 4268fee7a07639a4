"""Environments of other libraries as ours. What they pay is in the final state, for `components.rewards.environment`.

An adapter can make tasks: ``tasks(counts, held_out=…, seed=…)`` gives so many of each split, those of the splits that
are held out the same for every seed.
"""
