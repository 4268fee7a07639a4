"""The heavy packages that every worker has in memory, and the environment they are loaded in.

The environment is set first: OpenMP, OpenBLAS and MKL read it when they are loaded, and a pool of threads that exists
before a fork is lost in the child. CUDA must not be initialised here either, hence the NVML-based check.
"""

from __future__ import annotations

import os

THREAD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # workers raise it with torch.set_num_threads
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GOMP_SPINCOUNT": "1000",  # on shared cores spinning OpenMP threads cost more than they save
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

os.environ.update(THREAD_ENVIRONMENT)

import torch  # noqa: E402
import transformers  # noqa: E402

from components.compiled import kernels  # noqa: E402

# transformers resolves its classes lazily: naming them is what loads their modules.
_ = (torch, transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM, transformers.PreTrainedTokenizerFast)
kernels()
