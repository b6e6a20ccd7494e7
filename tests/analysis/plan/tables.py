"""Made-up outcomes of trials, a row per seed."""

from __future__ import annotations

import pandas as pd


def outcomes(
    system: str,
    *step_times_s: float,
    eta: float | None = None,
    degree: int = 2,
    num_gpus: int = 32,
    rho: float = 0.3,
    preemptions: float = 0.0,
    kv_tokens: int = 100_000,
    num_judge_gpus: int = 0,
) -> pd.DataFrame:
    """A setting's trials, one per seed from 0."""
    return pd.DataFrame(
        {
            "system": system,
            "eta": float("nan") if eta is None else eta,
            "tensor_parallel": degree,
            "num_gpus": num_gpus,
            "rho": rho,
            "seed": range(len(step_times_s)),
            "num_steps": 4,
            "step_time_s": [float(each) for each in step_times_s],
            "long_share": 0.2 if eta and eta > 1 else 0.0,
            "has_seen_long": True,
            "deferred_at_once": 0.0,
            "bubble_ratio": 0.5,
            "wasted_share": 0.3 if eta and eta > 1 else 0.0,
            "preemptions": preemptions,
            "kv_peak_share": 0.5,
            "kv_tokens_per_engine": kv_tokens,
            "num_all_gpus": num_gpus + num_judge_gpus,
            "gpu_hours_per_1000_steps": [1000 * each * (num_gpus + num_judge_gpus) / 3600 for each in step_times_s],
            "is_asked": (num_gpus, rho) == (32, 0.3),
        }
    )
