"""The one table of what is refused: cases, the words of their line, and the reason. It counts only with exit code 2."""

from tests.options.judge import Refusal

REFUSALS = (
    Refusal("*precision=tf32*", "precision=tf32 needs an NVIDIA GPU", "CPUs have no TF32", device="cpu"),
    Refusal("*hardware=*00_*", "no GPU is visible here", "another machine's", device="cpu"),
    Refusal("*hardware=h200", "no GPU is visible here", "another machine's", device="cpu"),
    Refusal("*: predict execution.graph=on", "needs an NVIDIA GPU", "a CPU has no CUDA graphs", device="cpu"),
    Refusal(
        "se3_transformer/*: datamodule.task=null", "names nothing to learn", "own molecules have no default target"
    ),
    Refusal("se3_transformer/*: datamodule.source.val_share=0", "hold out one or more", "nothing to evaluate on"),
    Refusal(
        "dlrm*: trainer=1x2 hp.accumulate=2", "spread tables take one batch a step", "tables update in the exchange"
    ),
    Refusal(
        "dlrm/*: trainer=1x2 model.task.engine=torchrec execution.graph=on",
        "a CUDA graph cannot hold the step",
        "TorchRec copies sizes from the host in each step",
        device="cuda",
    ),
    *(
        Refusal(f"{model}/*: +fix_hp=max_bs", "no published row", "fix_hp has the rows of three models")
        for model in ("dlrm_dcnv2", "mobilenet_v1", "se3_transformer")
    ),
    *(
        Refusal(f"*: datamodule.source.split={split}", "split_column", "it needs a column of the file")
        for split in ("grouped", "by_time", "column")
    ),
    Refusal(
        "se3_transformer/*: datamodule.source.split=scaffold", "too few to hold whole ones out", "800 of 1 scaffold"
    ),
    Refusal("moflow/*: predict num_samples=null", "does not say how many molecules", "generation has no end"),
    Refusal("dlrm/*: model.task.schedule.decay_start_step=0", "lies within the warmup_steps", "warm-up comes first"),
    Refusal(
        "*: model.task.optimizer=torch.optim.Adagrad",
        "a CUDA graph cannot hold a step of Adagrad",
        "GradScaler and torch's Adagrad ask the host; src.training.adagrad.Adagrad does not",
        device="cuda",
    ),
    Refusal(
        "*: precision=fp16*", "the run has diverged", "for inference: in training float16 weights overflow", "", False
    ),
)

# Options that end a run before its 24 steps.
ENDS_EARLY = "fit.stop_at_target=*", "fit.stop_after_plateau=*", "datamodule.source.limit=*", "fit.max_time_s=*"
