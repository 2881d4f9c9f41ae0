import random

import pytest

from headway.models.load import load_causal_lm
from headway.models.tiny import IM_END, IM_START, TinyRecipe, conversation, make_tiny

SHORT = TinyRecipe(steps=3, batch_size=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", recipe=SHORT)


@pytest.fixture(scope="module")
def tokenizer(path):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(path)


def test_every_byte_is_its_own_token(tokenizer):
    text = "".join(map(chr, range(0x250))) + "中😀"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [256, 257, 258]
    assert len(tokenizer) == 259


def test_a_prompt_is_short_and_matches_what_the_model_was_trained_on(tokenizer):
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3+5="}], add_generation_prompt=True, return_dict=False
    )
    assert ids == [IM_START, ord("u"), *b"3+5=", IM_END, IM_START, ord("a")]


def test_a_turn_only_appends_to_the_turns_before_it(tokenizer):
    messages = [
        {"role": "system", "content": "Digits."},
        {"role": "user", "content": "3+5="},
        {"role": "assistant", "content": "8"},
        {"role": "tool", "content": "ok"},
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole == (
        "<|im_start|>sDigits.<|im_end|><|im_start|>u3+5=<|im_end|><|im_start|>a8<|im_end|><|im_start|>tok<|im_end|>"
    )
    prompt = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert whole.startswith(prompt + "8<|im_end|>")


def test_same_seed_same_weights(path, tmp_path):
    import torch

    torch.manual_seed(123)
    random.seed(123)
    again = make_tiny(tmp_path / "again", recipe=SHORT)
    other = make_tiny(tmp_path / "other", seed=1, recipe=SHORT)
    weights = (path / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == weights
    assert (other / "model.safetensors").read_bytes() != weights


def test_training_leaves_global_random_state_and_threads_alone(tmp_path):
    import torch

    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    make_tiny(tmp_path / "m", recipe=SHORT)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_texts_are_right_as_often_as_asked():
    rng = random.Random(0)
    right = 0
    for _ in range(2000):
        tokens, prompt_tokens = conversation(rng, TinyRecipe(), 0.25, two_turns=False)
        question, answer = bytes(tokens[2 : prompt_tokens - 3]).decode(), bytes(tokens[prompt_tokens:-1])
        assert tokens[-1] == IM_END
        right += eval(question.rstrip("=")) == int(answer)
    assert 0.22 < right / 2000 < 0.28


def test_answers_end_with_the_end_of_turn(path):
    model = load_causal_lm(path)
    assert model.generation_config.eos_token_id == IM_END
    assert model.config.eos_token_id == IM_END


@pytest.mark.slow
def test_the_warm_start_leaves_headroom(tmp_path):
    """On a+b with operands below 10: most answers known, but given less than half the time at T=1."""
    import torch

    model = load_causal_lm(make_tiny(tmp_path / "tiny"))
    pairs = [(a, b) for a in range(10) for b in range(10)]
    prompts = torch.tensor(
        [[IM_START, ord("u"), *f"{a}+{b}=".encode(), IM_END, IM_START, ord("a")] for a, b in pairs]
    )

    def answers(**settings):
        with torch.no_grad():
            out = model.generate(prompts, max_new_tokens=4, **settings)[:, prompts.shape[1] :]
        texts = [bytes(t for t in row.tolist() if t < 256) for row in out]
        return sum(text == str(a + b).encode() for (a, b), text in zip(pairs, texts, strict=True)) / len(
            pairs
        )

    torch.manual_seed(0)
    sampled = sum(answers(do_sample=True, top_k=0) for _ in range(5)) / 5
    assert 0.1 < sampled < 0.5
    assert answers(do_sample=False) > sampled + 0.15
