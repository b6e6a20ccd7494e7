"""Every key of the configuration, its unit, its bounds and its default.

A configuration is a frozen tree; unknown keys are errors. Defaults live here and only here: the files in `conf/`
set what differs. Sections follow the Hydra groups. A validator's message has one line per part: the problem, what is
allowed, what to do.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A node of the tree."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        arbitrary_types_allowed=False,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


SpeculationFactor = Annotated[float, Field(ge=1, le=8)]
"""How many times more is launched than needed; 1 means no speculation, the paper uses 1.25."""


def exact(factor: float) -> Fraction:
    """The fraction that a user meant by a decimal number: 1.1 is 11/10, not the nearest double."""
    return Fraction(str(factor))


class RunSection(Section):
    """The run as a whole."""

    dir: Path
    """Everything that the run writes lies below it."""
    seed: int = Field(0, ge=0)
    """Of the prompt order, and of every sample's own generator."""
    num_steps: int = Field(100, ge=1)
    """Training steps; the learning-rate schedule spans them."""
    num_epochs: int | None = Field(None, ge=1)
    """Ends the run when every prompt was trained this often; null repeats the data until `num_steps`."""
    resume: Literal["never", "auto"] = "never"
    """`auto` continues from the newest checkpoint in `run.dir`, or starts when there is none."""
    checkpoint_every_steps: int = Field(10, ge=0)
    """0 writes a checkpoint only at the end."""
    keep_checkpoints: int = Field(2, ge=1)
    """Older ones are removed."""
    progress: Literal["auto", "live", "plain", "none"] = "auto"
    """`live` redraws one screen, `plain` prints a line per step, `auto` picks by whether a terminal is there."""


class ShapeSection(Section):
    """The sizes of a transformer with gated MLPs and grouped-query attention, as its config.json gives them."""

    num_layers: int = Field(ge=1)
    """`num_hidden_layers`."""
    hidden_size: int = Field(ge=1)
    """Width of the residual stream."""
    num_heads: int = Field(ge=1)
    """`num_attention_heads`."""
    num_kv_heads: int = Field(ge=1)
    """`num_key_value_heads`."""
    head_dim: int = Field(ge=1)
    """Width of one head."""
    intermediate_size: int = Field(ge=1)
    """Width of the MLP."""
    vocab_size: int = Field(ge=1)
    """Rows of the embedding."""
    has_tied_embeddings: bool = False
    """The output layer is the embedding."""


class ModelSection(Section):
    """The policy."""

    path: Path | None
    """A local directory in Hugging Face format, with its tokenizer. null in a modelled run that has a shape instead."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights, in engines and trainer."""
    shape: ShapeSection | None = None
    """What a modelled run without a model directory knows of the model; a real one reads it from the directory."""

    @property
    def directory(self) -> Path:
        """The path, which every real run has."""
        assert self.path is not None
        return self.path


class DataSection(Section):
    """The prompts."""

    path: Path | None
    """A JSONL file; each line has `id`, `domain`, `messages` or `prompt`, and `ground_truth`. null in a modelled run
    that makes up its prompts."""
    max_prompt_tokens: int = Field(1024, ge=1)
    """Longer prompts are dropped before the run starts, and counted."""
    domain_weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Share of each domain in every batch; empty means the shares of the file."""
    shuffle: bool = True
    """A new order in every epoch, from `run.seed`."""

    @property
    def file(self) -> Path:
        """The path, which every real run has."""
        assert self.path is not None
        return self.path


class WorkloadSection(Section):
    """What a modelled run knows of its responses: their lengths, their rewards and how long these take."""

    name: str
    """What people call it."""
    lengths: Path | None = None
    """Where response lengths come from: the run.dir of a recorded run, or a CSV, Parquet or JSONL file with the column
    `length_tokens` and, where known, `prompt` and `domain`; or with `p` and `tokens`, a table of quantiles. null takes
    the quantiles that the paper measured (Fig 2a)."""
    domain: str | None = None
    """The one domain that is used; null uses every domain of the lengths."""
    num_prompts: int = Field(4096, ge=1)
    """Of each domain, where neither data.path nor the lengths name the prompts."""
    prompt_tokens: int = Field(256, ge=1)
    """Length of every prompt; the paper does not give it."""
    rho: float = Field(0.3, ge=0, lt=1)
    """Correlation of the lengths within a prompt (Gaussian copula), where the lengths do not name their prompts.
    A guess: the paper shows marginals only."""
    drift_per_step: float = Field(0.0, gt=-1, le=1)
    """By which share lengths grow from one step to the next: 0.01 makes them 1.65 times as long after 50 steps. Not of
    a recorded run, which has its own."""
    drift_by_step: dict[int, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Factor on lengths at some steps, interpolated between them and constant outside: {0: 1, 100: 1.5}; on top of
    `drift_per_step`."""
    solve_rate: float = Field(0.5, ge=0, le=1)
    """Share of the complete responses that are right; one that reaches its length limit never is. A guess."""
    solve_rate_by_domain: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Of single domains, instead of `solve_rate`."""
    solve_rate_drift_per_step: float = Field(0.0, ge=-1, le=1)
    """Added to the share of right responses from step to step, which stays between 0 and 1."""
    endless_share: float = Field(0.0513, ge=0, lt=1)
    """Share of the programs that never end by themselves; so many had not at the paper's limit of 30 s (Fig 7a). None
    of them is right, so they are at most those that are wrong."""
    run_time_rho: float = Field(0.8, ge=0, lt=1)
    """Correlation of the run times of a prompt's programs (Gaussian copula): they solve the same problem on the same
    test cases. A guess: the paper shows marginals only."""
    reward_time_s: float | None = Field(None, ge=0)
    """Time to judge any response, on a CPU worker; null takes the run times of the paper's sandbox (Fig 7a) for
    programs, `hardware.rule_time_s` for rules, and the LLM judge's prefill."""


