from dataclasses import asdict, dataclass


class _Record:
    def model_dump(self):
        return asdict(self)


@dataclass
class ToolCall(_Record):
    id: str
    name: str
    arguments: str


@dataclass
class Tool(_Record):
    name: str
    description: str
    parameters: dict
    strict: bool | None = None


@dataclass
class UserMessage(_Record):
    content: str
    role: str = "user"


@dataclass
class ToolMessage(_Record):
    content: str
    tool_call_id: str
    role: str = "tool"


@dataclass
class AssistantMessage(_Record):
    content: str | None
    tool_calls: list | None = None
    role: str = "assistant"


@dataclass
class ResponseMessage(_Record):
    role: str
    content: str
    tool_calls: list | None
    finish_reason: str
    is_truncated: bool


@dataclass
class Response:
    id: str
    created: int
    model: str
    usage: object
    message: ResponseMessage
