"""Two real processes over gloo: the gradient and the step are those of one.

The second process is started once for the module; each case is a function of this file that both call.
"""

import math
import subprocess
import sys
from array import array
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from headway.algorithms.settings import AlgorithmSettings
from headway.core.payload import read_payload
from headway.runtime.wire import socket_pair
from headway.trainer.local import LocalTrainer
from headway.trainer.ranks import Ranks, share
from headway.trainer.settings import TrainerSettings

from .conftest import tiny_llama

F64, F32 = torch.float64, torch.float32
OTHER = """
import os, sys
from multiprocessing.connection import Connection
from pathlib import Path
sys.path[:0] = {path!r}
import torch
torch.set_num_threads(1)
from headway.trainer.ranks import Ranks
from tests.unit.trainer import test_trainer_ranks as cases
ranks = Ranks(1, 2, Path({meeting!r}), timeout_s=60)
link = Connection({fd})
while True:
    try:
        name, arguments = link.recv()
    except EOFError:
        break
    getattr(cases, name)(ranks, *arguments)
"""


class Pair:
    """This process as rank 0, and the other one."""

    def __init__(self, folder):
        ours, theirs = socket_pair()
        meeting = folder / "meeting"
        code = OTHER.format(
            path=[str(Path(__file__).parents[3]), *sys.path], meeting=str(meeting), fd=theirs.fileno()
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
        theirs.close()
        self._link = Connection(ours.detach())
        self.ranks = Ranks(0, 2, meeting, timeout_s=60)

    def both(self, case, *arguments):
        """Call a case in both processes, and return what it says here."""
        self._link.send((case.__name__, arguments))
        return case(self.ranks, *arguments)

    def close(self):
        self._link.close()
        assert self.process.wait(30) == 0
        self.ranks.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    made = Pair(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


def trainer_of(ranks, root, dtype, algorithm, settings):
    return LocalTrainer(
        tiny_llama(dtype),
        TrainerSettings(**settings),
        AlgorithmSettings(**algorithm),
        payload_dir=root / "payloads",
        weights_dir=root / "weights",
        checkpoint_dir=root / "checkpoints",
        ranks=ranks,
    )


def gradient_case(ranks, root, dtype, algorithm, settings, rows, parts):
    """Take a step, and return the gradient of the same rows after it, part by part."""
    trainer = trainer_of(ranks, root, dtype, algorithm, settings)
    trainer.step(rows)
    wide = trainer.batch_wide(rows)
    for part in parts:
        trainer.forward_backward(part, wide)
    return {name: grad.clone() for name, grad in trainer.gradients().items()}


def steps_case(ranks, root, algorithm, settings, rows, num_gathered):
    """Take two steps, the second one in two parts, and return its result, the weights and log-probs."""
    trainer = trainer_of(ranks, root, F64, algorithm, settings)
    trainer.step(rows)
    if num_gathered:
        trainer.gather(rows[:num_gathered])
    result = trainer.step(rows, num_gathered=num_gathered)
    weights = {name: p.detach().clone() for name, p in trainer._policy.trainable().items()}
    return result, weights, trainer.forward(rows)


def gap(found, expected):
    assert found.keys() == expected.keys()
    difference = math.sqrt(sum((found[name] - expected[name]).square().sum().item() for name in expected))
    return difference / math.sqrt(sum(grad.square().sum().item() for grad in expected.values()))


NORMALISERS = ("token-mean", "seq-mean-token-mean", "constant", "prompt-mean")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-12), (F32, 1e-5)])
def test_gradient_does_not_depend_on_ranks_micro_batches_packing_or_order(
    bench, pair, dtype, bound, normaliser, full
):
    rows = bench.groups()
    algorithm = {"normaliser": normaliser, "constant_tokens": 10}

    def of(ranks, max_tokens, ordered, parts):
        settings = {"micro_batch_tokens": max_tokens, "full": full}
        arguments = (bench.root, dtype, algorithm, settings, ordered, parts)
        return pair.both(gradient_case, *arguments) if ranks == 2 else gradient_case(None, *arguments)

    expected = of(1, 10_000, rows, [rows])
    assert gap(of(2, 10_000, rows, [rows]), expected) < bound
    assert gap(of(2, 13, rows[::-1], [rows[::-1]]), expected) < bound
    assert gap(of(2, 30, rows, [rows[:1], rows[1:7], rows[7:]]), expected) < bound  # one without a row