class RolloutSection(Section):
    """The batch and the sampling."""

    num_prompts: int = Field(32, ge=1)
    """P0: prompts in a training batch."""
    num_responses: int = Field(8, ge=2)
    """R0: responses per prompt, the GRPO group."""
    max_response_tokens: int = Field(256, ge=1)
    """A response that reaches it ends there, with finish reason `length`."""
    temperature: float = Field(1.0, gt=0, le=10)
    """Divides the logits before sampling; the trainer divides by it too."""


class SystemSection(Section):
    """Which scheduling policy packs the rollouts."""

    name: str
    """What tables and plots call it."""
    batching: Literal["plain", "tail"]
    """`plain` waits for every response; `tail` runs short rounds that race and long rounds that do not."""
    eta_prompts: SpeculationFactor = 1.25
    """Prompts launched per prompt needed in a short round; only with `batching: tail`."""
    eta_responses: SpeculationFactor = 1.25
    """Responses launched per response needed in a short round; only with `batching: tail`."""
    reward: Literal["batch", "async", "scheduled"] = "async"
    """`batch` scores the batch after its last response; `async` scores each response as it finishes, and `scheduled`
    moreover stops programs that take much longer than correct ones did (paper, section 4.3)."""
    planner: bool = False
    """Moves rounds of a kind to engines of another tensor-parallel degree when they preempt more and more, or not at
    all (paper, section 4.2). Needs engines that can work at several degrees: today the modelled ones."""
    stream: bool = False
    """Lends half of the engines to the trainer before the rollout ends, and streams accepted groups to it (paper,
    section 4.4). Needs engines and trainer that share GPUs: today the modelled ones."""


class ActorResources(Section):
    """What one Ray actor reserves."""

    num_cpus: float = Field(1, ge=0)
    """Cores that Ray sets aside, whatever the process uses."""
    num_gpus: float = Field(0, ge=0)
    """GPUs that the process sees."""


class EngineSection(Section):
    """Who generates."""

    name: Literal["torch"] = "torch"
    """Which implementation."""
    num_engines: int = Field(2, ge=1)
    """Each holds the whole model."""
    max_num_seqs: int = Field(256, ge=1)
    """Decode slots per engine; further requests wait."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one engine. Only modelled engines take more than 1 so far."""
    num_threads: int = Field(1, ge=1)
    """torch threads per engine process."""
    resources: ActorResources = ActorResources()


