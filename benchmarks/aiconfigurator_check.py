"""Headway's engine formulas against aiconfigurator, NVIDIA's tables of measured kernels.

Three constants are fitted on five points, once for all models and accelerators, and judged on the others:
decode tokens/s of a static batch, by model, H100 / H200 / B200, batch and context. The extra
headway[aiconfigurator] brings the tables; without it the points that are kept beside the results are used.

    python benchmarks/aiconfigurator_check.py [--collect]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from headway.matching.engine import RooflineEngine
from headway.matching.hardware import find_accelerator
from headway.matching.model_facts import known_models
from headway.matching.spec import GeneratorPoolSettings

POINTS = Path(__file__).parent / "results" / "aiconfigurator_points.json"
MODELS = {  # ours -> theirs, tensor and expert parallelism, weights
    "Qwen3-8B": ("Qwen/Qwen3-8B", 1, 1, "bf16"),
    "Llama-3.1-8B": ("meta-llama/Meta-Llama-3.1-8B", 2, 1, "bf16"),
    "Qwen3-30B-A3B": ("Qwen/Qwen3-30B-A3B", 2, 2, "bf16"),
    "Qwen3-235B-A22B": ("Qwen/Qwen3-235B-A22B", 8, 8, "bf16"),
    "DeepSeek-V3": ("deepseek-ai/DeepSeek-V3", 8, 8, "fp8"),
}
SYSTEMS = {"H100 SXM": "h100_sxm", "H200 SXM": "h200_sxm", "B200 SXM": "b200_sxm"}
SHAPES = ((8, 2048), (32, 4096), (64, 1024), (128, 8192))  # batch, context
FITTED = (  # chosen before anything was compared: every model, every accelerator, every shape
    ("Qwen3-8B", "H200 SXM", 32, 4096),
    ("Llama-3.1-8B", "B200 SXM", 128, 8192),
    ("Qwen3-30B-A3B", "H100 SXM", 64, 1024),
    ("Qwen3-235B-A22B", "H200 SXM", 8, 2048),
    ("DeepSeek-V3", "B200 SXM", 32, 4096),
)


@dataclass(frozen=True)
class Point:
    """One decode step of a static batch."""

    model: str
    accelerator: str
    batch: int
    context: int
    step_s: float  # theirs

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What it is of."""
        return self.model, self.accelerator, self.batch, self.context


def collect() -> list[Point]:
    """Ask aiconfigurator; points that do not fit its memory or its tables are left out, with a line."""
    import logging

    from aiconfigurator.cli.api import cli_estimate  # pyright: ignore[reportMissingImports]

    logging.disable(logging.CRITICAL)
    points: list[Point] = []
    for model, (theirs, tensor, experts, weights) in MODELS.items():
        for accelerator, system in SYSTEMS.items():
            for batch, context in SHAPES:
                mode = {"bf16": "bfloat16", "fp8": "fp8_block"}[weights]
                parallel: dict[str, Any] = {"tp_size": tensor}
                if experts > 1:
                    parallel |= {"moe_tp_size": 1, "moe_ep_size": experts, "moe_quant_mode": mode}
                try:
                    found = cli_estimate(
                        theirs, system, mode="static_gen", backend_name="trtllm", isl=context, osl=2,
                        batch_size=batch, gemm_quant_mode=mode, kvcache_quant_mode="bfloat16", **parallel,
                    )  # fmt: skip
                except Exception as error:
                    print(f"left out: {model} on {accelerator}, {batch} x {context}: {str(error)[:90]}")
                    continue
                points.append(Point(model, accelerator, batch, context, found.tpot / 1000.0))
    return points


def ours(point: Point, constants: tuple[float, float, float]) -> float:
    """Return our seconds of the same step."""
    bandwidth, compute, layer_s = constants
    _, tensor, experts, weights = MODELS[point.model]
    pool = GeneratorPoolSettings(
        accelerator=point.accelerator, count=max(tensor, experts), tensor_parallel=tensor,
        expert_parallel=experts, weights=weights, kv="bf16",  # pyright: ignore[reportArgumentType]
        bandwidth_efficiency=bandwidth, compute_efficiency=compute, layer_s=layer_s, iteration_s=0.0,
    )  # fmt: skip
    engine = RooflineEngine(known_models()[point.model], find_accelerator(point.accelerator, ""), pool)
    return engine.decode_s(point.batch, point.batch * point.context)


def fit(points: list[Point]) -> tuple[float, float, float]:
    """Return the constants with the least squared error of the logarithm."""
    from scipy.optimize import least_squares  # pyright: ignore[reportMissingTypeStubs]

    def off(values: Any) -> list[float]:
        constants = (float(values[0]), float(values[1]), float(values[2]))
        return [math.log(ours(point, constants) / point.step_s) for point in points]

    found = least_squares(
        off, [0.7, 0.5, 5e-5], bounds=([0.2, 0.05, 0.0], [1.0, 1.0, 1e-3]), x_scale=[1, 1, 1e-4]
    )
    return float(found.x[0]), float(found.x[1]), float(found.x[2])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", action="store_true", help="ask the tables, keep the points, and stop")
    arguments = parser.parse_args()
    if arguments.collect:
        POINTS.write_text(json.dumps([asdict(point) for point in collect()], indent=1) + "\n")
        return
    try:
        points = collect()
        print("points: from aiconfigurator now")
    except ImportError:
        points = [Point(**entry) for entry in json.loads(POINTS.read_text())]
        print(f"points: kept in {POINTS.name}; headway[aiconfigurator] asks its tables anew")
    from keep import keep

    chosen = [point for point in points if point.key in FITTED]
    others = [point for point in points if point.key not in FITTED]
    constants = fit(chosen)
    print(
        f"fitted on {len(chosen)}: bandwidth {constants[0]:.2f}, compute {constants[1]:.2f}, "
        f"{1e6 * constants[2]:.0f} us a layer"
    )
    print(f"{'model':<18}{'accelerator':<12}{'batch':>6}{'context':>9}{'theirs':>10}{'ours':>10}  tokens/s")
    errors: list[float] = []
    by_model: dict[str, list[float]] = {}
    for point in points:
        predicted = ours(point, constants)
        error = point.step_s / predicted - 1.0
        is_fitted = point.key in FITTED
        if not is_fitted:
            errors.append(abs(error))
            by_model.setdefault(point.model, []).append(abs(error))
        print(
            f"{point.model:<18}{point.accelerator:<12}{point.batch:>6}{point.context:>9}"
            f"{point.batch / point.step_s:>10.0f}{point.batch / predicted:>10.0f}  {error:+.0%}"
            + ("  fitted" if is_fitted else "")
        )
    median = statistics.median(errors)
    print(f"median error on {len(others)} points: {median:.1%} (at most 15 % wanted)")
    keep(
        "aiconfigurator",
        {
            "median_error": round(median, 4), "worst_error": round(max(errors), 4), "points": len(others),
            "by_model": {name: round(statistics.median(found), 4) for name, found in by_model.items()},
            "bandwidth_efficiency": round(constants[0], 4), "compute_efficiency": round(constants[1], 4),
            "layer_s": round(constants[2], 8),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
