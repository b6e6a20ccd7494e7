"""Made-up outcomes of trials, one line per setting."""

from __future__ import annotations

from rollpacker.analysis.plan.outcomes import Outcome
from rollpacker.analysis.plan.trials import Setting, Trial


def outcomes(
    system: str,
    *step_times_s: float,
    eta: float | None = None,
    degree: int = 2,
    num_gpus: int = 32,
    rho: float = 0.3,
    preemptions: float = 0.0,
    kv_tokens: int = 100_000,
) -> list[Outcome]:
    """A setting's trials, one per seed from 0."""
    setting = Setting(system=system, eta=eta, tensor_parallel=degree, num_gpus=num_gpus, rho=rho)
    return [
        Outcome(
            trial=Trial(setting=setting, seed=seed, num_steps=4),
            step_time_s=step_time_s,
            rollout_time_s=step_time_s / 2,
            train_time_s=step_time_s / 4,
            long_share=0.2 if eta and eta > 1 else 0.0,
            has_seen_long=True,
            bubble_ratio=0.5,
            wasted_share=0.3 if eta and eta > 1 else 0.0,
            preemptions=preemptions,
            kv_peak_share=0.5,
            kv_tokens_per_engine=kv_tokens,
            num_all_gpus=num_gpus,
        )
        for seed, step_time_s in enumerate(step_times_s)
    ]
