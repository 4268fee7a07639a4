import pytest
import torch


@pytest.fixture(scope="session")
def tiny_causal_lm():
    """family, **config -> a small random model; norms and biases are not left at their neutral values."""
    return build


def build(family, *, seed=0, **config):
    import transformers

    settings = {
        "vocab_size": 512,
        "hidden_size": 96,
        "intermediate_size": 288,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
    } | config
    torch.manual_seed(seed)
    model_config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}ForCausalLM")(model_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn(parameter.shape)
    return model
