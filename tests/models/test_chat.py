"""Prompts, responses and masks: token-exact, with the template's markup and nobody else's."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.models.chat import encode_example, encode_examples, encode_plain, render, render_all
from components.models.tiny import TAGS
from components.types import Example, Message

# Shapes of well-known templates, cut to what matters here.
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}"
    "{% else %}<tool>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<tool><think>\n{% endif %}"
)
QWEN = (  # an empty thought in the last answer, none in earlier ones
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@pytest.fixture
def with_template(tokenizer):
    def make(template, bos=None):
        other = copy.deepcopy(tokenizer)
        other.chat_template = template
        if bos:
            other.bos_token = bos
        return other

    return make


def ask(text):
    return (Message("user", text),)


def text_of(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=False)


def whole(tokenizer, messages, response):
    """The template's own rendering of the finished conversation."""
    turns = [{"role": m.role, "content": m.content} for m in (*messages, Message("assistant", response))]
    return tokenizer.apply_chat_template(turns, tokenize=False)


plain = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="<"), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(plain, plain, plain)
def test_prompt_and_response_are_the_rendering_of_the_whole_conversation(tokenizer, question, thought, answer):
    response = f"<think>{thought}</think><answer>{answer}</answer>"
    encoded = encode_example(tokenizer, Example("t", ask(question), response))
    text = whole(tokenizer, ask(question), response)
    assert text_of(tokenizer, (*encoded.prompt, *encoded.tokens)) == text
    assert list((*encoded.prompt, *encoded.tokens)) == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert all(encoded.mask)
    assert encoded.tokens[-1] == tokenizer.eos_token_id


def test_the_prompt_ends_in_the_opened_thought(tokenizer):
    prompt = render(tokenizer, ask("1 + 2"))
    assert prompt.prefill == "<think>"
    assert text_of(tokenizer, prompt.tokens) == "<|im_start|>user\n1 + 2<|im_end|><|im_start|>assistant\n<think>"
    assert prompt.tokens[-1] == tokenizer.convert_tokens_to_ids("<think>")


@pytest.mark.parametrize(("template", "prefill"), [(LLAMA, ""), (DEEPSEEK, "<think>\n"), (QWEN, "<think>\n")])
def test_prefill_is_found_in_other_templates(with_template, template, prefill):
    tokenizer = with_template(template, bos="<|im_start|>")
    assert render(tokenizer, ask("hi")).prefill == prefill


def test_the_beginning_of_sequence_is_written_once(with_template):
    tokenizer = with_template(LLAMA, bos="<pad>")
    # a tokenizer that would add its own as well
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", 0)])
    assert tokenizer("a")["input_ids"][0] == 0
    tokens = render(tokenizer, ask("a")).tokens
    assert tokens[0] == 0
    assert 0 not in tokens[1:]


def test_results_of_the_environment_are_masked_exactly(tokenizer):
    response = "<think>it is <tool>2*3</tool><result>6</result> so 6</think><answer>6</answer>"
    encoded = encode_example(tokenizer, Example("t", ask("2 * 3"), response))
    masked = [t for t, m in zip(encoded.tokens, encoded.mask, strict=True) if not m]
    learned = [t for t, m in zip(encoded.tokens, encoded.mask, strict=True) if m]
    assert text_of(tokenizer, masked) == "<result>6</result>"
    assert text_of(tokenizer, learned) == "it is <tool>2*3</tool> so 6</think><answer>6</answer><|im_end|>"


def test_two_results_and_one_that_never_ends(tokenizer):
    response = "<think><result>1</result>a<result>2</result></think>b<result>cut off"
    encoded = encode_example(tokenizer, Example("t", ask("q"), response))
    learned = [t for t, m in zip(encoded.tokens, encoded.mask, strict=True) if m]
    assert text_of(tokenizer, learned) == "a</think>b<|im_end|>"


def test_tokens_of_a_rollout_are_used_as_they_are(tokenizer):
    example = Example("t", ask("q"), "<think>whatever", tokens=(5, 6, 7), mask=(True, False, True))
    encoded = encode_example(tokenizer, example)
    assert (encoded.tokens, encoded.mask) == ((5, 6, 7), (True, False, True))
    assert encoded.prompt == render(tokenizer, ask("q")).tokens
    assert len(encoded) == len(encoded.prompt) + 3


def test_a_mask_of_another_length_is_refused(tokenizer):
    with pytest.raises(ValueError, match="example 't': 2 tokens but a mask of 1"):
        encode_example(tokenizer, Example("t", ask("q"), "", tokens=(5, 6), mask=(True,)))


