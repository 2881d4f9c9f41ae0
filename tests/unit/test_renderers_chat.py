"""Token extension over turns: sampled ids stay as they were sampled."""

import json
from array import array
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from headway.core.errors import ModelError
from headway.core.records import Message
from headway.renderers.chat import Renderer
from tests.unit.rollout_parts import CHATML, write_tokenizer

USER, ANSWER, NEXT = Message("user", "2+2?"), Message("assistant", "4"), Message("user", "and 3+3?")


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def ids_of(tokenizer, text):
    return array("i", tokenizer.encode(text, add_special_tokens=False).ids)


def full(tokenizer, messages):
    text = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
    return ids_of(tokenizer, text + "<|im_start|>assistant\n")


def test_the_first_prompt_is_the_template_with_a_generation_prompt(renderer, tokenizer):
    assert renderer.first_prompt([USER]) == full(tokenizer, [USER])


def test_joined_turns_equal_the_full_template(renderer, tokenizer):
    # Behaviour check 25.
    sampled = ids_of(tokenizer, "4<|im_end|>")
    joined = renderer.first_prompt([USER]) + sampled + renderer.extension([USER, ANSWER], sampled, [NEXT])
    assert joined == full(tokenizer, [USER, ANSWER, NEXT])
    more = ids_of(tokenizer, "6<|im_end|>")
    talk = [USER, ANSWER, NEXT, Message("assistant", "6")]
    joined += more + renderer.extension(talk, more, [Message("tool", "x"), USER])
    assert joined == full(tokenizer, [*talk, Message("tool", "x"), USER])


def test_a_closing_token_that_was_not_sampled_is_part_of_the_extension(renderer, tokenizer):
    sampled = ids_of(tokenizer, "4")  # ended by its length or by a stop string
    extension = renderer.extension([USER, ANSWER], sampled, [NEXT])
    assert extension[0] == tokenizer.token_to_id("<|im_end|>")
    assert renderer.first_prompt([USER]) + sampled + extension == full(tokenizer, [USER, ANSWER, NEXT])


def test_another_end_token_that_was_sampled_stays_and_the_turn_is_closed_after_it(renderer, tokenizer):
    sampled = ids_of(tokenizer, "4<|endoftext|>")
    extension = renderer.extension([USER, ANSWER], sampled, [NEXT])
    assert extension[0] == tokenizer.token_to_id("<|im_end|>")


def test_ids_that_no_encoder_would_choose_are_kept(renderer, tokenizer):
    # Behaviour check 25: decode then encode is not the identity for "a", "b", for there is a token "ab".
    sampled = array("i", [tokenizer.token_to_id("a"), tokenizer.token_to_id("b")])
    sampled.append(tokenizer.token_to_id("<|im_end|>"))
    text = renderer.answer_text(sampled)
    assert text == "ab"
    assert ids_of(tokenizer, text) != sampled[:2]
    joined = renderer.first_prompt([USER]) + sampled
    joined += renderer.extension([USER, Message("assistant", text)], sampled, [NEXT])
    at = len(renderer.first_prompt([USER]))
    assert joined[at : at + 3] == sampled
    assert tokenizer.decode(list(joined), skip_special_tokens=False) == tokenizer.decode(
        list(full(tokenizer, [USER, Message("assistant", "ab"), NEXT])), skip_special_tokens=False
    )


def test_an_answer_that_ends_in_a_newline_does_not_merge_with_what_follows(renderer, tokenizer):
    sampled = ids_of(tokenizer, "4\n")
    extension = renderer.extension([USER, Message("assistant", "4\n")], sampled, [NEXT])
    expected = full(tokenizer, [USER, Message("assistant", "4\n"), NEXT])
    assert renderer.first_prompt([USER]) + sampled + extension == expected


def test_stop_ids_are_every_token_that_ends_an_answer(renderer, tokenizer):
    assert set(renderer.stop_ids) == {tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>")}


def test_decode_shows_or_hides_special_tokens(renderer, tokenizer):
    ids = ids_of(tokenizer, "hi<|im_end|>")
    assert renderer.decode(ids) == "hi"
    assert renderer.decode(ids, skip_special=False) == "hi<|im_end|>"


def test_a_template_file_and_a_named_default_are_found(tmp_path):
    write_tokenizer(tmp_path / "file", template=None)
    (tmp_path / "file" / "chat_template.jinja").write_text(CHATML)
    write_tokenizer(
        tmp_path / "named",
        template=[{"name": "tool", "template": "x"}, {"name": "default", "template": CHATML}],
    )
    first = Renderer(tmp_path / "file").first_prompt([USER])
    assert Renderer(tmp_path / "named").first_prompt([USER]) == first


def test_templates_use_what_transformers_gives_them(tmp_path):
    template = (
        "{%- for m in messages %}\n    {%- if m.role == 'system' %}{% continue %}{% endif %}\n"
        "{{ bos_token }}{{ m.content | tojson }}{% generation %}{% endgeneration %}{{ eos_token }}\n"
        "    {%- endfor %}{{ strftime_now('%%') }}"
    )
    write_tokenizer(tmp_path, template=template)
    renderer = Renderer(tmp_path)
    ids = renderer.first_prompt([Message("system", "s"), Message("user", "é<")])
    assert renderer.decode(ids, skip_special=False) == '<|im_start|>"é<"<|im_end|>%'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"model"'), "half-downloaded"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "no chat template"),
        (lambda folder: _set_template(folder, "{% for %}"), "does not compile"),
        (lambda folder: _set_template(folder, "{{ raise_exception('roles must alternate') }}"), "alternate"),
        (lambda folder: _set_template(folder, "nothing"), "each answer exactly once"),
    ],
)
def test_a_broken_checkpoint_is_a_model_error_with_a_remedy(tmp_path, change, message):
    write_tokenizer(tmp_path)
    change(tmp_path)
    with pytest.raises(ModelError, match=message):
        Renderer(tmp_path)


def test_a_model_without_an_end_token_is_refused(tmp_path):
    write_tokenizer(tmp_path, template="{% for m in messages %}{{ m.content }}{% endfor %}")
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="no token that ends an answer"):
        Renderer(tmp_path)


def _set_template(folder: Path, template):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
