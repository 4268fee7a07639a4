"""Where things came from: a stage's inputs by the digest of their content, and models in the registry."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.exceptions import MlflowException

from components.tracking.names import metric_name

_LONGEST_DIGEST = 36


def log_inputs(store: Any, run_id: str, folder: Path) -> None:
    """What a stage was made from, as data sets, after its artifact's manifest."""
    if not (file := folder / "manifest.json").is_file():
        return
    inputs = []
    for name, parent in (json.loads(file.read_text("utf-8")).get("parents") or {}).items():
        place = folder.parents[1] / parent["stage"] / parent["key"]
        source, digest = json.dumps({"uri": str(place)}), str(parent["digest"])[:_LONGEST_DIGEST]
        made_of = Dataset(parent["stage"], digest, "local", source)
        inputs.append(DatasetInput(made_of, [InputTag("mlflow.data.context", name)]))
    if inputs:
        store.log_inputs(run_id, inputs)


def register_model(store: Any, name: str, run_id: str, model: Path, tags: Mapping[str, str]) -> None:
    """A version in the registry that points at the model's directory, with the artifact and the run it came from.

    A server takes no path of this machine as a source; there the version points at a file that names it.
    """
    name = metric_name(name).replace("/", "_").replace(":", "_")
    try:
        store.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = model.as_uri()
    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        store.log_dict(run_id, {"model": str(model), **tags}, "model/reference.json")
        source = f"{store.get_run(run_id).info.artifact_uri}/model"
    store.create_model_version(name, source, run_id, dict(tags), await_creation_for=0)
