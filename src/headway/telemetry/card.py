"""The model card of an exported model: what it is, what it was trained on, and what that gave.

Everything it states is from the run's journal; what the journal does not know it does not state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.telemetry.estimates import Estimate, mean_estimate, pass_estimate
from headway.telemetry.text import number, percent, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.telemetry.evaluations import Evaluation
    from headway.telemetry.header import JournalHeader
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.steps import StepRecord


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export knows and a journal does not."""

    step: int
    form: str  # adapter or merged or full
    dtype: str  # of the stored weights
    base_model: str  # Hub id, or the base's own name
    load_base: str  # what PEFT loads the base from, for an adapter
    license: str  # as the base model's own card says, "" when unknown
    note: str  # a sentence on the base model's weights, or ""
    config: dict[str, Any]  # the run's settings at its newest stage, plain


def model_card(
    exported: Exported, header: JournalHeader, metrics: RunMetrics, evaluations: Sequence[Evaluation]
) -> str:
    """Return README.md.

    Args:
        exported: what is exported, and how.
        header: of the run's journal.
        metrics: of the run.
        evaluations: its complete ones, in their order.
    """
    environment = _section(exported.config, "environment")
    lines = [
        *_front_matter(exported, str(environment["name"])),
        f"# {_title(exported, str(environment['name']))}",
        "",
        _summary(exported, str(environment["name"])),
        "",
        *_training(exported, header, metrics),
        *_tasks(exported.config),
        *_evaluations(exported, header, evaluations),
        *_loading(exported),
        "## Limits",
        "",
        "- It was trained, and measured where a table above says so, on the tasks of this environment and on",
        "  nothing else. What else it does may have changed, for better or worse; nobody has looked.",
        "- The reward is a program's verdict. Whatever that does not check was not trained, and what it",
        "  overlooks may have been.",
        "- Nothing was done for safety, and the limits and licence of the base model hold.",
        "",
    ]
    return "\n".join(lines)


def _front_matter(exported: Exported, environment: str) -> list[str]:
    adapter = exported.form == "adapter"
    tags = ["headway", "reinforcement-learning", _slug(environment), *(["lora"] if adapter else [])]
    lines = ["---", f"base_model: {json.dumps(exported.base_model)}"]
    lines.append(f"base_model_relation: {'adapter' if adapter else 'finetune'}")
    lines.append(f"library_name: {'peft' if adapter else 'transformers'}")
    lines.append("pipeline_tag: text-generation")
    if exported.license:
        lines.append(f"license: {exported.license}")
    return [*lines, "tags:", *(f"- {tag}" for tag in tags), "---", ""]


def _title(exported: Exported, environment: str) -> str:
    return f"{exported.base_model.rpartition('/')[2]}, trained on {_own_name(environment)}"


def _summary(exported: Exported, environment: str) -> str:
    base = f"`{exported.base_model}`"
    what = {
        "adapter": f"A LoRA adapter for {base}",
        "merged": f"{base} with LoRA factors merged into its weights",
        "full": f"{base} with all weights trained",
    }[exported.form]
    return (
        f"{what}, after {exported.step} steps of reinforcement learning in the environment "
        f"`{_own_name(environment)}` with Headway."
    )


def _training(exported: Exported, header: JournalHeader, metrics: RunMetrics) -> list[str]:
    records = [record for record in metrics.steps.records if record.step <= exported.step]
    config = exported.config
    algorithm, trainer = _section(config, "algorithm"), _section(config, "trainer")
    queue, generator = _section(config, "queue"), _section(config, "generator")
    rows = [
        ("base model", f"`{exported.base_model}`{f' ({exported.note})' if exported.note else ''}"),
        ("optimizer steps", f"{exported.step:,}"),
        ("rollouts trained", f"{sum(record.num_trained_rollouts for record in records):,}"),
        ("tokens trained", f"{sum(record.num_trained_tokens for record in records):,}"),
        ("train reward", _reward(records)),
        ("weights trained", _form(trainer)),
        ("algorithm", _algorithm(algorithm)),
        ("optimizer", f"AdamW, learning rate {trainer['learning_rate']:g}, {trainer['schedule']}"),
        ("batch", f"{queue['batch_size']} rollouts, {queue['group_size']} of each task"),
        ("staleness bound", f"{queue['bound']} steps"),
        ("sampling", f"temperature {generator['temperature']:g}, {_lengths(generator)}"),
        ("seed", str(header.seed)),
        ("wall time", seconds(records[-1].t if records else metrics.now)),
        ("hardware", header.machine or "not recorded"),
        ("stored weights", exported.dtype),
        ("Headway", _version(header)),
        ("begun", header.created),
    ]
    body = [f"| {name} | {value} |" for name, value in rows]
    changed = [
        f"- `{change['key']}` = `{json.dumps(change['value'])}` from step {change['step'] + 1} on"
        for change in metrics.settings_changed
        if change["step"] < exported.step
    ]
    if changed:
        changed = ["Settings that changed while it trained (the table has the newest):", "", *changed, ""]
    return ["## Training", "", "| | |", "| --- | --- |", *body, "", *changed]


