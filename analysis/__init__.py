"""Tables and figures from the Parquet files of runs: `rollpacker analysis list`.

    exhibits/    one file per table or figure: which runs it needs, its numbers, its picture
    sweeps       models the runs that are missing         runs         finds runs and reads them
    numbers      ours beside the paper's, and claims      verdicts     which claims hold, and held before
    settings     what tells runs apart
    plots, rounds, style   what figures look like         writing      files and page
    plan/        `rollpacker plan`: what tail batching would save on other lengths, model and GPUs
    calibration/ `rollpacker calibrate`: fits the modelled cluster to the paper's numbers
    compare/     `rollpacker analysis compare`: any runs, over their seeds
    processes    processes that model runs side by side

On Slurm `rollpacker train -m hydra/launcher=slurm experiment=table2 cluster=h800 ...` trains what an exhibit needs, and
`rollpacker analysis table2 runs=DIR` draws what was measured. The artifact's experiments go by their names
(`e2e_performance`, `sensitive_analysis_fig11`, `benchmark_fig13`, `stream_trainer_table3`): at the paper's size, on
eight GPUs (`scale=8gpus`), or tiny and real on this machine (`scale=tiny backend=ray`). `fig08 backend=ray`
trains the demo with and without tail batching, and draws both learning curves. `verdicts` prints every claim of the
paper, and exits with 1 if one that held in `verdicts.csv` holds no longer; where runs are missing it says how many
claims it could not check. The paper's own numbers lie in `paper/`, and NOTES.md there says where they disagree; each
point of ours has the paper's and its relative error beside it in the exhibit's CSV file. Of Figures 9c, 10a
and 10b they are not at hand. Figures 2b and 12a and Table 4 show what is not modelled: the paper stands alone there.

What the paper does not show, all modelled on 16 H800 with the 7B model unless said:

* Length bias (`length_bias`). At eta 1.25 what is trained is 22 % shorter than what the policy writes: 34 % in short
  rounds, no clear shift in long ones. If longer responses are wrong more often (a correlation of -0.4), the mean reward
  of the batch rises by 4 points with the same policy.
* Guesses that matter little (`correlation`, `tail_weight`). The step speedup of tail batching falls from 1.35x to 1.29x
  when a prompt's lengths go from unrelated to nearly equal. Without a tail 4 % is left of 31 %; from half the paper's
  tail on, the limit on the length decides.
* Where it does not pay (`limits`). Nothing is gained where responses are cut at 2,048 tokens (1.01x), or with 512
  responses per GPU and no tail (1.00x). Where rollout is a fifth of the step, 1.3x becomes 1.1x.
* More GPUs (`fig14`, `scaling`). With four prompts per GPU the speedup of 14B over veRL stays at 2.0x from 32 GPUs to
  128, and samples per second grow by 3.9 (the paper's by 2.2); with a prompt per engine of 32B it grows from 2.4x on
  128 to 2.6x on 1,024. A modelled step of 8,192 GPUs takes seconds of a processor: `scaling` shows how many.
* What each lever adds (`ladder`): draft tokens, context parallelism by length, length history, streaming and rewards,
  alone, together and left out, with trained length and waste beside the time. With 14B `ours-exact` is 2.02x as
  fast as plain batches and trains their samples, `rollpacker` 1.96x; `ours` has 2.13x and 0.95 of the policy's length.
  What is left where drafts are accepted less, lengths say less of the next ones, or grow: `assumptions`. Real and tiny:
  what is learned by what races, by held-out scores (`learning backend=ray`, and `scale=tiny`).
* What does not hold. Adaptive lending to the stream trainer equals lending at 20 % here (`table3`): its first memory
  test passes in every round, because the engines that remain could hold all that runs at its full length. TP 2 saves no
  time in short rounds (`fig06`).

Of asynchronous training (`flash_*`; tests/benchmarks/results/asynchronous.md has what came out): ROLL-Flash's Table 1,
Figures 1b, 4 (real and tiny), 7 and 8 and its bounds, and ours: lead and bound, what interrupted responses cost, and
when tail batching or asynchronous training is the faster (`flash_tail`).

Nothing else in the package imports this room: it reads what runs wrote, and models runs.
"""
