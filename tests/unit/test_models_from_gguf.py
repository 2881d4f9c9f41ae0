"""A tiny GGUF file, written here with llama.cpp's row order, converts to what transformers reads from it."""

import numpy as np
import pytest

from headway.core.errors import ModelError
from headway.models.checkpoint import resolve, verify
from headway.models.from_gguf import tensor_name, to_bfloat16_bits, unpermute
from headway.models.load import load_causal_lm
from headway.models.tiny import CHAT_TEMPLATE, _byte_characters

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS, CONTEXT = 32, 4, 2, 64, 2, 128


def llama_cpp_permute(weight, num_heads):
    """As llama.cpp's converter does it: (heads, halves, d/2) becomes (heads, d/2, halves)."""
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


def round_to_bfloat16(weight):
    return (to_bfloat16_bits(weight).astype(np.uint32) << 16).view(np.float32)


def write_gguf(path, pre="smollm", drop=()):
    import gguf

    rng = np.random.default_rng(0)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_characters(), "Ġa", "12"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ a", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)

    def weight(*shape):
        # bfloat16 values, so that the conversion is exact.
        return round_to_bfloat16(rng.normal(0, 0.1, shape).astype(np.float32))

    keys = KV_HEADS * HIDDEN // HEADS
    tensors = {"token_embd": weight(len(tokens), HIDDEN), "output_norm": 1 + weight(HIDDEN)}
    original = {}
    for layer in range(LAYERS):
        block = {
            "attn_norm": 1 + weight(HIDDEN),
            "ffn_norm": 1 + weight(HIDDEN),
            "attn_q": weight(HIDDEN, HIDDEN),
            "attn_k": weight(keys, HIDDEN),
            "attn_v": weight(keys, HIDDEN),
            "attn_output": weight(HIDDEN, HIDDEN),
            "ffn_gate": weight(INTERMEDIATE, HIDDEN),
            "ffn_up": weight(INTERMEDIATE, HIDDEN),
            "ffn_down": weight(HIDDEN, INTERMEDIATE),
        }
        original[f"model.layers.{layer}.self_attn.q_proj.weight"] = block["attn_q"]
        original[f"model.layers.{layer}.self_attn.k_proj.weight"] = block["attn_k"]
        block["attn_q"] = llama_cpp_permute(block["attn_q"], HEADS)
        block["attn_k"] = llama_cpp_permute(block["attn_k"], KV_HEADS)
        tensors |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    for name, value in tensors.items():
        if name not in drop:
            writer.add_tensor(f"{name}.weight", round_to_bfloat16(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return original


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    root = tmp_path_factory.mktemp("gguf")
    original = write_gguf(root / "model.gguf")
    return root / "model.gguf", resolve(str(root / "model.gguf"), root / "cache"), original


def test_unpermute_undoes_llama_cpp_by_head():
    rows = np.arange(8, dtype=np.float32)[:, None]
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7], dtype=np.float32)[:, None]
    np.testing.assert_array_equal(llama_cpp_permute(rows, 2), stored)
    np.testing.assert_array_equal(unpermute(stored, 2), rows)


def test_bfloat16_rounds_to_nearest_and_ties_to_even():
    import torch

    values = np.random.default_rng(0).normal(0, 3, 4096).astype(np.float32)
    values[:4] = [1 + 2**-8, 1 + 3 * 2**-8, -0.0, 3.0e38]
    bits = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16_bits(values), bits)


def test_projections_come_back_in_hugging_face_order(converted):
    _, path, original = converted
    verify(path)
    weights = load_causal_lm(path).state_dict()
    for name, value in original.items():
        np.testing.assert_array_equal(weights[name].numpy(), value)


def test_logits_equal_those_of_transformers_own_reading(converted):
    import torch
    from transformers import AutoModelForCausalLM

    source, path, _ = converted
    reference = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    ).eval()
    ids = torch.tensor([[1, 40, 50, 60, 2, 70, 9]])
    with torch.no_grad():
        ours, theirs = load_causal_lm(path)(ids).logits, reference(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_tokenizer_splits_digits_and_knows_the_markers(converted):
    from transformers import PreTrainedTokenizerFast

    _, path, _ = converted
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x a12")) == ["x", "Ġa", "1", "2"]
    assert tokenizer.encode("<|im_start|>é") == [1, *tokenizer.convert_tokens_to_ids(["Ã", "©"])]
    assert tokenizer.decode(tokenizer.encode("a  b\n½ 12")) == "a  b\n½ 12"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_a_converted_file_is_kept(converted):
    source, path, _ = converted
    before = (path / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(source), path.parents[1]) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before


def test_an_unknown_pre_tokenizer_is_refused(tmp_path):
    write_gguf(tmp_path / "x.gguf", pre="llama-bpe")
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre must be smollm or gpt-2 \(got 'llama-bpe'\)"):
        resolve(str(tmp_path / "x.gguf"), tmp_path)


def test_a_missing_tensor_is_refused(tmp_path):
    write_gguf(tmp_path / "x.gguf", drop=("blk.1.ffn_up",))
    with pytest.raises(ModelError, match="every tensor"):
        resolve(str(tmp_path / "x.gguf"), tmp_path)


def test_an_unknown_tensor_is_named():
    assert tensor_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    assert tensor_name("output.weight") == "lm_head.weight"
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_gate_exps\.weight"):
        tensor_name("blk.0.ffn_gate_exps.weight")