class TrainerSection(Section):
    """Who learns, and by which objective (GRPO)."""

    name: Literal["torch"] = "torch"
    """Which implementation."""
    learning_rate: float = Field(1e-6, gt=0)
    """Of AdamW, after the warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay over `run.num_steps`, advanced by pipeline steps."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Where a decaying schedule ends, as a share of `learning_rate`."""
    adam_betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the gradient's mean and of its square."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled, as in AdamW."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A larger gradient is scaled down to it."""
    clip_ratio_low: float = Field(0.2, gt=0, lt=1)
    """The probability ratio is clipped below 1 minus this."""
    clip_ratio_high: float = Field(0.28, gt=0)
    """The probability ratio is clipped above 1 plus this."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL penalty to the initial policy; 0 loads no reference."""
    advantage: Literal["group_std", "group_mean"] = "group_std"
    """Reward minus the group's mean, divided by the group's standard deviation or not (Dr. GRPO)."""
    loss_normalisation: Literal["sequence", "token_bound", "token_mean"] = "sequence"
    """What a token's loss is divided by: its response's length and the number of responses; the number of responses
    times `max_response_tokens`; or the batch's tokens, which is known only after the last response, so that
    `token_mean` cannot stream."""
    num_minibatches: int = Field(1, ge=1)
    """Optimizer updates per step; 1 is strictly on-policy. Divides `rollout.num_prompts`."""
    max_tokens_per_microbatch: int = Field(16384, ge=1)
    """Padded tokens per forward pass."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that share each layer. Only a modelled trainer takes more than 1 so far, as in the next two."""
    pipeline_parallel: int = Field(1, ge=1)
    """Groups of GPUs that share the layers among them."""
    context_parallel: int = Field(1, ge=1)
    """Groups of GPUs that share each sequence."""
    num_threads: int = Field(1, ge=1)
    """torch threads of the trainer process."""
    resources: ActorResources = ActorResources()


class JudgeSection(Section):
    """The LLM judge of a modelled run, which reads prompt and response and says one token."""

    model: ModelSection = ModelSection(path=None, dtype="bfloat16")
    """The paper's judge is Qwen2.5-7B-Instruct."""
    placement: Literal["auto", "dedicated", "shared", "turns"] = "auto"
    """`dedicated` has GPUs of its own; `shared` works on the engines' GPUs beside them (CUDA MPS); `turns` has these
    GPUs once the rollout has ended, and is loaded then: with `system.reward=batch` only. `auto` is `shared` with
    `system.reward=scheduled`, as the paper's reward scheduler does it, and `dedicated` otherwise."""
    num_gpus: int = Field(1, ge=1)
    """Of a `dedicated` judge, beside those of engines and trainer. The paper does not give it. With 1, judging 1,024
    answers of the paper's lengths takes a share of a step near Table 1's."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one replica; there are as many replicas as the GPUs hold."""
    gpu_share: float = Field(0.2, gt=0, lt=1)
    """Of each GPU's processors that a `shared` judge has, and that the engines are without. A guess."""
    resident_share: float = Field(1.0, ge=0, le=1)
    """Of the judge's layers that stay in GPU memory, where a `shared` judge takes their bytes from the engines' KV
    cache; the others stream over PCIe in step with compute."""
    template_tokens: int = Field(200, ge=0)
    """That surround prompt and response in what the judge reads. A guess."""
    start_s: float = Field(0.0, ge=0)
    """To bring a judge that takes `turns` onto the GPUs, beyond the transfer of its weights. A guess: it sleeps in host
    memory; a process that starts anew takes tens of seconds."""


class RewardSection(Section):
    """Who judges."""

    name: Literal["math", "walk", "modelled"] = "math"
    """Which check; `modelled` checks nothing, and is for modelled runs, which take their verdicts from the workload."""
    num_workers: int = Field(1, ge=1)
    """Responses that are checked at the same time."""
    timeout_s: float = Field(2.0, gt=0)
    """A response whose check takes longer scores 0 with reason `timeout`."""
    resources: ActorResources = ActorResources(num_cpus=0.5)
    kinds: dict[str, Literal["rule", "sandbox", "judge"]] = Field(default_factory=dict)
    """How a domain's responses are judged in a modelled run. Those that are not named: `code` in the sandbox, `judge`
    by the LLM judge, all others by a rule."""
    num_cores: int | None = Field(None, ge=1)
    """Cores that the `num_workers` programs of a modelled run share; null: those that the hardware's nodes have for
    it, and no more programs at a time than cores."""
    num_rule_workers: int | None = Field(None, ge=1)
    """Answers that rules check at the same time in a modelled run, on cores of their own; null: among the
    `num_workers`. veRL checks one after the other."""
    judge: JudgeSection = JudgeSection()

    @model_validator(mode="after")
    def _models_nothing_in_reality(self) -> Self:
        modelled = ("kinds", "num_cores", "num_rule_workers", "judge")
        if self.name != "modelled":
            for key in modelled:
                value, default = getattr(self, key), type(self).model_fields[key].get_default(call_default_factory=True)
                if value != default:
                    raise ValueError(
                        f"reward.{key} is set with reward.name={self.name}.\n"
                        f"{', '.join(f'reward.{each}' for each in modelled)} describe rewards of a modelled run.\n"
                        f"Choose reward=modelled, or leave out reward.{key}."
                    )
        return self


