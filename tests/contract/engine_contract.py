"""What every engine does, whatever runs behind it.

Subclass EngineContract in a test module and say how an engine is made. The engine's model must have a
vocabulary of at least 64 tokens and its version 0 must be deterministic at temperature 0.
"""

import asyncio
from array import array
from dataclasses import replace

import pytest

from headway.core.protocols import Chunk, Engine, GenerateRequest, Sampling
from headway.core.records import merge_spans


def request(name, prompt, *, session="", group="", priority=0, num_answer_tokens=0, **sampling):
    options = {"max_tokens": 8, **sampling}
    return GenerateRequest(
        name,
        session or name,
        group or name,
        "policy",
        array("i", prompt),
        Sampling(**options),
        num_answer_tokens=num_answer_tokens,
        priority=priority,
    )


async def collect(engine, item):
    """Run a request to its end and join its chunks; checks the rules that hold for every request."""
    chunks = [chunk async for chunk in engine.generate(item)]
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for chunk in chunks:
        assert len(chunk.token_ids) == len(chunk.logprobs) == sum(span.num_tokens for span in chunk.spans)
        assert all(value <= 0 for value in chunk.logprobs)  # a NaN fails too
    tokens, logprobs, spans = array("i"), array("f"), []
    for chunk in chunks:
        tokens += chunk.token_ids
        logprobs += chunk.logprobs
        spans += chunk.spans
    return replace(chunks[-1], token_ids=tokens, logprobs=logprobs, spans=tuple(merge_spans(spans)))


async def collect_all(engine, items) -> list[Chunk]:
    return await asyncio.gather(*(collect(engine, item) for item in items))