def near_policy(bench):
    """Rows that a policy somewhat off the trainer's own sampled: no ratio is out of every bound."""
    noise = torch.Generator().manual_seed(3)
    model = trainer_of(None, bench.root, F64, {}, {})
    near = []
    for row in bench.groups(num_groups=2):
        (sample,) = read_payload(bench.root / "payloads", row.payload).samples
        (logp,) = model.forward([row])[0]
        shift = 0.2 * torch.randn(len(logp), generator=noise, dtype=F64)
        sample.logprobs[-len(logp) :] = array("f", (logp + shift).tolist())
        near.append(bench.row([sample], row.advantage, row.group))
    return near


ALGORITHMS = [
    {"loss": "m2po", "m2po_threshold": 0.5},
    {"advantage": "reinforce_pp", "discount": 0.9},
    {"advantage": "magistral", "loss": "gspo"},
    {"correction": "tis", "correction_level": "sequence"},
    {"kl_coef": 0.1},
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_the_gradient_of_no_algorithm_depends_on_ranks(bench, pair, algorithm):
    rows = near_policy(bench)
    arguments = (bench.root, F64, algorithm, {"micro_batch_tokens": 20}, rows, [rows])
    assert gap(pair.both(gradient_case, *arguments), gradient_case(None, *arguments)) < 1e-12


@pytest.mark.parametrize("num_gathered", [0, 8])
def test_ranks_take_the_step_that_one_takes_and_report_the_same(bench, pair, num_gathered):
    rows = bench.groups()
    arguments = (bench.root, {}, {"max_grad_norm": 1e-3, "learning_rate": 0.01}, rows, num_gathered)
    one, weights, logps = steps_case(None, *arguments)
    two, found, found_logps = pair.both(steps_case, *arguments)
    assert gap(found, weights) < 1e-12
    assert two.num_trained_tokens == one.num_trained_tokens
    cut = {"num_micro_batches": two.metrics["num_micro_batches"]}
    assert two.metrics == pytest.approx(one.metrics | cut, rel=1e-9, abs=1e-12)
    for row, other in zip(found_logps, logps, strict=True):
        torch.testing.assert_close(row[0], other[0], rtol=1e-10, atol=1e-12)


def test_one_long_row_and_many_short_ones_are_shared_by_tokens():
    assert share(["a"] * 4 + ["b"] * 4, [5] * 8, 2) == [0] * 4 + [1] * 4  # a group stays together
    assert share(["a", "b", "b", "b"], [30, 5, 5, 5], 2) == [0, 1, 1, 1]
    assert share(["a"] * 4, [5] * 4, 2) == [0, 0, 1, 1]  # unless a rank would have nothing
    assert share(["a"], [9], 3) == [0]
    assert share([], [], 2) == []


def test_shares_are_even_and_the_same_whatever_the_order_of_equal_groups():
    lengths = [37, 5, 5, 80, 21, 21, 40, 3, 9, 60, 12, 12]
    groups = [f"g{index // 3}" for index in range(12)]
    owners = share(groups, lengths, 3)
    loads = [sum(n for n, owner in zip(lengths, owners, strict=True) if owner == rank) for rank in range(3)]
    assert max(loads) - min(loads) <= max(lengths)
    assert share(groups, lengths, 3) == owners


def test_a_rank_that_is_gone_is_an_error_that_says_so(bench, tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from headway.trainer.ranks import Ranks\n"
        f"Ranks(1, 2, Path({str(tmp_path / 'meeting')!r}), timeout_s=60); os._exit(9)"
    )
    script = (
        "import os, sys; from pathlib import Path; from headway.trainer.ranks import Ranks\n"
        "from headway.core.errors import HeadwayError; import subprocess\n"
        f"other = subprocess.Popen([sys.executable, '-c', {code!r}])\n"
        f"ranks = Ranks(0, 2, Path({str(tmp_path / 'meeting')!r}), timeout_s=60)\n"
        "other.wait()\n"
        "try: ranks._all(1)\n"
        "except HeadwayError as error: print(error.rule, flush=True)\n"
        "os._exit(0)"  # gloo may abort while the interpreter tears down a group whose other end is gone
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.startswith(
        "rank 0 of 2 waited for the other ranks for what they found, and one of them"
    )