class DeadlineSection(Section):
    """How long the run waits before it says what it waits for, and ends. Seconds."""

    start_s: float = Field(180, gt=0)
    """Ray, and every actor with its model loaded."""
    rollout_stall_s: float = Field(600, gt=0)
    """No response and no reward arrived."""
    train_s: float = Field(1800, gt=0)
    """One call of the trainer."""
    weight_sync_s: float = Field(300, gt=0)
    """A new policy version on its way to every engine."""
    checkpoint_s: float = Field(600, gt=0)
    """Writing or loading one."""
    driver_stall_s: float = Field(120, gt=0)
    """The driver's own event loop, blocked by one call."""
    stop_s: float = Field(20, gt=0)
    """Closing one actor at the end; after it the actor is killed."""


class HardwareSection(Section):
    """The GPUs of a modelled run and how much of their peak is reached; `engine.num_engines` says how many they are."""

    name: str
    """What people call them."""
    fitted_to: str | None = None
    """What the overheads and efficiencies below were fitted to, by `rollpacker calibrate`; null: they are data sheets,
    common figures and guesses."""
    profile: Path | None = None
    """A Parquet file that `rollpacker profile` wrote: engines, trainer, weight transfer and calls take what was
    measured there, instead of what the keys below come to."""
    memory_gb: float = Field(gt=0)
    """Of one GPU, 10^9 bytes."""
    memory_gb_per_s: float = Field(gt=0)
    """Peak rate at which a GPU reads its memory."""
    tflops: float = Field(gt=0)
    """Peak of dense bf16 matrix multiplication, 10^12 per second and GPU."""
    nvlink_gb_per_s: float = Field(gt=0)
    """Per GPU, both directions together, as data sheets count it."""
    network_gb_per_s: float = Field(gt=0)
    """Per node and direction."""
    pcie_gb_per_s: float = Field(64, gt=0)
    """Between host memory and one GPU, per direction: PCIe 5.0 x16, half of what data sheets give for both."""
    gpus_per_node: int = Field(8, ge=1)
    """A tensor-parallel group stays within a node."""
    memory_share: float = Field(0.9, gt=0, le=1)
    """Of a GPU's memory that an engine takes; what its weights leave of it holds the KV cache. vLLM's default."""
    memory_efficiency: float = Field(0.8, gt=0, le=1)
    """Share of `memory_gb_per_s` that decoding reaches. A common figure."""
    matmul_efficiency: float = Field(0.6, gt=0, le=1)
    """Share of `tflops` that prefill and decode reach. A common figure."""
    training_efficiency: float = Field(0.4, gt=0, le=1)
    """Share of `tflops` that forward and backward passes reach (MFU). A common figure."""
    link_efficiency: float = Field(0.7, gt=0, le=1)
    """Share of NVLink's and the network's rate that transfers reach. A common figure."""
    step_overhead_s: float = Field(0.002, ge=0)
    """Of every forward pass of an engine: scheduling, sampling, kernel launches. A common figure."""
    rollout_start_s: float = Field(0.0, ge=0)
    """From an engine's first request with new weights to its first forward pass: it wakes and takes its memory."""
    sequence_overhead_s: float = Field(0.0, ge=0)
    """Of every sequence in a forward pass of an engine: what scheduling, sampling and detokenization take for each."""
    training_sequence_overhead_s: float = Field(0.0, ge=0)
    """Of every sequence that a training replica passes forward and backward: what does not depend on its length."""
    weight_sync_efficiency: float = Field(0.7, gt=0, le=1)
    """Share of the network's rate at which new weights come from the other nodes. As `link_efficiency`."""
    reward_cores_per_node: int = Field(64, ge=1)
    """Cores of a node that run programs to be judged, one at a time each. A guess."""
    rule_time_s: float = Field(0.01, ge=0)
    """CPU time to compare an answer with its ground truth by a rule. A guess."""
    engine_switch_s: float = Field(0.5, ge=0)
    """To put an engine to sleep, or to wake it: its memory is freed or taken. A guess."""
    allreduce_latency_s: float = Field(1e-5, ge=0)
    """Of one all-reduce within a node, however small. A common figure."""


