"""The report of a run: one self-contained page, built from what the stages left in the store."""
