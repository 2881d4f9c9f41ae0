"""A decode loop without its thread, on a model whose KV takes a block every 16 tokens."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headway.generator.decoder import Decoder
from headway.generator.kv import KvCache
from headway.generator.live import Live
from headway.generator.loop import DecodeLoop, LoopLimits
from headway.generator.memory import Memory
from headway.generator.packing import pack_weights
from headway.generator.places import Places
from headway.generator.policies import Policies, Served
from headway.generator.prefixes import Prefix, Slot
from headway.generator.slots import Slots
from headway.models.shape import model_shape

VOCAB, CONTEXT, BLOCK = 97, 192, 16


def small_model(seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=CONTEXT, initializer_range=0.15,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


MODELS = [small_model(seed) for seed in range(2)]
SHAPE = model_shape(MODELS[0].config.to_dict())
PACKED = [pack_weights(SHAPE, model.state_dict().items()) for model in MODELS]


def make_loop(num_blocks=1000, max_running=4, prefill_chunk_tokens=40):
    torch.set_num_threads(1)
    cache = KvCache(SHAPE, 3 * max_running, CONTEXT, torch.device("cpu"))
    assert cache.block_tokens == BLOCK
    memory = Memory(3 * max_running, num_blocks, BLOCK, cache.give_back)
    slots = Slots(cache, memory, 2 * max_running)
    return DecodeLoop(
        Decoder(SHAPE, PACKED[0], CONTEXT),
        cache,
        slots,
        Places(slots, max_running),
        LoopLimits(prefill_chunk_tokens, 0),
        "r0",
        Policies(Served("", 0, 0)),
        None,
        num_blocks,
    )


def submit(loop, item):
    """Submit a request; return it and the list that its chunks come to."""
    chunks = []
    room = min(item.sampling.max_tokens, CONTEXT - len(item.prompt_ids))
    live = Live.of(item, loop.policies.main, room, chunks.append, 8)
    loop.submit(live)
    return live, chunks


def finish(loop, most_steps=5000):
    """Step until nothing is left; a loop that comes to no end fails."""
    for _ in range(most_steps):
        if not loop.places.all():
            return
        loop.step()
    raise AssertionError(f"{len(loop.places.all())} requests never ended")


def check_slots(loop):
    """What the slots, the prefixes and the memory say of one another holds."""
    slots, memory = loop.slots, loop.slots.memory
    regions = [region for region in slots._at if region is not None]
    assert sorted([*slots._free, *(region.index for region in regions)]) == list(range(len(memory.held)))
    assert all(slots._at[region.index] is region for region in regions)
    assert memory.num_held == sum(memory.held) <= memory.num_blocks
    holders = {id(region): 0 for region in regions}
    for region in regions:
        assert region.own >= 0
        assert memory.held[region.index] >= memory.blocks(region.own)
        for part in region.shared:
            holders[id(part.prefix)] += 1
            assert 0 < part.num_tokens <= part.prefix.own
            assert (
                region.tokens[: part.prefix.start + part.num_tokens]
                == (part.prefix.tokens[: part.prefix.start + part.num_tokens])
            )
    prefixes = [region for region in regions if isinstance(region, Prefix)]
    assert all(holders[id(prefix)] == prefix.num_holders for prefix in prefixes)
    running = [live.slot for live in loop.places.running]
    assert {id(slot) for slot in running} == {id(r) for r in regions if isinstance(r, Slot) and r.busy}