class BackendSection(Section):
    """Where the actors run."""

    name: Literal["ray", "sim"] = "ray"
    """`ray` runs them on this machine, or on the nodes of a Slurm job; `sim` computes what they would do and when."""
    num_cpus: int | None = Field(None, ge=1)
    """Told to Ray for each node. null takes what Slurm allocated; outside a job the cores that this process may use, or
    what the actors reserve if that is more: on one machine engines and trainer take turns."""
    num_gpus: int | None = Field(None, ge=0)
    """Told to Ray for each node; null counts CUDA_VISIBLE_DEVICES."""
    object_store_mb: int = Field(256, ge=80)
    """Shared memory of each node for weights and responses in flight; holds at least two policy versions."""
    deadlines: DeadlineSection = DeadlineSection()


Word = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A text that people also write as a number: the value of a variable or of an option."""


class ContainerSection(Section):
    """The image in which every rank of a Slurm job runs."""

    image: Path | None = None
    """A SIF file or an unpacked (sandbox) directory; null runs in the environment that submits."""
    runtime: Literal["apptainer", "singularity"] = "apptainer"
    """The command that runs the image on the nodes."""
    python: str = "python3"
    """The interpreter inside the image that has RollPacker."""
    options: tuple[str, ...] = ()
    """Further words for `apptainer exec`, such as --userns."""
    binds: tuple[str, ...] = ()
    """Further folders that the image sees, as SOURCE[:TARGET[:ro]]; the run's own folders are bound anyway."""
    environment: dict[str, Word] = Field(default_factory=dict)
    """Variables inside the image, on top of `cluster.environment`."""


class ClusterSection(Section):
    """The Slurm job of one run: what it asks for, and how it lives with preemption and time limits."""

    name: str
    """What people call the cluster."""
    num_nodes: int | None = Field(None, ge=1)
    """null asks for as many nodes as the GPUs of engines and trainer fill."""
    gpus_per_node: int = Field(0, ge=0)
    """GPUs that the job asks for on each node."""
    gpu_type: str | None = None
    """As Slurm names it (GRES type); null takes any."""
    cpus_per_node: int = Field(1, ge=1)
    """Cores that the job asks for on each node, which all actors there share."""
    memory_gb_per_node: float | None = Field(None, ge=0)
    """10^9 bytes; 0 asks for all of a node's memory, null leaves it to Slurm's default."""
    time_limit_min: int | None = Field(None, ge=1)
    """Of one attempt; null leaves it to the partition's default."""
    partition: str | None = None
    """Where the job queues; null leaves it to Slurm's default."""
    account: str | None = None
    """Who pays; null leaves it to Slurm's default."""
    qos: str | None = None
    """Quality of service; null leaves it to Slurm's default."""
    constraint: str | None = None
    """Features that the nodes must have, in Slurm's grammar."""
    exclusive: bool = False
    """The job shares its nodes with nobody."""
    sbatch: dict[str, Word] = Field(default_factory=dict)
    """Further options of sbatch by their long names: {reservation: maintenance}."""
    setup: tuple[str, ...] = ()
    """Shell lines that run on the first node before the ranks start, such as `module load apptainer`."""
    environment: dict[str, Word] = Field(default_factory=dict)
    """Variables of every rank, such as NCCL_SOCKET_IFNAME."""
    network_interface: str | None = None
    """Over which Ray's nodes talk; null takes the address of the node's name."""
    scratch: tuple[str, ...] = ("$SLURM_TMPDIR", "$TMPDIR", "/tmp")  # noqa: S108  (a list of candidates, the first that fits)
    """Folders on the node itself; the first that is writable and short enough for sockets holds Ray's session."""
    has_shared_files: bool = False
    """Every node sees the run's folder at the same path, although its file system does not look like a network's."""
    requeue: bool = True
    """A job that has to leave before its run is finished goes back into the queue, and goes on from its checkpoint."""
    signal: Literal["URG", "USR2", "TERM"] = "URG"
    """What Slurm sends before the time limit and, where it is set up so, at preemption. Ray and mounted images die of
    USR2 and TERM unless they are shielded; URG leaves them alone."""
    signal_lead_s: int = Field(120, ge=1)
    """How long before the time limit; Slurm may be a minute early."""
    max_attempts_without_progress: int = Field(2, ge=1)
    """The job is not requeued again after so many attempts in a row that finished no step."""
    container: ContainerSection = ContainerSection()