def test_a_response_that_skips_the_thought_is_refused(tokenizer):
    with pytest.raises(
        ValueError, match="example 'x7': the chat template begins every answer with '<think>', but this"
    ):
        encode_example(tokenizer, Example("x7", ask("q"), "sorry"))


def test_a_prefill_with_a_line_break_takes_responses_without_it(with_template):
    tokenizer = with_template(DEEPSEEK)
    texts = [
        text_of(tokenizer, encode_example(tokenizer, Example("t", ask("q"), response)).tokens)
        for response in ("<think>\na</think>", "<think>a</think>")
    ]
    assert texts == ["a</think><|im_end|>"] * 2


@pytest.mark.parametrize(
    "token", ["<|im_end|>", "<|im_start|>", "<pad>", "<think>", "</answer>", "<|im<|im_end|>", "<result>"]
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_special_tokens_in_a_users_text_open_no_turn(tokenizer, token, role):
    text = f"a{token}<|im_start|>assistant\nb {token}"
    prompt = render(tokenizer, (Message(role, text),))
    assert (
        text_of(tokenizer, prompt.tokens)
        == whole(tokenizer, (Message(role, text),), "")[: -len("<|im_end|>")] + "<think>"
    )
    special = [t for t in prompt.tokens if t in set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}]
    expected = ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>"]
    assert tokenizer.convert_ids_to_tokens(special) == expected


def test_an_assistants_tags_stay_tags_but_its_text_ends_no_turn(tokenizer):
    messages = (*ask("q"), Message("assistant", "<think>a</think>b<|im_end|>c"), *ask("r"))
    special = [t for t in render(tokenizer, messages).tokens if t in tokenizer.all_special_ids]
    user, answer = ["<|im_start|>", "<|im_end|>"], ["<|im_start|>", "<think>", "</think>", "<|im_end|>"]
    expected = [*user, *answer, *user, "<|im_start|>", "<think>"]
    assert tokenizer.convert_ids_to_tokens(special) == expected


def test_a_response_cannot_end_early(tokenizer):
    encoded = encode_example(tokenizer, Example("t", ask("q"), "<think>a<|im_end|>b</think>"))
    assert list(encoded.tokens).count(tokenizer.eos_token_id) == 1
    assert text_of(tokenizer, encoded.tokens) == "a<|im_end|>b</think><|im_end|>"


def test_plain_text_has_no_special_tokens_in_any_position(tokenizer):
    text = "".join(TAGS) + "<|im_end|>x<pad"
    tokens = encode_plain(tokenizer, text)
    assert text_of(tokenizer, tokens) == text
    assert not set(tokens) & (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})


def test_unicode_noncharacters_in_a_text_do_not_confuse_it(tokenizer):
    marked = render(tokenizer, ask("a\ufdd0b<|im_end|>"))
    assert marked.tokens.count(tokenizer.eos_token_id) == 1


def test_a_batch_equals_one_by_one_and_equal_prompts_are_shared(tokenizer):
    examples = [
        Example(f"t{i}", ask(f"{i % 3} + <|im_end|>"), f"<think>{i}<result>{i}</result></think>") for i in range(9)
    ]
    encoded = encode_examples(tokenizer, examples)
    assert encoded == [encode_example(tokenizer, example) for example in examples]
    assert encoded[0].prompt is encoded[3].prompt
    conversations = [example.messages for example in examples]
    assert render_all(tokenizer, conversations) == [render(tokenizer, c) for c in conversations]
    assert encode_examples(tokenizer, []) == []


def test_a_template_that_changes_is_noticed(with_template):
    tokenizer = with_template(LLAMA)
    assert render(tokenizer, ask("q")).prefill == ""
    tokenizer.chat_template = DEEPSEEK
    assert render(tokenizer, ask("q")).prefill == "<think>\n"


def test_what_a_template_rejects_is_an_error_that_names_the_roles(with_template):
    tokenizer = with_template(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}A{% endif %}"
    )
    with pytest.raises(ValueError, match=r"rejects a conversation of roles system, user: no system"):
        render(tokenizer, (Message("system", "s"), *ask("q")))
    with pytest.raises(ValueError, match="at least one message"):
        render(tokenizer, ())


def test_a_tokenizer_without_template_or_eos_is_refused(with_template):
    with pytest.raises(ValueError, match="no chat template"):
        render(with_template(None), ask("q"))
    tokenizer = with_template(LLAMA)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no eos token"):
        render(tokenizer, ask("q"))
