"""Imported once by the fork server, so that every worker starts with the heavy packages already in memory.

The environment is set first: OpenMP, OpenBLAS and MKL read it when they are loaded, and a pool of threads that exists
before a fork is lost in the child. CUDA must not be initialised here either, hence the NVML-based check.
"""

from __future__ import annotations

import gc
import os
import signal

THREAD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # workers raise it with torch.set_num_threads
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GOMP_SPINCOUNT": "1000",  # on shared cores spinning OpenMP threads cost more than they save
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

os.environ.update(THREAD_ENVIRONMENT)
# Out of the terminal's session: Ctrl-C and a hang-up reach the driver alone. Blocked signals stay pending in a new
# worker until it has installed its handlers, so that a request to stop is never lost.
if os.getpid() != os.getsid(0):
    os.setsid()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})

import torch  # noqa: E402
import transformers  # noqa: E402

from components.compiled import kernels  # noqa: E402

# transformers resolves its classes lazily: naming them is what loads their modules.
_ = (torch, transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM, transformers.PreTrainedTokenizerFast)
kernels()
# What was loaded stays: a worker's garbage collection neither walks over it nor copies its pages.
gc.collect()
gc.freeze()
