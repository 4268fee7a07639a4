"""More threads than cores, or more than the launcher asked for."""

from __future__ import annotations

from components.evaluation.doctor.finding import Finding
from components.evaluation.doctor.record import Record

MORE = 1.5
MIN_WALL_S = 2.0


def wrong_threads(record: Record) -> Finding | None:
    """processes × threads exceeds the cores (with one core, two are borne), or a worker kept half as many cores again
    busy as it was given threads."""
    machine = record.machine
    processes, threads, cores = (int(machine.get(name) or 0) for name in ("processes", "threads", "cores"))
    if cores and processes * threads > max(cores, 2):
        fitting = max(1, cores // processes)
        return record.finding(
            "wrong_threads",
            f"{processes} processes of {threads} threads share {cores} cores; threads that wait for a core make all of "
            "them slower.",
            f"set launcher.threads={fitting}" + (f" launcher.processes={cores}." if processes > cores else "."),
            step=0,
            processes=processes,
            threads=threads,
            cores=cores,
        )
    for worker in machine.get("workers") or ():
        used = worker["cpu_s"] / max(worker["wall_s"], 1e-9)
        if threads and worker["wall_s"] >= MIN_WALL_S and used > MORE * threads:
            return record.finding(
                "wrong_threads",
                f"a worker kept {used:.1f} cores busy where launcher.threads={threads}.",
                "some library starts threads of its own: set OMP_NUM_THREADS, MKL_NUM_THREADS and "
                f"OPENBLAS_NUM_THREADS to {threads} before the run.",
                step=0,
                used=used,
                threads=threads,
            )
    return None
