"""The fluid model of a run: what it settles to when rates are all that matters.

Admission keeps W groups ahead of the trainer: a batch for each step of depth, and one more while the trainer
waits (queue/admission.py). Those that are neither queued nor complete are on their way, and a group is on its
way until its slowest member is scored, D seconds. So groups come out at (W - queued) / D, D follows from how
fast the engines decode, which follows from how many rollouts are on their way: a fixed point. Limits of the
engines (memory, slots), of sandboxes and of prefill machines cap it. What is filtered, stale or lost leaves
the rest as effective production, and the trainer consumes at most a batch each step:
    wait = max(0, 1 - effective production / consumption), the fluid limit, exact for a long queue.
It says nothing of chance: with a depth below 2 a batch waits for its slowest rollout, and `plan` simulates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headway.matching.closed_forms import moved_rates, zero_advantage, zero_advantage_at
from headway.matching.flow import Flow
from headway.matching.load import MOST_PREFILL, Means, Replica, most_running, replica_at
from headway.matching.sampled import PrefillTimes, Sample, time_prefills

if TYPE_CHECKING:
    from headway.matching.build import Models
    from headway.matching.spec_load import Spec

_ROUNDS = 80
_LOADS = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1)  # of the most that an engine can decode at once


@dataclass(slots=True)
class _Point:
    """What the iteration moves."""

    running: float
    still: float
    wait: float
    extra_s: float  # that each rollout stands in line for a limited resource
    period_s: float  # of a step; 0 before the first round


class Fluid:
    """Solves one SPEC at one sample of rollouts."""

    def __init__(self, spec: Spec, models: Models, sample: Sample) -> None:
        self.spec = spec
        self.models = models
        self.sample = sample
        self.prefill: PrefillTimes = time_prefills(sample, models.engine)
        self.means = Means(
            sample.mean("answer_tokens"),
            sample.resident_tokens,
            sample.mean("idle_token_s"),
            sample.mean("num_turns"),
        )
        queue = spec.scheduler.queue
        self.batch_groups = queue.batch_groups
        self.kept = queue.group_size  # members that a group settles with
        self.zero = self._zero_share()
        rollouts = sample.rollouts
        self.failed = sum(drawn.fails for drawn in rollouts) / len(rollouts)
        callers = [drawn for drawn in rollouts if drawn.num_calls]
        self._users = len(callers) / len(rollouts)  # of the rollouts, those that use a sandbox
        self._called = {  # of theirs, spread over all rollouts
            "decoded": sum(drawn.answer_tokens - drawn.first_answer for drawn in callers) / len(rollouts),
            "turns": sum(drawn.num_turns for drawn in callers) / len(rollouts),
            "tool_s": sum(drawn.tool_s for drawn in callers) / len(rollouts),
        }
        self.start_s = spec.fleet.start_s if spec.workload.uses_sandbox else 0.0
        turns = self.means.turns
        self._members = [
            [
                (
                    drawn.answer_tokens,
                    drawn.num_turns / turns,
                    drawn.tool_s + (self.start_s if drawn.num_calls else 0.0),
                    drawn.score_s,
                    drawn.fails,
                )
                for drawn in group
            ]
            for group in sample.groups
        ]
        self._kept_rows = self._rows()
        self._most, self._why = most_running(models.engine, self.means)
        self._best = self._fastest()
        self._point = _Point(running=1.0, still=0.0, wait=0.5, extra_s=0.0, period_s=0.0)

    # --- what does not change in the iteration

    def _zero_share(self) -> float:
        """Return the share of groups whose members all have the same reward."""
        workload = self.spec.workload
        alpha, beta = workload.solve_alpha, workload.solve_beta
        if not workload.learning:
            return zero_advantage(alpha, beta, self.kept).total
        rates = moved_rates(alpha, beta, workload.learning * self.sample.step)
        return sum(zero_advantage_at(rate, self.kept) for rate in rates) / len(rates)

    def _fastest(self) -> Replica:
        """Return a replica at the load that puts most through: a full memory leaves no prefix cache."""
        engine, means = self.models.engine, self.means
        points = (
            replica_at(max(1e-3, share * self._most), engine, means, self.prefill, 0.0) for share in _LOADS
        )
        return max(points, key=lambda replica: replica.rate)

    def _batch(self) -> float:
        """Return the groups that a step trains: less than a batch where refills do not suffice."""
        queue = self.spec.scheduler.queue
        zero = self.zero if queue.drop_zero_advantage else 0.0
        most = self.batch_groups * (1.0 + queue.max_refill_batches)
        return min(float(self.batch_groups), most * (1.0 - zero))

    # --- the iteration

    def solve(self, share_running: float = 1.0) -> Flow:
        """Return the steady state; generation is throttled by admission where it is the faster side."""
        flow = self._settle(share_running)
        if share_running < 1.0 or flow.effective <= flow.active_limit * 1.0005:
            return flow.flow
        target, low, high = flow.active_limit, 0.0, 1.0
        free = flow
        share = min(1.0, target / flow.effective)
        for _ in range(12):
            flow = self._settle(share)
            if abs(flow.effective - target) < 2e-3 * target:
                break
            low, high = (share, high) if flow.effective < target else (low, share)
            guess = share * target / max(flow.effective, 1e-12)
            share = guess if low < guess < high else 0.5 * (low + high)
        blocked = 1.0 - target / free.effective
        return replace(flow.flow, blocked=blocked)

    def _settle(self, share_running: float) -> _Settled:
        point = self._point  # where the last one settled is close by
        settled = self._round(point, share_running)
        for _ in range(_ROUNDS):
            before = (point.running, point.extra_s, point.wait)
            settled = self._round(point, share_running)
            after = (point.running, point.extra_s, point.wait)
            if all(abs(a - b) <= 3e-4 * max(a, 1e-3) for a, b in zip(after, before, strict=True)):
                break
        return settled

    def _round(self, point: _Point, share_running: float) -> _Settled:
        """Compute everything at a point, and move the point."""
        spec, models = self.spec, self.models
        scheduler, replicas = spec.scheduler, models.replicas
        most = self._most
        replica = replica_at(min(point.running, most), models.engine, self.means, self.prefill, point.still)
        settled, finished, lifetimes, latencies, spent = 0.0, 0.0, list[float](), list[float](), 0.0
        decoded, late, spans = 0.0, 0, list[tuple[float, float, int]]()
        oldest_s = (scheduler.queue.bound + 1) * point.period_s or float("inf")
        token_s, prefill_s, extra_s, kept = replica.token_s, replica.prefill_s, point.extra_s, self.kept
        for group in self._members:
            ends = [
                (answer * token_s + turns * prefill_s + other_s + extra_s, answer, score_s, fails)
                for answer, turns, other_s, score_s, fails in group
            ]
            scored = sorted(end + score_s for end, _, score_s, fails in ends if not fails)
            latencies += scored[:kept]
            life = scored[min(kept, len(scored)) - 1] if scored else max(ends)[0]
            if life > oldest_s:
                life, late = oldest_s, late + 1
            lifetimes.append(life)
            spans += [(min(end, life), life, answer) for end, answer, _, fails in ends if not fails]
            for end, answer, _, _ in ends:
                if end <= life or end <= 0.0:
                    spent += end
                    decoded += answer
                else:
                    spent += life
                    decoded += answer * life / end
            finished += min(kept, len(scored))
            settled += 1
        life_s, num = sum(lifetimes) / settled, settled
        per_group_s, decoded_per_group = spent / num, decoded / num
        trained_groups = self._batch()
        # W, as admission keeps it
        publish = scheduler.queue.publish_every
        trainer = models.trainer
        publish_s, apply_s = trainer.publish_s / publish, trainer.apply_s
        rows = trained_groups * finished / num
        row_tokens, squares, sampled = self._kept_rows
        compute_s = trainer.step_s(round(rows), round(rows * row_tokens), rows * squares)
        cycle_s = compute_s + publish_s + trainer.load_s
        wait = point.wait
        lag = (publish - 1) / 2
        ahead = self.batch_groups * max(0.25, scheduler.depth + wait - lag)
        ahead += spec.config.oversampling.groups_extra
        queued = trained_groups / 2
        running_groups = max(1.0, ahead - queued) * share_running
        limit = scheduler.queue.max_running_rollouts
        capped = ""
        if limit and running_groups * per_group_s / life_s > limit:
            running_groups, capped = limit * life_s / per_group_s, "max_running_rollouts"
            ahead = running_groups + queued  # no group is let in beyond the limit
        rate = running_groups / (life_s)  # groups/s
        running = rate * decoded_per_group * replica.token_s / replicas
        running *= 1.0 - min(0.999, 0.0 if models.engine.separate_prefill else replica.prefill_fraction)
        caps = self._caps(replica, point, decoded_per_group)
        name, cap = min(caps.items(), key=lambda item: item[1])
        bare_s = life_s - point.extra_s
        if rate > cap * 1.0001 or (point.extra_s and running_groups / max(1e-9, bare_s) > cap):
            wanted = max(0.0, running_groups / cap - bare_s)
            point.extra_s = 0.5 * (point.extra_s + wanted)
            capped, rate = name, min(rate, cap)
        else:
            point.extra_s *= 0.5
        if name in ("kv", "setting") and capped == name:
            running = max(running, most if models.engine.separate_prefill else self._best.running)
        point.running = max(1e-3, 0.5 * (min(point.running, most) + min(running, most)))
        production = rate * finished / num
        stale = late / num
        zero = self.zero if scheduler.queue.drop_zero_advantage else 0.0
        effective = production * (1.0 - zero) * (1.0 - stale)
        period_s = max(cycle_s, rows / max(effective, 1e-12))
        point.period_s = 0.5 * (point.period_s + period_s) if point.period_s else period_s
        point.wait = 0.5 * (wait + 1.0 - (compute_s + publish_s) / period_s)
        recompute_s = 0.0
        if scheduler.kv == "recompute":
            recompute_s = replica.running * models.engine.prefill_s(self.means.resident_tokens, 0)
            lines = models.engine.prefill_lines if models.engine.separate_prefill else 1
            recompute_s /= max(1, lines)
        point.still = min(0.9, (apply_s + recompute_s) / (publish * period_s))
        # Who stands in line for a sandbox has the first answer, and its version, already.
        line_s = 0.0 if capped in ("sandboxes", "sandbox_starts") else point.extra_s / self.means.turns
        started = len(self.sample.groups[0])
        flow = Flow(
            production=production,
            effective=rows / period_s,
            active=rows / compute_s if compute_s else float("inf"),
            wall=rows / period_s,
            period_s=period_s,
            compute_s=compute_s,
            publish_s=publish_s,
            wait=max(0.0, 1.0 - (compute_s + publish_s) / period_s),
            blocked=0.0,
            rows=rows,
            row_tokens=row_tokens,
            row_squares=squares,
            trained_tokens=sampled,
            zero=self.zero,
            lost_to_zero=zero,
            stale=stale,
            failed=self.failed,
            cancelled=max(0.0, 1.0 - finished / (num * started) - self.failed),
            queued=ahead - running_groups,
            groups_running=running_groups,
            in_flight=rate * per_group_s,
            sandboxes=self._sandboxes(rate * per_group_s, spent, replica, lifetimes, point.extra_s),
            replica=replica,
            capped_by=capped,
            latencies=latencies,
            group_s=lifetimes,
            spans=spans,
            first_token_s=self.prefill.first_s + replica.token_s + line_s,
            start_s=self.start_s,
            waited_s=point.extra_s,
            line_s=line_s,
            lag_steps=(ahead - running_groups) / max(1e-9, rate) / period_s - max(0.0, point.wait),
        )
        return _Settled(flow, effective, rows / cycle_s)

    def _rows(self) -> tuple[float, float, float]:
        """Return mean tokens, mean square and mean sampled tokens of the rollouts that a group is kept with.

        With oversampled members the first to finish are kept; the shortest stand for them.
        """
        total = squares = sampled = num = 0.0
        for group in self.sample.groups:
            whole = [drawn for drawn in group if not drawn.fails]
            if len(whole) > self.kept:
                whole = sorted(whole, key=lambda drawn: (drawn.answer_tokens, drawn.tool_s))[: self.kept]
            for drawn in whole:
                total += drawn.num_tokens
                squares += float(drawn.num_tokens) ** 2
                sampled += drawn.answer_tokens
                num += 1
        return total / max(1.0, num), squares / max(1.0, num), sampled / max(1.0, num)

    def parts(self, flow: Flow) -> dict[str, float]:
        """Return the mean seconds of the parts of a scored rollout, which add up to its latency."""
        replica, extra_s = flow.replica, flow.waited_s
        names = ("decode", "prefill", "tool", "start", "score")
        sums, num = dict.fromkeys(names, 0.0), 0
        for group in self.sample.groups:
            rows: list[tuple[float, tuple[float, ...]]] = []
            for drawn in group:
                if not drawn.fails:
                    prefill_s = drawn.num_turns / self.means.turns * replica.prefill_s
                    start_s = self.start_s if drawn.num_calls else 0.0
                    row = (
                        drawn.answer_tokens * replica.token_s,
                        prefill_s,
                        drawn.tool_s,
                        start_s,
                        drawn.score_s,
                    )
                    rows.append((sum(row), row))
            for _, row in sorted(rows)[: self.kept]:
                num += 1
                for name, took_s in zip(names, row, strict=True):
                    sums[name] += took_s
        return {name: total / max(1, num) for name, total in sums.items()} | {"wait": extra_s}

    def _sandboxes(
        self, in_flight: float, spent: float, replica: Replica, lifetimes: list[float], extra_s: float
    ) -> float:
        """Return the sandboxes alive: the part of the lives in flight that lies behind a first tool call."""
        if not self.spec.workload.uses_sandbox:
            return 0.0
        held, turn_s = 0.0, (replica.prefill_s + extra_s) / self.means.turns
        for group, members, life_s in zip(self.sample.groups, self._members, lifetimes, strict=True):
            for drawn, (answer, turns, other_s, _, _) in zip(group, members, strict=True):
                if drawn.num_calls:
                    end = answer * replica.token_s + turns * replica.prefill_s + other_s + extra_s
                    held += max(0.0, min(end, life_s) - drawn.first_answer * replica.token_s - turn_s)
        scheduler = self.spec.scheduler
        live = in_flight * min(1.0, held / max(1e-9, spent))
        return min(live, float(scheduler.max_sandboxes), in_flight + scheduler.verify_sandboxes)

    def _held_s(self, replica: Replica, extra_s: float) -> float:
        """Return the mean seconds that a rollout holds a sandbox: from its first tool call to its end."""
        if not self.spec.workload.uses_sandbox:
            return 0.0
        decoded_s = self._called["decoded"] * replica.token_s
        prefill_s = self._called["turns"] * replica.prefill_s / self.means.turns
        return decoded_s + prefill_s + self._called["tool_s"] + self._users * (self.start_s + extra_s)

    def _caps(self, replica: Replica, point: _Point, decoded: float) -> dict[str, float]:
        """Return what each limited resource can put through, groups/s."""
        models, scheduler = self.models, self.spec.scheduler
        engine = models.engine
        share = decoded / max(1.0, self.means.answer_tokens)  # whole rollouts that a group decodes
        rate = self._best.rate * (1.0 - point.still)
        caps = {self._why: rate * models.replicas / max(1e-9, share)}
        if engine.separate_prefill and engine.prefill_lines:
            lines = MOST_PREFILL * engine.prefill_lines
            caps["prefill"] = lines / self.prefill.seconds(replica.hit) * models.replicas / max(1e-9, share)
            full_s = self.means.answer_tokens * engine.decode_s(
                self._most, self._most * self.means.resident_tokens
            )
            rate = self._most / full_s * engine.tokens_per_iteration * (1.0 - point.still)
            caps[self._why] = rate * models.replicas / max(1e-9, share)
        if self.spec.workload.uses_sandbox:
            users = max(1e-9, self._users)
            members = share * users  # whole ones: cancelled members give theirs back
            places = max(1, scheduler.max_sandboxes - scheduler.verify_sandboxes)
            held_s = self._held_s(replica, 0.0) / users
            caps["sandboxes"] = places / max(1e-9, held_s) / members
            fleet = self.spec.fleet
            rates = (scheduler.max_sandbox_starts_per_s, fleet.creates_per_s)
            starting = (scheduler.max_starting_sandboxes, fleet.max_starting)
            starts = [rate for rate in rates if rate]
            starts += [number / self.start_s for number in starting if number and self.start_s]
            if starts:
                caps["sandbox_starts"] = min(starts) / (self.sample.group_size * users)
        return caps


@dataclass(frozen=True, slots=True)
class _Settled:
    """A flow, what production could be, and the most that the trainer takes, rollouts/s."""

    flow: Flow
    effective: float
    active_limit: float
