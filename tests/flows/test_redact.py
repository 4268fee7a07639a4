"""What counts as a secret."""

import pytest

from flows.redact import hide_secrets, is_secret_key, redact, reveal


@pytest.mark.parametrize(
    "key", ["hf_token", "token", "api_key", "OPENAI_API_KEY", "password", "aws_secret_access_key", "HUB_TOKEN"]
)
def test_a_secret_key_is_told(key):
    assert is_secret_key(key)


@pytest.mark.parametrize(
    "key", ["pad_token", "eos_token", "max_new_tokens", "tokenizer", "micro_batch_tokens", "keyword", "key"]
)
def test_an_ordinary_key_is_not_taken_for_a_secret(key):
    assert not is_secret_key(key)


def test_what_is_hidden_can_be_revealed_again(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "pw")
    node = {"url": "https://user:${oc.env:DB_PASSWORD}@host", "api_key": "abc$def", "list": [{"token": "t"}]}
    hidden = hide_secrets(node)
    assert reveal(hidden["url"]["_env_"]) == "https://user:pw@host"
    assert reveal(hidden["api_key"]["_env_"]) == "abc$def"
    assert reveal(hidden["list"][0]["token"]["_env_"]) == "t"
    assert "pw" not in str(hidden)


def test_references_missing_values_and_plain_settings_stay():
    node = {"token": "${other.token}", "api_key": "???", "path": "${oc.env:HOME}", "n": 3, "password": None}
    assert hide_secrets(node) == node


def test_text_is_redacted_by_key_and_by_look():
    assert redact("rl_1.model.hub_token=abc") == "rl_1.model.hub_token=***"
    assert redact("model.path=hf_abcdefghijklmnopqrst") == "model.path=***"
    assert redact("uri=https://me:pw@host/x") == "uri=https://***@host/x"
    assert redact("rl_1.steps=5") == "rl_1.steps=5"


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(KeyError, match="NOT_SET_ANYWHERE"):
        reveal("$NOT_SET_ANYWHERE")
