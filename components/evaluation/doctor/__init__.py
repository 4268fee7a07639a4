"""The doctor: names the cause when training goes wrong, with evidence, samples and the remedy.

Every check is a pure function of what a stage logs (``checks/``, one file per finding). They are used live (`Watch`),
on a finished run (`examine_run`) and in the report.
"""
