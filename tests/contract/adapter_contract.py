"""What every engine does with LoRA adapters, whatever runs behind it: peft's own models are the reference.

Subclass AdapterContract in a test module and say how an engine is made from a model. The engine must have
room for at least four adapters of rank 8, run eight requests together and have a context of 64 tokens.
"""

import asyncio
import shutil
from array import array
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from headway.core.errors import EngineError, UserError
from headway.core.protocols import MAIN_POLICY, Engine
from tests.contract.engine_contract import collect, collect_all, request
from tests.unit.family_models import FAMILIES, make_model

SHARED = list(range(3, 33))
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
RECIPES = {  # by policy
    "a": {"r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "v_proj"]},
    "b": {"r": 4, "lora_alpha": 16, "target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"]},
    "c": {"r": 8, "lora_alpha": 3, "use_rslora": True, "target_modules": ["k_proj", "o_proj", "up_proj"]},
}


def save_adapter(path, variant="llama", seed=0, **recipe):
    """Save what peft makes of a recipe, with random factors, and return its directory."""
    options = dict(recipe)
    if "moe" in variant and isinstance(options["target_modules"], list):
        options["target_modules"] = [name for name in options["target_modules"] if name in ATTENTION]
    model = get_peft_model(make_model(variant), LoraConfig(task_type="CAUSAL_LM", **options))
    torch.manual_seed(1000 + seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    if path.exists():
        shutil.rmtree(path)
    model.save_pretrained(path)
    return path


class Models:
    """The base of a variant and what peft makes of it with the adapters in a folder, by their names."""

    def __init__(self, variant, folder):
        self.variant = variant
        self.folder = folder
        self.base = make_model(variant)
        self._models = {MAIN_POLICY: self.base}

    def place(self, name, seed=0):
        """Make an adapter; names are those of recipes, with anything behind them, such as a1."""
        save_adapter(self.folder / name, self.variant, seed, **RECIPES[name[0]])
        return str(self.folder / name)

    def model(self, name):
        if name not in self._models:
            base = make_model(self.variant)
            self._models[name] = PeftModel.from_pretrained(base, self.folder / name).eval()
        return self._models[name]

    @torch.inference_mode()
    def greedy(self, name, prompt, num_tokens):
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.model(name)(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    @torch.inference_mode()
    def logprobs(self, name, prompt, answer):
        tokens = torch.tensor([[*prompt, *answer]])
        logits = self.model(name)(tokens).logits[0, len(prompt) - 1 : -1].float()
        return logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0]

    def check(self, name, item, answer):
        """An answer is the model's own, to 1e-4."""
        wanted = self.logprobs(name, item.prompt_ids, answer.token_ids)
        torch.testing.assert_close(torch.tensor(list(answer.logprobs)), wanted, atol=1e-4, rtol=0)


def ask(policy, name, prompt, **options):
    return replace(request(name, prompt, **options), policy=policy)


class AdapterContract:
    """The tests."""

    async def make_engine(self, model: torch.nn.Module) -> Engine:
        """Return a fresh engine with the weights of a model of transformers."""
        raise NotImplementedError

    @pytest.fixture
    def models(self, tmp_path):
        return Models("llama", tmp_path)

    @pytest.fixture
    async def engine(self, models):
        engine = await self.make_engine(models.base)
        yield engine
        await engine.close()

    @pytest.mark.parametrize("variant", FAMILIES)
    async def test_each_row_of_a_batch_is_answered_by_its_own_policy(self, variant, tmp_path):
        models = Models(variant, tmp_path)
        engine = await self.make_engine(models.base)
        for number, name in enumerate("abc", 5):
            await engine.load_adapter(name, 1, number, models.place(name), "keep")
        versions = {MAIN_POLICY: (0, 0), "a": (1, 5), "b": (1, 6), "c": (1, 7)}
        # Neighbouring slots are of different policies; one prompt is the same for all.
        items = [ask(name, f"{name}.s", SHARED, group="g", temperature=0.0) for name in versions]
        items += [
            ask(name, f"{name}.o", range(40 - 9 * i, 43), temperature=0.0) for i, name in enumerate(versions)
        ]
        answers = await collect_all(engine, items)
        for item, answer in zip(items, answers, strict=True):
            assert list(answer.token_ids) == models.greedy(item.policy, item.prompt_ids, 8)
            assert answer.spans == ((*versions[item.policy], 8),)
            models.check(item.policy, item, answer)
        assert len({tuple(answer.token_ids) for answer in answers[:4]}) == 4
        await engine.close()

    async def test_it_says_how_many_adapters_it_takes_and_has(self, engine, models):
        capabilities = engine.capabilities()
        assert capabilities.max_adapters >= 4
        assert capabilities.max_adapter_rank >= 8
        assert (engine.stats().num_adapters, engine.stats().adapter_bytes) == (0, 0)
        await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
        one = engine.stats()
        await engine.load_adapter("c", 0, 1, models.place("c"), "keep")
        assert one.num_adapters == 1
        assert 0 < one.adapter_bytes < engine.stats().adapter_bytes
        await engine.drop_adapter("c")
        assert engine.stats() == one

    async def test_a_session_that_changes_its_policy_shares_no_kv(self, engine, models):
        await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
        for turn, policy in enumerate((MAIN_POLICY, "a", MAIN_POLICY, "a")):
            item = ask(policy, f"t{turn}", SHARED, session="s", group="g")
            models.check(policy, item, await collect(engine, item))

    async def test_a_name_nobody_answers_under_is_rejected(self, engine, models):
        before = await collect(engine, ask("policy", "a", [1, 2]))
        assert before.finish == "length"  # one policy needs no name
        await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
        for name in ("policy", "", "A"):
            answer = await collect(engine, ask(name, "b", [1, 2]))
            assert answer.finish == "rejected"
            assert repr(name) in answer.message
            assert "main, a" in answer.message
        assert (await collect(engine, ask(MAIN_POLICY, "c", [1, 2]))).finish == "length"
        await engine.drop_adapter("a")
        answer = await collect(engine, ask("a", "d", [1, 2]))
        assert answer.finish == "rejected"  # never answered by another policy

    @pytest.mark.parametrize("kv", ["keep", "recompute"])
    async def test_loading_a_name_again_updates_it_in_place(self, engine, models, kv):
        await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
        await collect(engine, ask("a", "before", SHARED, session="s"))
        await engine.load_adapter("a", 2, 7, models.place("b1"), kv)  # other rank, other layers
        item = ask("a", "after", SHARED, session="s", temperature=0.0)
        answer = await collect(engine, item)
        assert answer.spans == ((2, 7, 8),)
        assert list(answer.token_ids) == models.greedy("b1", SHARED, 8)
        models.check("b1", item, answer)
        assert engine.stats().num_adapters == 1

    @pytest.mark.parametrize("kv", ["keep", "recompute"])
    async def test_each_token_has_one_version_while_updates_hammer(self, engine, models, kv):
        names = [f"a{number}" for number in range(6)]
        places = [models.place(name, seed) for seed, name in enumerate(names)]
        await engine.load_adapter("a", 0, 0, places[0], kv)
        await engine.load_adapter("c", 3, 3, models.place("c"), kv)

        async def update():
            for number in range(1, 6):
                await engine.load_adapter("a", 0, number, places[number], kv)

        async def serve(policy, worker):
            served = []
            for turn in range(4):
                item = ask(policy, f"{policy}.{worker}.{turn}", range(worker + 1, worker + 9), max_tokens=40)
                served.append((item, await collect(engine, item)))
            return served

        workers = [serve(policy, worker) for worker, policy in enumerate(("a", "c", MAIN_POLICY, "a"))]
        _, *served = await asyncio.gather(update(), *workers)
        for item, answer in [pair for each in served for pair in each]:
            if item.policy != "a":
                assert answer.spans == (((3, 3, 40) if item.policy == "c" else (0, 0, 40)),)
                models.check(item.policy, item, answer)
                continue
            seen = [span.number for span in answer.spans]
            assert seen == sorted(seen)
            at = 0
            for span in answer.spans:
                part = slice(at, at := at + span.num_tokens)
                if kv == "recompute" or len(seen) == 1:
                    wanted = models.logprobs(names[span.number], item.prompt_ids, answer.token_ids)[part]
                    torch.testing.assert_close(
                        torch.tensor(list(answer.logprobs))[part], wanted, atol=1e-4, rtol=0
                    )
        last = ask("a", "last", SHARED)
        answer = await collect(engine, last)
        assert answer.spans == ((0, 5, 8),)
        models.check("a5", last, answer)

    async def test_dropping_ends_its_requests_and_no_others(self, engine, models):
        for name in "ab":
            await engine.load_adapter(name, 0, 1, models.place(name), "keep")
        items = [
            ask(policy, f"{policy}{i}", [1, 2, i + 3], max_tokens=1000)
            for i in range(4)
            for policy in ("a", "b", MAIN_POLICY)
        ]
        tasks = [asyncio.ensure_future(collect(engine, item)) for item in items]
        await asyncio.sleep(0)
        await engine.drop_adapter("a")
        for item, answer in zip(items, await asyncio.gather(*tasks), strict=True):
            if item.policy == "a":
                assert answer.finish == "aborted"
                assert "'a' was dropped" in answer.message
            else:
                assert (answer.finish, len(answer.token_ids)) == ("length", 61)
            if len(answer.token_ids):
                models.check(item.policy, item, answer)
        await engine.load_adapter("a", 0, 1, models.place("c"), "keep")  # the name is free again
        item = ask("a", "again", items[0].prompt_ids, session=items[0].session)
        models.check("c", item, await collect(engine, item))

    async def test_what_cannot_be_loaded_or_dropped_leaves_everything_as_it_was(self, engine, models):
        place = models.place("a")
        await engine.load_adapter("a", 0, 1, place, "keep")
        item = ask("a", "before", SHARED, temperature=0.0)
        before = await collect(engine, item)
        with pytest.raises(UserError, match="no such place"):
            await engine.load_adapter("a", 0, 2, "no such place", "recompute")
        with pytest.raises(UserError, match="a name of its own"):
            await engine.load_adapter(MAIN_POLICY, 0, 2, place, "keep")
        with pytest.raises(EngineError, match="keep or recompute"):
            await engine.load_adapter("b", 0, 2, place, "drop")
        with pytest.raises(EngineError, match="that was loaded"):
            await engine.drop_adapter("b")
        after = await collect(engine, replace(item, request_id="after"))
        assert (after.token_ids, after.spans) == (before.token_ids, before.spans)

    async def test_the_weights_under_adapters_stay(self, engine, models):
        await engine.load_adapter("a", 0, 1, models.place("a"), "keep")
        with pytest.raises(EngineError, match="keeps its weights"):
            await engine.apply(0, 1, str(models.folder / "a"), "keep")
        answer = await collect(engine, ask(MAIN_POLICY, "r", [1, 2]))
        assert answer.spans == ((0, 0, 8),)

    async def test_fifty_adapters_one_after_the_other_leave_nothing(self, engine, models):
        places = [models.place("a"), models.place("b")]
        for number in range(50):
            await engine.load_adapter(f"p{number}", 0, number, places[number % 2], "keep")
            answer = await collect(engine, ask(f"p{number}", f"r{number}", [1, 2, 3], max_tokens=2))
            assert answer.spans == ((0, number, 2),)
            await engine.drop_adapter(f"p{number}")
            if number == 3:
                self.dropped(engine, 0)
        self.dropped(engine, 46)
        assert (engine.stats().num_adapters, engine.stats().adapter_bytes) == (0, 0)
        item = ask(MAIN_POLICY, "last", array("i", [1, 2, 3]))
        models.check(MAIN_POLICY, item, await collect(engine, item))

    def dropped(self, engine, num_since):
        """Look at the engine's memory: so many adapters came and went since the first look, which says 0."""