class TrackerSection(Section):
    """Where metrics go beside Parquet. Keys come from the environment, never from here."""

    tensorboard: bool = False
    """Writes event files below `run.dir`."""
    wandb: bool = False
    """Logs to Weights & Biases."""
    wandb_project: str = "rollpacker"
    """Where Weights & Biases files the run."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes files that `wandb sync` uploads later."""


class RunConfig(Section):
    """The whole configuration of one run."""

    run: RunSection
    model: ModelSection
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    system: SystemSection
    engine: EngineSection = EngineSection()
    trainer: TrainerSection = TrainerSection()
    reward: RewardSection = RewardSection()
    backend: BackendSection = BackendSection()
    hardware: HardwareSection | None = None
    """Only of a modelled run."""
    workload: WorkloadSection | None = None
    """Only of a modelled run."""
    cluster: ClusterSection | None = None
    """Only of a run that is submitted to Slurm."""
    tracker: TrackerSection = TrackerSection()

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        num_prompts, num_minibatches = self.rollout.num_prompts, self.trainer.num_minibatches
        if num_prompts % num_minibatches:
            divisors = ", ".join(str(count) for count in range(1, num_prompts + 1) if num_prompts % count == 0)
            raise ValueError(
                f"rollout.num_prompts={num_prompts} is not divisible by trainer.num_minibatches={num_minibatches}.\n"
                f"All minibatches of a step are equally large; {num_prompts} is divisible by {divisors}.\n"
                "Change one of the two."
            )
        return self

    @model_validator(mode="after")
    def _real_run_has_what_it_needs(self) -> Self:
        if self.backend.name == "sim":
            return self
        for key, value, needed in (
            ("model.path", self.model.path, "A real run loads a model from a local directory in Hugging Face format."),
            ("data.path", self.data.path, "A real run reads its prompts from a JSONL file."),
        ):
            if value is None:
                raise ValueError(f"{key}=null with backend.name=ray.\n{needed}\nSet {key}, or choose backend=sim.")
        for key, degree in (
            ("engine.tensor_parallel", self.engine.tensor_parallel),
            ("trainer.tensor_parallel", self.trainer.tensor_parallel),
            ("trainer.pipeline_parallel", self.trainer.pipeline_parallel),
            ("trainer.context_parallel", self.trainer.context_parallel),
        ):
            if degree > 1:
                raise ValueError(
                    f"{key}={degree} with backend.name=ray.\nThe torch engine and trainer use one device each.\n"
                    f"Set {key}=1, or choose backend=sim."
                )
        if self.reward.name == "modelled":
            raise ValueError(
                "reward.name=modelled with backend.name=ray.\nReal responses are judged by math or walk.\n"
                "Choose reward=math or reward=walk, or backend=sim."
            )
        return self

    @model_validator(mode="after")
    def _modelled_run_has_what_it_needs(self) -> Self:
        if self.backend.name != "sim":
            return self
        for group, section in (("hardware", self.hardware), ("workload", self.workload)):
            if section is None:
                raise ValueError(
                    f"backend.name=sim without {group}.\nA modelled run takes it from the group `{group}`.\n"
                    f"Choose an option of `{group}`; `rollpacker train --help` lists them."
                )
        if self.model.path is None and self.model.shape is None:
            raise ValueError(
                "backend.name=sim without model.shape and model.path.\n"
                "A modelled run needs a model's shape, published or read from a model directory.\n"
                "Choose model=qwen2.5-7b or another option with a shape, or set model.path."
            )
        num_gpus = self.engine.num_engines * self.engine.tensor_parallel
        trainer = self.trainer
        num_sharing = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
        if num_gpus % num_sharing:
            raise ValueError(
                f"engine.num_engines={self.engine.num_engines} of engine.tensor_parallel="
                f"{self.engine.tensor_parallel} are {num_gpus} GPUs, on which a trainer of {num_sharing} GPUs per "
                "replica does not fit.\n"
                "The trainer takes turns with the engines on the same GPUs, in whole replicas.\n"
                "Change engine.num_engines or the trainer's parallel degrees."
            )
        return self


class ScoredDataSection(Section):
    """The prompts whose responses are judged."""

    path: Path
    """A JSONL file; each line has `id`, `domain`, `messages` or `prompt`, and `ground_truth`."""


class ScoreConfig(Section):
    """What `rollpacker score` takes: a reward is tried on given responses before anyone trains on it."""

    responses: Path
    """A JSONL file; each line has `id` and `response`. An id may come several times."""
    out: Path
    """The JSONL file to write; each line has `id`, `reward` and `reason`."""
    data: ScoredDataSection
    reward: RewardSection = RewardSection()
