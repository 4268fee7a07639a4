"""An environment as people write them for the package verifiers: a tool, and a guessing game over turns."""


def load_environment(game="tools", rows=8):
    import verifiers as vf
    from datasets import Dataset

    if game == "tools":

        async def double(x: int) -> int:
            """Double a number.

            Args:
                x: the number.
            """
            return 2 * x

        async def right(completion, answer) -> float:
            last = completion[-1]
            text = last["content"] if isinstance(last, dict) else last.content
            return 1.0 if answer in (text or "") else 0.25

        data = Dataset.from_list([{"question": f"Double {i}.", "answer": str(2 * i)} for i in range(10, 10 + rows)])
        return vf.ToolEnv(dataset=data, tools=[double], rubric=vf.Rubric(funcs=[right]), max_turns=4)

    class Guess(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            said, wanted = messages[-1].content.strip(), state["answer"]
            if said == wanted:
                state["final_env_response"] = [vf.UserMessage(content="right")]
                return state["final_env_response"]
            if not said.isdigit():
                raise RuntimeError("not a number at all")
            return [vf.UserMessage(content="higher" if int(said) < int(wanted) else "lower")]

    async def fast(state, answer) -> float:
        won = state.get("final_env_response") is not None
        return 1.0 / len(state["trajectory"]) if won else 0.0

    data = Dataset.from_list([{"question": f"Guess, game {i}.", "answer": str(i)} for i in range(rows)])
    return Guess(dataset=data, rubric=vf.Rubric(funcs=[fast]), max_turns=5)
