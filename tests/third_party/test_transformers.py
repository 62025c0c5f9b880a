"""transformers: tiny BERT, GPT-2 and T5 of random weights, one sentence an example."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.third_party.checking import check

pytest.importorskip("transformers", reason="transformers is not installed: make trials")

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

SENTENCES = [torch.tensor(words) for words in ([5, 3, 9], [7, 2], [4, 8, 6, 1, 3], [9, 9])]


def bert(kind: Any = BertModel, **settings: Any) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    return kind(BertConfig(vocab_size=20, max_position_embeddings=16, **sizes, **settings)).double().eval()


def gpt2(kind: Any = GPT2LMHeadModel, **settings: Any) -> Any:
    sizes: dict[str, Any] = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return kind(GPT2Config(vocab_size=20, bos_token_id=0, eos_token_id=0, **sizes, **settings)).double().eval()


def t5(kind: Any = T5ForConditionalGeneration, **settings: Any) -> Any:
    sizes: dict[str, Any] = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    ends: dict[str, Any] = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    return kind(T5Config(vocab_size=20, **sizes, **ends, **settings)).double().eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bert(attention: str) -> None:
    model = bert(attn_implementation=attention)
    check(lambda words: model(words[None]).last_hidden_state[0], SENTENCES, model.parameters())


def test_bert_output() -> None:
    model = bert()
    check(lambda words: model(words[None]), SENTENCES, model.parameters())


def test_bert_tuple() -> None:
    model = bert()
    check(lambda words: model(words[None], return_dict=False), SENTENCES, model.parameters())


def test_bert_mask() -> None:
    model = bert()

    def function(words: Any) -> Any:
        return model(words[None], attention_mask=(words != 9).long()[None]).pooler_output

    check(function, SENTENCES[:3], model.parameters())


def test_bert_attentions() -> None:
    model = bert(attn_implementation="eager")
    check(lambda words: model(words[None], output_attentions=True).attentions, SENTENCES, model.parameters())


def test_bert_embedded() -> None:
    model = bert()
    embedded = [torch.randn(1, n, 8, dtype=torch.float64, requires_grad=True) for n in (2, 4, 3)]
    check(lambda x: model(inputs_embeds=x).last_hidden_state, embedded, embedded)


def test_bert_classifier() -> None:
    model = bert(BertForSequenceClassification, num_labels=3)

    def function(words: Any) -> Any:
        return model(words[None], labels=words[:1] % 3).loss

    check(function, SENTENCES, model.parameters())


def test_bert_masked_words() -> None:
    model = bert(BertForMaskedLM)
    check(lambda words: model(words[None], labels=words[None]).loss, SENTENCES, model.parameters())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gpt2(attention: str) -> None:
    model = gpt2(GPT2Model, attn_implementation=attention)
    check(lambda words: model(words[None], use_cache=False).last_hidden_state, SENTENCES, model.parameters())


def test_gpt2_loss() -> None:
    model = gpt2()
    check(lambda words: model(words[None], labels=words[None], use_cache=False).loss, SENTENCES, model.parameters())


def test_gpt2_cache() -> None:
    model = gpt2()

    def function(words: Any) -> Any:
        first = model(words[None, :-1], use_cache=True)
        return model(words[None, -1:], past_key_values=first.past_key_values).logits

    check(function, SENTENCES, model.parameters())


def test_gpt2_generates() -> None:
    model = gpt2()
    check(lambda words: model.generate(words[None], max_new_tokens=3, do_sample=False), SENTENCES)


def test_gpt2_generates_by_hand() -> None:
    model = gpt2()

    def function(words: Any) -> Any:
        while len(words) < 8 and words[-1] != 0:
            words = torch.cat([words, model(words[None], use_cache=False).logits[0, -1].argmax().view(1)])
        return words

    check(function, SENTENCES)


def test_t5_encoder() -> None:
    model = t5(T5EncoderModel)
    check(lambda words: model(words[None]).last_hidden_state, SENTENCES, model.parameters())


def test_t5_loss() -> None:
    model = t5()
    check(lambda words: model(words[None], labels=words[None].flip(1)).loss, SENTENCES, model.parameters())


def test_t5_logits() -> None:
    model = t5()

    def function(words: Any) -> Any:
        return model(words[None], decoder_input_ids=words[None, :2], use_cache=False).logits

    check(function, SENTENCES, model.parameters())


def test_t5_generates() -> None:
    model = t5()
    check(lambda words: model.generate(words[None], max_new_tokens=3, do_sample=False), SENTENCES)
