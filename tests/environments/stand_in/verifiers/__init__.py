"""What the adapter uses of the package verifiers 0.1.14, for where that is not installed: same names, same order.

An environment's `rollout` asks the client for one message at a time and hands all messages so far to it; messages are
objects with ``model_dump``; a stop is looked for before each of them; the rubric scores the state that is returned.
"""

import importlib
import inspect
import json
import uuid

from verifiers.types import AssistantMessage, Tool, ToolMessage, UserMessage

__all__ = ["Client", "MultiTurnEnv", "OverlongPromptError", "Rubric", "ToolEnv", "UserMessage", "load_environment"]


class OverlongPromptError(Exception):
    pass


class Client:
    def __init__(self, client):
        self._client = client


class Rubric:
    def __init__(self, funcs):
        self.funcs = funcs

    async def score_rollout(self, state):
        known = {"state": state, "completion": state["completion"], "answer": state["answer"]}
        metrics = {}
        for function in self.funcs:
            wanted = inspect.signature(function).parameters
            try:
                metrics[function.__name__] = await function(**{k: v for k, v in known.items() if k in wanted})
            except Exception:  # theirs are logged and count as 0
                metrics[function.__name__] = 0.0
        state["metrics"] = {**metrics, "num_turns": float(len(state["trajectory"]))}
        state["reward"] = sum(metrics.values())


class MultiTurnEnv:
    tool_defs = None

    def __init__(self, dataset, rubric, max_turns=-1):
        self.rubric, self.max_turns = rubric, max_turns
        self._rows = [
            {"prompt": [{"role": "user", "content": r["question"]}], "answer": r["answer"], "example_id": i}
            for i, r in enumerate(dataset)
        ]

    def get_dataset(self):
        return self._rows

    def is_over(self, state):
        if state.get("final_env_response") is not None:
            return "has_final_env_response"
        if state.get("prompt_too_long"):
            return "prompt_too_long"
        return "max_turns_reached" if 0 < self.max_turns <= len(state["trajectory"]) else None

    async def rollout(self, input, client, model, sampling_args=None):
        state = {**input, "trajectory": [], "error": None, "trajectory_id": uuid.uuid4().hex}
        messages, first = [UserMessage(**m) for m in input["prompt"]], len(input["prompt"])
        while (stop := self.is_over(state)) is None:
            if state["trajectory"]:
                said = await self.env_response(messages, state)
                messages = [*messages, *said]
                if state.get("final_env_response") is not None:
                    continue
            try:
                response = await client.get_response(
                    prompt=messages, model=model, sampling_args=sampling_args, tools=self.tool_defs, state=state
                )
            except OverlongPromptError:
                state["prompt_too_long"] = True
                continue
            given = response.message
            messages = [*messages, AssistantMessage(content=given.content, tool_calls=given.tool_calls)]
            state["trajectory"].append({"completion": [messages[-1]]})
        return {**state, "completion": messages[first:], "stop_condition": stop}


class ToolEnv(MultiTurnEnv):
    def __init__(self, tools, **settings):
        super().__init__(**settings)
        self._tools = {tool.__name__: tool for tool in tools}
        described = {"type": "object", "properties": {"x": {"type": "integer"}}}
        self.tool_defs = [
            Tool(name=n, description=f.__doc__.split("\n")[0], parameters=described) for n, f in self._tools.items()
        ]

    def is_over(self, state):
        if state["trajectory"] and not state["trajectory"][-1]["completion"][-1].tool_calls:
            return "no_tools_called"
        return super().is_over(state)

    async def env_response(self, messages, state, **kwargs):
        said = []
        for call in messages[-1].tool_calls:
            try:
                text = str(await self._tools[call.name](**json.loads(call.arguments)))
            except Exception as error:
                text = str(error)
            said.append(ToolMessage(content=text, tool_call_id=call.id))
        return said


def load_environment(env_id, **arguments):
    return importlib.import_module(env_id.replace("-", "_")).load_environment(**arguments)
