"""Launchers of sweeps that other packages bring: joblib, submitit (Slurm), Ray. Each imports its package when used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Joblib:
    """Joblib's backends: ``loky`` (processes here), or what a library of yours has registered (dask, ray, spark).

    Args:
        backend: name of the backend.
        jobs: runs at a time.
    """

    to_files = True

    def __init__(self, *, backend: str = "loky", jobs: int = 1) -> None:
        import joblib  # optional

        self._joblib, self._backend, self.jobs = joblib, backend, jobs

    def submit(self, function: Callable[..., int], *arguments: Any) -> Future[int]:
        future: Future[int] = Future()

        def work() -> None:
            try:
                parallel = self._joblib.Parallel(n_jobs=max(2, self.jobs), backend=self._backend)
                [code] = parallel([self._joblib.delayed(function)(*arguments)])
                future.set_result(code)
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def close(self) -> None:
        """Joblib ends idle workers by itself."""


class Submitit:
    """Slurm, or ``cluster=local`` for processes of this machine. The nodes must see the artifacts and this code.

    Args:
        cluster: "slurm", "local" or "debug"; None finds out.
        jobs: runs at a time (the array's parallelism).
        folder: of job scripts and logs; by default in the sweep's own.
        timeout_min: of a run.
        parameters: more of `submitit.AutoExecutor.update_parameters`: {slurm_partition: gpu, gpus_per_node: 8}.
    """

    to_files = True

    def __init__(
        self,
        *,
        cluster: str | None = None,
        jobs: int = 1,
        folder: str = "",
        timeout_min: int = 24 * 60,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        import submitit  # optional

        self.jobs = jobs
        self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        self._executor.update_parameters(timeout_min=timeout_min, **(parameters or {}))

    def submit(self, function: Callable[..., int], *arguments: Any) -> Any:
        return self._executor.submit(function, *arguments)

    def close(self) -> None:
        """Jobs are the cluster's own."""


class Ray:
    """A Ray cluster. Its nodes must see the artifacts and this code.

    Args:
        address: of the cluster; None starts one on this machine.
        jobs: runs at a time.
        resources: of a run: {num_cpus: 8, num_gpus: 1}.
    """

    to_files = True

    def __init__(self, *, address: str | None = None, jobs: int = 1, resources: dict[str, Any] | None = None) -> None:
        import ray  # optional  # pyright: ignore[reportMissingImports]

        self._ray, self.jobs = ray, jobs
        ray.init(address=address, include_dashboard=False, ignore_reinit_error=True)
        self._options = {"num_cpus": 1, "max_retries": 0, **(resources or {})}

    def submit(self, function: Callable[..., int], *arguments: Any) -> Future[int]:
        return self._ray.remote(**self._options)(function).remote(*arguments).future()

    def close(self) -> None:
        self._ray.shutdown()
