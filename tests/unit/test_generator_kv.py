"""KV under a cap, shared prefixes, preemption and priorities, step by step."""

import mmap
from concurrent.futures import Future

import numpy
import pytest
import torch

from headway.core.errors import UserError
from headway.generator.memory import Memory, block_tokens, room_for
from headway.generator.policies import Served
from headway.generator.prefixes import Part, Prefix, Slot
from headway.generator.prompts import next_chunk
from tests.contract.engine_contract import request
from tests.unit.loop_parts import BLOCK, CONTEXT, MODELS, PACKED, check_slots, finish, make_loop, submit

LONG = [(7 * i) % 90 + 1 for i in range(100)]


def prompts(n, start=LONG):
    return [[*start, i + 1, 2, 3] for i in range(n)]


def group(loop, items):
    pairs = [submit(loop, item) for item in items]
    return [live for live, _ in pairs], [chunks for _, chunks in pairs]


def prefixes(loop):
    return [region for region in loop.slots._at if isinstance(region, Prefix)]


def slots(loop):
    return [region for region in loop.slots._at if isinstance(region, Slot)]


@torch.inference_mode()
def agrees(live, chunk, number=0):
    prompt = list(live.request.prompt_ids)
    tokens = torch.tensor([[*prompt, *chunk.token_ids]])
    logp = MODELS[number](tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    wanted = logp.gather(1, torch.tensor(list(chunk.token_ids))[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(list(chunk.logprobs)), wanted, atol=2e-4, rtol=0)


def resident_pages(loop):
    """Pages of the KV that the kernel has handed out."""
    values = loop.cache._values
    with open("/proc/self/pagemap", "rb") as entries:
        entries.seek(values.data_ptr() // mmap.PAGESIZE * 8)
        found = entries.read(values.numel() * 4 // mmap.PAGESIZE * 8)
    return int((numpy.frombuffer(found, numpy.uint64) >> 63).sum())


def test_a_groups_prompt_is_held_once():
    loop = make_loop(max_running=8)
    lives, chunks = group(
        loop, [request(f"r{i}", p, seed=i, max_tokens=20) for i, p in enumerate(prompts(8))]
    )
    for _ in range(8):
        loop.step()
    (prefix,) = prefixes(loop)
    assert (prefix.own, prefix.num_holders) == (100, 8)
    assert {live.slot.start for live in lives} == {100}
    assert loop.slots.blocks_in_use() == 7 + 8  # ceil(100 / 16), and a block for each
    check_slots(loop)
    finish(loop)
    for live, (chunk,) in zip(lives, chunks, strict=True):
        agrees(live, chunk)


def test_two_requests_with_a_short_common_prompt_have_a_copy_each():
    loop = make_loop()
    group(loop, [request(f"r{i}", p, max_tokens=20) for i, p in enumerate(prompts(2))])
    for _ in range(6):
        loop.step()
    assert not prefixes(loop)
    assert sorted(slot.own for slot in slots(loop))[0] > 100
    finish(loop)


def test_a_conversation_forked_into_branches_shares_what_came_before():
    loop = make_loop(max_running=8)
    stem, _ = submit(loop, request("stem", [*LONG, 5], session="a", max_tokens=20))
    finish(loop)
    context = list(stem.tokens)
    items = [request(f"b{i}", [*context, i + 1], session=f"b{i}", max_tokens=30) for i in range(7)]
    lives, chunks = group(loop, items)
    for _ in range(8):
        loop.step()
    shared = {part.prefix for live in lives for part in live.slot.shared}
    assert [prefix.own for prefix in shared] == [len(context) - 1]  # the last token's KV is nobody's
    finish(loop)
    for live, (chunk,) in zip(lives, chunks, strict=True):
        agrees(live, chunk)


def test_a_prefix_outlives_its_holders_and_is_found_again():
    loop = make_loop(max_running=8)
    first = [request(f"r{i}", p, max_tokens=2) for i, p in enumerate(prompts(8))]
    group(loop, first)
    finish(loop)
    for item in first:
        loop.slots.end_session(item.session)
    (prefix,) = prefixes(loop)
    assert prefix.num_holders == 0
    live, chunks = submit(loop, request("late", prompts(1)[0], max_tokens=9))
    loop.places.admit()
    chosen = next_chunk(loop.places.running, loop.slots, 40)
    assert chosen == [(live, 2)]
    assert live.slot.shared == (Part(prefix, 100),)
    finish(loop)
    agrees(live, chunks[0])


def test_no_policy_is_served_from_another_ones_kv():
    loop = make_loop(max_running=8)
    group(loop, [request(f"r{i}", p, max_tokens=2) for i, p in enumerate(prompts(8))])
    finish(loop)
    assert prefixes(loop)
    tenant = Served("tenant", 0, 0)
    live, _ = submit(loop, request("other", prompts(1)[0], session="r0", max_tokens=9))
    live.served = tenant
    loop.places.admit()
    assert next_chunk(loop.places.running, loop.slots, 40) == [(live, 40)]  # a whole chunk: nothing was found
    assert (live.slot.resident, live.slot.shared) == (0, ())
    finish(loop)


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_an_update_leaves_no_prefix_of_the_old_weights(kv):
    loop = make_loop(max_running=8)
    lives, chunks = group(loop, [request(f"r{i}", p, max_tokens=40) for i, p in enumerate(prompts(8))])
    for _ in range(8):
        loop.step()
    (old,) = prefixes(loop)
    loop.swap(PACKED[1], 0, 1, kv, Future())
    check_slots(loop)
    assert old.salt is None
    assert (old in loop.slots._at) == (kv == "keep")
    late, answer = submit(loop, request("late", prompts(1)[0], max_tokens=5))
    finish(loop)
    agrees(late, answer[0], 1)
    assert old not in loop.slots._at
    for _, (chunk,) in zip(lives, chunks, strict=True):
        assert [span.number for span in chunk.spans] == [0, 1]


def test_two_that_do_not_fit_together_finish_one_after_the_other():
    loop = make_loop(num_blocks=CONTEXT // BLOCK)
    items = [request(f"r{i}", [i + 1, 2, 3], max_tokens=CONTEXT, seed=i) for i in range(2)]
    lives, chunks = group(loop, items)
    finish(loop, 2 * CONTEXT + 20)
    assert loop.places.num_preemptions > 0
    assert loop.stats.num_preemptions == loop.places.num_preemptions
    for live, (chunk,) in zip(lives, chunks, strict=True):
        assert len(chunk.token_ids) == CONTEXT - 3
        agrees(live, chunk)


def test_the_last_of_the_lowest_priority_gives_way_and_comes_back_before_its_equals():
    loop = make_loop(num_blocks=14, max_running=3)
    items = [
        request(name, [3, 4, 5], priority=p, max_tokens=120) for name, p in (("a", 1), ("b", 0), ("c", 1))
    ]
    lives, _ = group(loop, items)
    late, _ = submit(loop, request("d", [3, 4, 6], priority=1, max_tokens=3))
    while loop.places.num_preemptions == 0:
        loop.step()
    assert lives[2].slot is None
    assert lives[0].slot
    assert lives[1].slot
    assert [live for _, live in sorted(loop.places._waiting)] == [lives[2], late]
    finish(loop)


def test_a_request_of_higher_priority_takes_the_place_of_a_lower_one():
    loop = make_loop(max_running=2)
    lives, chunks = group(loop, [request(f"r{i}", [i + 1, 2], max_tokens=30, seed=i) for i in range(2)])
    for _ in range(3):
        loop.step()
    equal, _ = submit(loop, request("equal", [9, 9], max_tokens=2))
    urgent, answer = submit(loop, request("urgent", [8, 8], priority=-1, max_tokens=2))
    loop.step()
    assert urgent.slot
    assert lives[0].slot
    assert lives[1].slot is None
    assert equal.slot is None
    finish(loop)
    assert len(answer) == 1
    for live, (chunk,) in zip(lives, chunks, strict=True):
        agrees(live, chunk)


def test_one_that_shares_a_part_of_a_longer_prefix_still_fits_alone():
    loop = make_loop(num_blocks=CONTEXT // BLOCK, max_running=2)
    prefix = LONG + LONG[:60]
    slot = loop.slots.acquire(
        "s", submit(loop, request("x", [*prefix, 1]))[0].tokens, loop.policies.main.salt, 160
    )
    slot.resident = 160
    loop.slots.memory.take(slot.index, 160)
    kept = loop.slots._promote(slot, 160)
    loop.slots.release(slot)
    loop.abort(None)
    assert kept is not None
    kept.salt = loop.policies.main.salt
    live, chunks = submit(loop, request("r", [*LONG[:80], 1], max_tokens=CONTEXT))
    loop.step()
    assert live.slot.shared == (Part(kept, 80),)
    finish(loop)
    assert len(chunks[0].token_ids) == CONTEXT - 81
    assert loop.places.num_preemptions == 1


def test_what_is_dropped_is_given_back_to_the_kernel():
    loop = make_loop(num_blocks=400, max_running=32)
    group(loop, [request(f"r{i}", [i + 1, *LONG, 2], max_tokens=70) for i in range(32)])
    finish(loop)
    pages_of_block = 2 * 2  # keys and values of two layers
    held = loop.slots.memory.num_held
    assert 300 < held <= 400
    assert resident_pages(loop) == held * pages_of_block
    loop.slots.reserve(400)
    assert loop.slots.memory.num_held == resident_pages(loop) == 0


def test_dropped_pages_read_as_zeros_and_kept_ones_keep_their_values():
    loop = make_loop()
    keys, _ = loop.cache.layer(1)
    keys[:3] = 5.0
    loop.cache.give_back(1, 32)
    assert (keys[1, :, :32] == 5.0).all()
    assert (keys[1, :, 32:] == 0.0).all()
    loop.cache.give_back(0, 0)
    assert (keys[0] == 0.0).all()
    assert (keys[2] == 5.0).all()


def test_a_block_fills_pages():
    assert [block_tokens(d, 512, "cpu") for d in (8, 64, 80, 128)] == [128, 16, 64, 8]
    assert block_tokens(64, 500, "cuda") == 500


def test_a_cap_becomes_slots_on_a_gpu_and_blocks_on_a_cpu():
    facts = {"kv_bytes_per_token": 1 << 10, "head_dim": 64, "max_context_tokens": 1000, "max_running": 4}
    assert room_for(**facts, kv_cache_mb=0) == (12, 8 * 63)
    assert room_for(**facts, kv_cache_mb=2) == (12, 128)
    assert room_for(**facts, kv_cache_mb=4, device_type="cuda") == (4, 4)
    with pytest.raises(UserError, match="takes 2064384 bytes") as caught:
        room_for(**facts | {"kv_bytes_per_token": 1 << 11}, kv_cache_mb=1)
    assert caught.value.key == "generator.kv_cache_mb"


def test_memory_counts_what_is_held():
    freed = []
    memory = Memory(2, 10, 16, lambda slot, column: freed.append((slot, column)))
    memory.take(0, 33)
    assert (memory.held, memory.num_free, memory.lacking(0, 49)) == ([3, 0], 7, 1)
    memory.trim(0, 17)
    memory.trim(0, 17)
    assert (memory.held, memory.num_held, freed) == ([2, 0], 2, [(0, 32)])
