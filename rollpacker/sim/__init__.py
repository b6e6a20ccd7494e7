"""The modelled cluster: engines, trainer, reward and weight transfer that take computed time instead of real time.

They implement `rollpacker.protocols` and run on an event loop whose clock jumps, so the driver, the pipeline and the
machines above them are the ones of a real run. Nothing here imports ray or torch, waits, or reads a clock.

Lengths come from quantile tables, a recorded run or a user's file; costs from hardware and model shapes. Eight
overheads and efficiencies of `hardware=h800` are fitted to the paper's 7B and 14B runs (`rollpacker calibrate`);
`conf/hardware/h800.yaml` lists every row of the paper with what the model says. 26 of the 43 fitted rows are within 10
%, half within 7 %, 36 within 20 %; the fit is in-sample, since the forms of some costs were chosen by looking at the
same rows. The largest misses: long rounds of 7B take a quarter longer than in the paper, verl's steps are 13 to 14 %
short, so speedups over it are 4 to 16 % low (those of tail batching alone 1 % high with 7B and 9 % with 14B), and
short waits for rewards after a rollout are not reproduced.
`rollout_start_s`, 48 s, has no source. Everything else (32B, other hardware) is prediction.

Engines batch, page and preempt as vLLM does (`sim.decoder`). A trajectory's next turn finds what is left of its last
one in the KV cache of the same engine (`sim.prefixes`); the samples of a prompt share nothing, and what was preempted
or aborted is computed again as a whole.

With `hardware.profile` (from `rollpacker profile`) costs are fitted to this machine, and `workload.lengths=RUN` repeats
the lengths and rewards of a recorded run: on two cores a modelled step was off by 8 % (plain batches) and 9 % (tail
batching) on average, the means of all steps 4 % low and 3 % high; one real run differed from the next by 10 % and 18 %
per step (`tests/benchmarks/parity.py`).
"""