class EngineContract:
    """The tests. `context` and `max_running` describe the engine that `make_engine` returns."""

    context = 64
    max_running = 4

    async def make_engine(self) -> Engine:
        """Return a fresh engine with the weights of lineage 0, number 0."""
        raise NotImplementedError

    def manifest(self, number: int) -> str:
        """Return a manifest of version `number`; versions differ."""
        raise NotImplementedError

    @pytest.fixture
    async def engine(self):
        engine = await self.make_engine()
        yield engine
        await engine.close()

    async def test_says_what_it_can_do(self, engine):
        capabilities = engine.capabilities()
        assert capabilities.max_running == self.max_running
        assert capabilities.max_context_tokens == self.context
        assert capabilities.logprobs in ("model", "sampling")

    async def test_an_answer_ends_at_its_length(self, engine):
        answer = await collect(engine, request("a", [1, 2, 3], max_tokens=5))
        assert (answer.finish, len(answer.token_ids)) == ("length", 5)
        assert answer.spans == ((0, 0, 5),)
        assert answer.message == ""

    async def test_max_tokens_is_cut_to_the_room_in_the_context(self, engine):
        # Behaviour checks 26 and 27.
        prompts = [list(range(1, 1 + n)) for n in (self.context - 1, self.context - 2, 3)]
        answers = await collect_all(
            engine, [request(str(i), p, max_tokens=1000) for i, p in enumerate(prompts)]
        )
        assert [len(answer.token_ids) for answer in answers] == [1, 2, self.context - 3]
        assert {answer.finish for answer in answers} == {"length"}

    async def test_a_stop_id_ends_the_answer_and_is_part_of_it(self, engine):
        free = await collect(engine, request("a", [1, 2, 3], temperature=0.0, max_tokens=8))
        stop = free.token_ids[2]
        first = free.token_ids.index(stop)
        item = request("b", [1, 2, 3], temperature=0.0, max_tokens=8, stop_ids=(stop,))
        answer = await collect(engine, item)
        assert answer.finish == "stop"
        assert answer.token_ids == free.token_ids[: first + 1]

    @pytest.mark.parametrize(
        ("prompt", "max_tokens"), [([], 4), ([1] * 64, 4), ([1, 2], 0), ([1, 10**8], 4), ([-1], 4)]
    )
    async def test_what_cannot_run_is_rejected_with_a_reason(self, engine, prompt, max_tokens):
        answer = await collect(engine, request("a", prompt, max_tokens=max_tokens))
        assert answer.finish == "rejected"
        assert len(answer.token_ids) == 0
        assert answer.message

    async def test_the_rest_of_the_batch_changes_no_draw(self, engine):
        items = [request(f"r{i}", [i + 1, 5, 9], seed=7) for i in range(2 * self.max_running + 1)]
        together = await collect_all(engine, items)
        for item, answer in zip(items[:3], together, strict=False):
            alone = await collect(engine, item)
            assert alone.token_ids == answer.token_ids
            assert list(alone.logprobs) == pytest.approx(list(answer.logprobs), abs=1e-4)

    async def test_the_seed_fixes_the_draw_and_the_request_id_does_not(self, engine):
        base = await collect(engine, request("a", [1, 2], max_tokens=30, seed=1))
        other_seed = await collect(engine, request("a", [1, 2], max_tokens=30, seed=2))
        other_name = await collect(engine, request("b", [1, 2], max_tokens=30, seed=1))
        assert base.token_ids != other_seed.token_ids
        assert base.token_ids == other_name.token_ids

    async def test_an_answer_that_goes_on_draws_as_if_it_had_never_stopped(self, engine):
        whole = await collect(engine, request("a", [1, 2], max_tokens=12, seed=1))
        begun = list(whole.token_ids[:5])
        rest = await collect(
            engine, request("b", [1, 2, *begun], max_tokens=7, seed=1, num_answer_tokens=len(begun))
        )
        assert begun + list(rest.token_ids) == list(whole.token_ids)

    async def test_members_of_a_group_answer_as_if_alone(self, engine):
        prompt = list(range(3, 33))
        alone = await collect(engine, request("alone", prompt, temperature=0.0))
        items = [request(f"m{i}", prompt, group="g", temperature=0.0) for i in range(6)]
        for answer in await collect_all(engine, items):
            assert answer.token_ids == alone.token_ids

    async def test_the_next_turn_of_a_session_goes_on_exactly(self, engine):
        first = await collect(engine, request("t1", [4, 8, 15], session="s", temperature=0.0))
        context = [4, 8, 15, *first.token_ids, 16, 23]
        kept = await collect(engine, request("t2", context, session="s", temperature=0.0))
        await engine.end_session("s")
        fresh = await collect(engine, request("t3", context, session="other", temperature=0.0))
        assert kept.token_ids == fresh.token_ids
        assert list(kept.logprobs) == pytest.approx(list(fresh.logprobs), abs=1e-4)

    async def test_a_session_that_changes_its_past_is_answered_right(self, engine):
        await collect(engine, request("t1", [4, 8, 15, 16], session="s", temperature=0.0))
        changed = await collect(engine, request("t2", [4, 8, 20, 21, 22], session="s", temperature=0.0))
        fresh = await collect(engine, request("t3", [4, 8, 20, 21, 22], session="x", temperature=0.0))
        assert changed.token_ids == fresh.token_ids

    async def test_abort_ends_what_was_named(self, engine):
        items = [request(f"r{i}", [1, 2, i + 3], max_tokens=1000) for i in range(self.max_running + 2)]
        tasks = [asyncio.ensure_future(collect(engine, item)) for item in items]
        await asyncio.sleep(0)
        gone = ["r1", f"r{self.max_running + 1}", "unknown"]  # running, waiting, never there
        await engine.abort(gone)
        answers = await asyncio.gather(*tasks)
        for item, answer in zip(items, answers, strict=True):
            if item.request_id in gone and answer.finish == "aborted":
                assert len(answer.token_ids) < self.context - 3
            else:
                assert (answer.finish, len(answer.token_ids)) == ("length", self.context - 3)

    async def test_abort_of_all_leaves_nothing(self, engine):
        items = [request(f"r{i}", [1, 2, i + 3], max_tokens=1000) for i in range(3 * self.max_running)]
        tasks = [asyncio.ensure_future(collect(engine, item)) for item in items]
        await asyncio.sleep(0)
        await engine.abort(None)
        assert {answer.finish for answer in await asyncio.gather(*tasks)} <= {"aborted", "length"}
        after = await collect(engine, request("after", [1, 2]))
        assert after.finish == "length"

    async def test_close_ends_everything_and_can_be_repeated(self, engine):
        items = [request(f"r{i}", [1, 2, i + 3], max_tokens=1000) for i in range(3 * self.max_running)]
        tasks = [asyncio.ensure_future(collect(engine, item)) for item in items]
        await asyncio.sleep(0)
        await asyncio.gather(engine.close(), engine.close())
        answers = await asyncio.gather(*tasks)
        assert "aborted" in {answer.finish for answer in answers}
        late = await collect(engine, request("late", [1, 2]))
        assert late.finish in ("aborted", "lost")
        assert late.message
        await engine.abort(None)
        await engine.end_session("r0")
        await engine.close()

    async def test_a_consumer_that_leaves_frees_its_place(self, engine):
        tasks = [
            asyncio.ensure_future(collect(engine, request(f"r{i}", [1, i + 2], max_tokens=1000)))
            for i in range(2 * self.max_running)
        ]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        answer = await collect(engine, request("after", [1, 2], max_tokens=2))
        assert answer.finish == "length"

    async def test_lower_priority_numbers_run_first(self, engine):
        ended = []

        async def run(item):
            await collect(engine, item)
            ended.append(item.request_id)

        blockers = [request(f"b{i}", [1, i + 2], max_tokens=40) for i in range(self.max_running)]
        late = [request(f"late{i}", [1, 40 + i], max_tokens=10, priority=5) for i in range(self.max_running)]
        soon = [request(f"soon{i}", [1, 50 + i], max_tokens=10, priority=1) for i in range(self.max_running)]
        await asyncio.gather(*(run(item) for item in (*blockers, *late, *soon)))
        order = [name.rstrip("0123456789") for name in ended]
        assert order[-self.max_running :] == ["late"] * self.max_running

    async def test_times_are_parts_of_the_requests_time(self, engine):
        began = asyncio.get_running_loop().time()
        items = [request(f"r{i}", [1, 2, i + 3], max_tokens=20) for i in range(2 * self.max_running)]
        answers = await collect_all(engine, items)
        wall = asyncio.get_running_loop().time() - began
        for answer in answers:
            assert min(answer.waiting_s, answer.prefill_s, answer.decode_s) >= 0
            assert 0 < answer.waiting_s + answer.prefill_s + answer.decode_s <= wall
        assert max(answer.waiting_s for answer in answers) > min(answer.waiting_s for answer in answers)

    async def test_stats_return_to_nothing(self, engine):
        await collect_all(engine, [request(f"r{i}", [1, 2, i + 3]) for i in range(9)])
        await engine.end_session("nobody")  # the loop has been round again
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_used_fraction) == (0, 0, 0.0)

    @pytest.mark.parametrize("kv", ["keep", "recompute"])
    async def test_an_update_without_requests_costs_nothing_and_counts(self, engine, kv):
        before = await collect(engine, request("a", [1, 2, 3], temperature=0.0, max_tokens=20))
        assert await engine.apply(0, 1, self.manifest(1), kv) < 1.0
        assert await engine.apply(0, 2, self.manifest(2), kv) < 1.0
        after = await collect(engine, request("b", [1, 2, 3], temperature=0.0, max_tokens=20))
        assert after.spans == ((0, 2, 20),)
        assert after.token_ids != before.token_ids or after.logprobs != before.logprobs

    @pytest.mark.parametrize("kv", ["keep", "recompute"])
    async def test_each_token_has_one_version_while_updates_hammer(self, engine, kv):
        # Behaviour check 23.
        order = [(0, 0)]

        async def update():
            for number in range(1, 7):
                lineage = number // 4
                order.append((lineage, number))
                await engine.apply(lineage, number, self.manifest(number), kv)

        async def serve(worker):
            answers = []
            for turn in range(6):
                item = request(f"{worker}.{turn}", [worker + 1, turn + 1], max_tokens=10 + 7 * turn)
                answers.append(await collect(engine, item))
            return answers

        _, *served = await asyncio.gather(update(), *(serve(worker) for worker in range(6)))
        for answers in served:
            seen = [span[:2] for answer in answers for span in answer.spans]
            assert [order.index(version) for version in seen] == sorted(map(order.index, seen))
            assert [len(answer.token_ids) for answer in answers] == [10 + 7 * turn for turn in range(6)]
        last = await collect(engine, request("last", [1, 2]))
        assert last.spans == ((1, 6, 8),)

    async def test_an_unreadable_manifest_leaves_the_engine_as_it_was(self, engine):
        before = await collect(engine, request("a", [1, 2], temperature=0.0))
        with pytest.raises(Exception, match="no such manifest"):
            await engine.apply(0, 1, "no such manifest", "keep")
        after = await collect(engine, request("b", [1, 2], temperature=0.0))
        assert after.token_ids == before.token_ids
        assert after.spans == ((0, 0, 8),)
