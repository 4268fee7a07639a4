"""A sampled rollout as a trace: MLflow's pages list those of all runs, search their text, open each as a conversation.

A table of the same rows shows step and reward at a glance, which the list of traces has among its tags; but it is a
file in each run that has to be opened there, and long texts are cut off.
"""

from __future__ import annotations

from typing import Any

import mlflow
from mlflow.entities import AssessmentSource, SpanType

from components.tracking.names import metric_name
from components.tracking.samples import Sample

_SOURCE = AssessmentSource(source_type="CODE", source_id="r1flow")


def log_sample(client: Any, experiment_id: str, run_id: str, stage: str, sample: Sample, at: int) -> None:
    """Record one rollout: prompt and response, a span for each call of a tool, its scores as feedback.

    Args:
        at: milliseconds since 1970 at which the stage ended.
    """
    begin, end = at * 1_000_000, at * 1_000_000 + 1
    tags = {"r1flow.stage": stage, **{f"r1flow.{name}": str(value) for name, value in sample.facts.items()}}
    messages = [{"role": "user", "content": sample.prompt}]
    root = client.start_trace(
        stage if sample.step is None else f"{stage} step {sample.step}",
        span_type=SpanType.CHAT_MODEL,
        inputs={"messages": messages},
        attributes={**sample.facts, "mlflow.message.format": "openai"},
        tags=tags,
        experiment_id=experiment_id,
        start_time_ns=begin,
        run_id=run_id,
    )
    for call, result in sample.tools:
        span = client.start_span(
            "tool", root.trace_id, root.span_id, span_type=SpanType.TOOL, inputs={"call": call}, start_time_ns=begin
        )
        client.end_span(root.trace_id, span.span_id, outputs={"result": result}, end_time_ns=end)
    answer = {"role": "assistant", "content": sample.response}
    client.end_trace(root.trace_id, outputs={"choices": [{"index": 0, "message": answer}]}, end_time_ns=end)
    for name, value in sample.scores.items():
        mlflow.log_feedback(trace_id=root.trace_id, name=metric_name(name), value=value, source=_SOURCE)
