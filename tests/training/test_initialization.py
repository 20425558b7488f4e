"""The induction circuit: what a laid-out model can do before its first step, and what it refuses."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from headrace.errors import ConfigError
from headrace.training.initialization import lay_induction_circuit

VOCABULARY = 200


def model(**changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    return AutoModelForCausalLM.from_config(Qwen2Config(**{**fields, **changes}), dtype=torch.float32)


def copied_share(laid_out: torch.nn.Module) -> float:
    """Share of a random sequence's second half whose next token is likeliest, the present token left out."""
    generator = torch.Generator().manual_seed(1)
    half = torch.randint(0, VOCABULARY, (4, 30), generator=generator)
    ids_BT = torch.cat([half, half], dim=1)
    with torch.inference_mode():
        logits_BTV = laid_out(input_ids=ids_BT).logits[:, 32:-1]
    present_BT, next_BT = ids_BT[:, 32:-1], ids_BT[:, 33:]
    logits_BTV = logits_BTV.scatter(2, present_BT[..., None], -torch.inf)
    return float((logits_BTV.argmax(-1) == next_BT).float().mean())


@pytest.mark.parametrize("key_value_heads", [2, 4])
def test_a_laid_out_model_copies_from_its_context_before_any_training(key_value_heads: int) -> None:
    plain, laid_out = (model(num_key_value_heads=key_value_heads) for _ in range(2))
    lay_induction_circuit(laid_out, torch.Generator().manual_seed(2))
    assert copied_share(plain) < 0.02
    assert copied_share(laid_out) > 0.15, "thirty times chance"


def test_heads_of_the_first_layer_attend_one_and_two_places_back() -> None:
    laid_out = model(attn_implementation="eager")
    lay_induction_circuit(laid_out, torch.Generator().manual_seed(2))
    ids = torch.randint(0, VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        attention_HTT = laid_out(input_ids=ids, output_attentions=True).attentions[0][0]
    for head, offset in ((0, 1), (1, 2)):
        assert float(attention_HTT[head].diagonal(-offset)[5:].min()) > 0.9


@pytest.mark.parametrize(
    "changes",
    [{"tie_word_embeddings": True}, {"num_key_value_heads": 1}, {"num_hidden_layers": 1}],
    ids=lambda changes: next(iter(changes)),
)
def test_an_architecture_without_room_for_it_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="an induction circuit needs"):
        lay_induction_circuit(model(**changes), torch.Generator().manual_seed(2))
