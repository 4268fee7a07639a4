"""The embedded default model: a small Llama and its tokenizer, made from the run's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from components.rng import derive

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

PAD, UNKNOWN, TURN_START, TURN_END = "<pad>", "<unk>", "<|im_start|>", "<|im_end|>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<tool>", "</tool>", "<result>", "</result>")
ROLES = ("system", "user", "assistant")

# Every turn is <|im_start|>role\ncontent<|im_end|>; an answer starts inside its thought.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)


def train_tokenizer(lines: Iterable[str], vocab_size: int = 576) -> Any:
    """Byte-level BPE of at most ``vocab_size`` tokens: digits alone, tags and turn markers as single tokens.

    The alphabet is printable ASCII and every byte that occurs in ``lines``; any other byte becomes ``<unk>``, so that
    nothing disappears from a prompt unseen. ``<pad>`` differs from the end of a turn, which is the eos token.

    Args:
        lines: text to learn merges from; a small vocabulary is reached early when the text is simple.

    Returns:
        A fast tokenizer of transformers, with a chat template whose generation prompt ends in ``<think>``.

    Raises:
        ValueError: no text, or a vocabulary too small for the alphabet and the special tokens.
    """
    # Heavy, and not needed where a settings node is only checked.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = [line for line in lines if line]
    if not text:
        raise ValueError("the tokenizer needs text to learn from, got no lines")
    # Role headers are in every prompt but not in the text: seen this often they become single tokens.
    headers = [f"{role}\n" for role in ROLES] * max(50, len(text) // 8)
    special = [PAD, TURN_START, TURN_END, *TAGS, UNKNOWN]
    bpe = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]  # ByteLevel's letters for space and newline
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([*text, *headers], trainer)
    if bpe.get_vocab_size() > vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} cannot hold the {len(special)} special tokens and the alphabet of the text: "
            f"needs at least {bpe.get_vocab_size()}"
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=TURN_END,
        unk_token=UNKNOWN,
        additional_special_tokens=[TURN_START, *TAGS],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A Llama of about 0.4 M parameters, transformers' own class, with random weights: to be pretrained first.

    Attributes:
        hidden_size, layers, heads, kv_heads, mlp: width, depth, query heads, key/value heads, width of the MLP.
        vocab_size: upper bound for the tokenizer.
        max_position: longest sequence in tokens.
        init_std: standard deviation of every initial matrix; embeddings are tied to the head.
    """

    needs_pretraining: ClassVar[bool] = True

    hidden_size: int = 96
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 288
    vocab_size: int = 576
    max_position: int = 1024
    init_std: float = 0.05

    def __post_init__(self) -> None:
        if problems := tiny_check(vars(self)):
            raise ValueError("; ".join(problems))

    def build(
        self, lines: Iterable[str], seed: int, *, say: Callable[[str], None] | None = None
    ) -> tuple[LlamaForCausalLM, Any]:
        """Tokenizer learned from ``lines``, weights drawn from ``seed``: float32, in eval mode, on the CPU.

        Args:
            say: takes one line about what was made.
        """
        import torch  # heavy, see above
        from transformers import LlamaConfig, LlamaForCausalLM

        tokenizer = train_tokenizer(lines, self.vocab_size)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.hidden_size // self.heads,
            intermediate_size=self.mlp,
            max_position_embeddings=self.max_position,
            initializer_range=self.init_std,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            dtype="float32",
        )
        with torch.random.fork_rng(devices=[]):  # transformers draws from the global stream
            torch.manual_seed(derive(seed, "tiny", "weights"))
            model = LlamaForCausalLM(config)
        if say is not None:
            weights = sum(parameter.numel() for parameter in model.parameters())
            say(f"tiny model: {weights:,} weights, {len(tokenizer)} tokens")
        return model.eval(), tokenizer


def tiny_check(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with a model's measures; preflight asks before anything runs."""
    sizes = ("hidden_size", "layers", "heads", "kv_heads", "mlp", "vocab_size", "max_position")
    problems = [
        f"{name}: must be at least 1, got {settings[name]}. Fix: write more" for name in sizes if settings[name] < 1
    ]
    if problems:
        return problems
    hidden, heads, kv_heads = (settings[name] for name in ("hidden_size", "heads", "kv_heads"))
    if hidden % (2 * heads):
        near = max(1, round(hidden / (2 * heads))) * 2 * heads
        problems.append(f"hidden_size: {hidden} must be an even multiple of heads={heads}. Fix: write {near}")
    if heads % kv_heads:
        problems.append(f"heads: {heads} must be a multiple of kv_heads={kv_heads}. Fix: write kv_heads=1 or {heads}")
    if settings["init_std"] <= 0:
        problems.append(f"init_std: must be positive, got {settings['init_std']}. Fix: 0.05 is usual")
    return problems
