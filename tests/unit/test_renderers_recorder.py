"""From turns to training samples."""

from array import array

import pytest

from headway.core.records import Turn, VersionSpan
from headway.renderers.recorder import TurnRecorder


def turn(parent, prompt, sampled, version=0, finish="stop"):
    logprobs = array("f", [-0.25 * (index + 1) for index in range(len(sampled))])
    spans = [VersionSpan(0, version, len(sampled))]
    return Turn(parent, array("i", prompt), array("i", sampled), logprobs, spans, finish, 1.0)


def test_a_conversation_is_one_sample_with_masked_prompts():
    recorder = TurnRecorder()
    first = recorder.add(turn(-1, [1, 2], [3, 4], version=5))
    recorder.add(turn(first, [9], [6], version=6))
    (sample,) = recorder.samples()
    assert list(sample.token_ids) == [1, 2, 3, 4, 9, 6]
    assert list(sample.trainable) == [0, 0, 1, 1, 0, 1]
    assert list(sample.logprobs) == [0, 0, -0.25, -0.5, 0, -0.25]
    assert sample.spans == [VersionSpan(0, 5, 2), VersionSpan(0, 6, 1)]
    assert sample.num_trainable == 3
    assert recorder.spans() == (VersionSpan(0, 5, 2), VersionSpan(0, 6, 1))
    assert (recorder.num_prompt_tokens, recorder.num_sampled_tokens) == (3, 3)
    assert list(recorder.context(0)) == [1, 2, 3, 4]
    assert list(recorder.context(-1)) == []


def test_a_turn_that_branches_share_is_trained_in_the_first_only():
    recorder = TurnRecorder()
    root = recorder.add(turn(-1, [1], [2, 3]))
    recorder.add(turn(root, [4], [5], version=1))
    recorder.add(turn(root, [6], [7, 8], version=2))
    left, right = recorder.samples()
    assert (list(left.token_ids), list(left.trainable)) == ([1, 2, 3, 4, 5], [0, 1, 1, 0, 1])
    assert (list(right.token_ids), list(right.trainable)) == ([1, 2, 3, 6, 7, 8], [0, 0, 0, 0, 1, 1])
    assert list(right.logprobs) == [0, 0, 0, 0, -0.25, -0.5]
    assert right.spans == [VersionSpan(0, 2, 2)]
    assert sum(span.num_tokens for span in recorder.spans()) == 5


def test_separate_roots_are_separate_samples():
    recorder = TurnRecorder()
    recorder.add(turn(-1, [1], [2]))
    recorder.add(turn(-1, [3], [4]))
    assert [list(sample.token_ids) for sample in recorder.samples()] == [[1, 2], [3, 4]]


def test_a_sample_says_which_turn_its_trainable_tokens_are_of():
    recorder = TurnRecorder()
    root = recorder.add(turn(-1, [1], [2, 3]))
    recorder.add(turn(root, [4], [5]))
    recorder.add(turn(root, [6], [7, 8, 9]))
    assert [list(sample.turns) for sample in recorder.samples()] == [[(0, 2), (1, 1)], [(2, 3)]]


def test_a_turn_must_fit():
    recorder = TurnRecorder()
    with pytest.raises(ValueError, match="parent 3"):
        recorder.add(turn(3, [1], [2]))
    bad = turn(-1, [1], [2, 3])
    bad.spans = [VersionSpan(0, 0, 1)]
    with pytest.raises(ValueError, match="one length"):
        recorder.add(bad)