def _reward(records: Sequence[StepRecord]) -> str:
    known = [record.reward for record in records if record.reward is not None]
    return f"{known[0]:.3f} in the first step, {known[-1]:.3f} in the last" if known else "not measured"


def _form(trainer: dict[str, Any]) -> str:
    if trainer["full"]:
        return "all"
    rank, alpha, targets = trainer["lora_rank"], trainer["lora_alpha"], trainer["lora_targets"]
    return f"LoRA, rank {rank}, alpha {alpha:g}, {targets}"


def _algorithm(algorithm: dict[str, Any]) -> str:
    parts = [f"advantage {_own_name(algorithm['advantage'])}", f"loss {_own_name(algorithm['loss'])}"]
    parts.append(f"normaliser {algorithm['normaliser']}")
    if algorithm["correction"] != "none":
        parts.append(f"correction {_own_name(algorithm['correction'])}")
    if algorithm["kl_coef"]:
        parts.append(f"KL penalty {algorithm['kl_coef']:g}")
    return ", ".join(parts)


def _lengths(generator: dict[str, Any]) -> str:
    return (
        f"answers of at most {generator['max_answer_tokens']} tokens in a context of "
        f"{generator['max_context_tokens']}"
    )


def _version(header: JournalHeader) -> str:
    if not header.code:
        return header.headway
    clean = header.code.rstrip("+")
    return f"{header.headway}, commit {clean}{' with changes' if header.code != clean else ''}"


def _tasks(config: dict[str, Any]) -> list[str]:
    environment, sources = _section(config, "environment"), _section(config, "source")
    lines = [
        "## Data",
        "",
        f"Environment `{_own_name(environment['name'])}`{_arguments(environment['args'])}.",
    ]
    for name, source in cast("dict[str, dict[str, Any]]", sources).items():
        own = _own_name(source["environment"] or environment["name"])
        lines.append(
            f"- task source `{name}`, weight {source['weight']:g}: `{own}`{_arguments(source['args'])}"
        )
    levels = _section(config, "curriculum")["levels"]
    if levels:
        lines.append(f"The curriculum chose among the levels {', '.join(map(str, levels))}.")
    return [*lines, ""]


def _arguments(args: dict[str, Any]) -> str:
    written = ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in args.items())
    return f" with {written}" if written else ""


def _evaluations(exported: Exported, header: JournalHeader, evaluations: Sequence[Evaluation]) -> list[str]:
    known = [one for one in evaluations if one.number <= exported.step and one.num_rollouts]
    if not known:
        return ["## Evaluation", "", "The run has measured nothing up to this step.", ""]
    settings = _section(header.config, "eval")
    solved = _section(header.config, "telemetry")["solved_reward"]
    shown = [known[0], known[-1]] if known[-1].number != known[0].number else [known[0]]
    how = "greedy" if settings["temperature"] == 0 else f"at temperature {settings['temperature']:g}"
    lines = [
        "## Evaluation",
        "",
        f"On tasks of the environment's `{settings.get('split', 'eval')}` split, {how}; 95 % intervals.",
        "",
        "| after step | tasks | rollouts a task | mean reward | pass@1 | failed, not counted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in shown:
        tasks = [(len(task.rollouts), task.num_solved(solved)) for task in one.tasks if task.rollouts]
        reward = _estimate(mean_estimate([task.rewards for task in one.tasks]), share=False)
        passed = _estimate(pass_estimate(tasks, 1), share=True)
        cells = (str(one.number), str(len(tasks)), str(one.n), reward, passed, str(one.num_failed))
        lines.append(f"| {' | '.join(cells)} |")
    if shown[-1].number != exported.step:
        lines += ["", f"These weights, of step {exported.step}, were not evaluated themselves."]
    if len(shown) == 1 and shown[0].number == exported.step:
        lines += ["", "The base model was not evaluated before."]
    return [*lines, ""]


def _estimate(estimate: Estimate | None, *, share: bool) -> str:
    if estimate is None:
        return "-"
    parts = (estimate.value, estimate.low, estimate.high)
    value, low, high = (percent(part, 1) if share else number(part, 3) for part in parts)
    return value if estimate.low is None else f"{value} [{low}, {high}]"


def _loading(exported: Exported) -> list[str]:
    if exported.form == "adapter":
        code = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"model = AutoModelForCausalLM.from_pretrained({json.dumps(exported.load_base)})",
            "model = PeftModel.from_pretrained(model, DIRECTORY)",
            "tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)",
        ]
        more = "Use the same base weights: the adapter was trained on them and on no others."
    else:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype="auto")',
            "tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)",
        ]
        more = "`vllm serve DIRECTORY` serves it; so does whatever else loads a Hugging Face directory."
    code += [
        "",
        'messages = [{"role": "user", "content": "..."}]',
        "inputs = tokenizer.apply_chat_template(",
        '    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True',
        ")",
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))",
    ]
    return ["## How to load it", "", "```python", *code, "```", "", more, ""]


def _own_name(name: str) -> str:
    """Return a hook's name without the folders of the machine that it was on."""
    return name.rpartition("/")[2]


def _slug(name: str) -> str:
    return _own_name(name).partition(".py")[0].replace(":", "-").replace("_", "-").lower() or "environment"


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", config[name])
