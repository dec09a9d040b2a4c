"""Hyper-parameter search: Optuna proposes the values, this project's launcher runs the jobs.

    python train.py -m hydra/sweeper=search 'hp.lr=tag(log,interval(1e-4,1e-1))' hp.batch_size=64,128,256 \
        hydra.sweeper.maximize=final_metric hydra.sweeper.trials=30

The trials are in `search.db` of the sweep's folder; `sweep.resume=FOLDER` continues with them.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from src.cli import run_job
from src.config.hydra_files import save_masked
from src.config.ranges import Count, Seed
from src.config.values import check_plugin
from src.errors import UserError
from src.report.job import SweepJob, job_folders, read_job
from src.sweep.launcher import IsolatedLauncher
from src.sweep.outcome import record_of

if TYPE_CHECKING:
    import optuna

RATES = ("p_whole", "p_train", "p_core", "throughput", "e2e_time_s")


class SearchSweeper(Sweeper):
    """Searches the given space as docs/guides/sweeps.md describes.

    Args:
        trials: total number, trials of an earlier start included.
        maximize, minimize: the figure to optimise, `final_metric` or one of RATES; exactly one is given.
        seed: seed of the sampler.
    """

    def __init__(
        self, trials: Count = 20, maximize: str | None = None, minimize: str | None = None, seed: Seed = 1
    ) -> None:
        self.figures = [figure for figure in (maximize, minimize) if figure is not None]
        self.direction: Literal["maximize", "minimize"] = "maximize" if maximize else "minimize"
        self.trials, self.seed = trials, seed

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        check_plugin(config, "sweeper")
        if len(self.figures) != 1:
            raise UserError("a search needs hydra.sweeper.maximize=FIGURE or hydra.sweeper.minimize=FIGURE")
        (self.figure,) = self.figures
        if self.figure not in ("final_metric", *RATES):
            raise UserError(f"a search cannot go by {self.figure!r}; choose from final_metric, {', '.join(RATES)}")
        if find_spec("optuna") is None:
            raise UserError("hydra/sweeper=search needs the package optuna; install it with pip")
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        if not isinstance(launcher, IsolatedLauncher):
            raise UserError("a search runs its jobs on this machine: keep hydra/launcher=isolated")
        self.jobs, self.context, self.defaults = launcher, hydra_context, config

    def sweep(self, arguments: list[str]) -> None:
        """Runs trials until there are `trials` in all, as many at once as jobs run at once."""
        overrides = OverridesParser.create(config_loader=self.context.config_loader).parse_overrides(arguments)
        space = {o.get_key_element(): distribution(o) for o in overrides if o.is_sweep_override()}
        if not space:
            raise UserError("a search needs something to search: hp.lr=interval(1e-4,1e-2), hp.batch_size=64,128")
        fixed = [
            f"{o.get_key_element()}={o.get_value_element_as_str()}" for o in overrides if not o.is_sweep_override()
        ]
        folder = self.jobs.folder
        folder.mkdir(parents=True, exist_ok=True)
        save_masked(self.defaults, folder / "multirun.yaml")
        study = load_study(folder, self.direction, self.seed)
        begun = {
            trial.number: trial.params for trial in study.get_trials(deepcopy=False) if not trial.state.is_finished()
        }
        self._run(study, fixed, begun)  # unfinished trials of an earlier launcher
        while (left := self.trials - len(study.trials)) > 0:
            proposed = [study.ask(space) for _ in range(min(left, self.jobs.slots.max_jobs))]
            self._run(study, fixed, {trial.number: trial.params for trial in proposed})
        self._finish(study)

    def _run(self, study: "optuna.Study", fixed: Sequence[str], trials: Mapping[int, Mapping[str, Any]]) -> None:
        if not trials:
            return
        from optuna.trial import TrialState

        jobs = [[*fixed, *as_overrides(params)] for params in trials.values()]
        folders, ended = self.jobs.run(jobs, {key for params in trials.values() for key in params})
        for number, folder in zip(trials, folders, strict=True):
            value = figure_of(folder, ended[folder], self.figure)
            study.tell(number, value, state=None if value is not None else TrialState.FAIL)

    def _finish(self, study: "optuna.Study") -> None:
        folder = self.jobs.folder
        jobs = {job_folder: read_job(job_folder) for job_folder in job_folders(folder).values()}
        from src.sweep.status import print_results  # every command loads Hydra's plugins: a page needs much more

        print_results(folder, jobs, len(study.trials))
        done = [trial for trial in study.trials if trial.value is not None]
        if done:
            best = study.best_trial
            values = as_overrides(best.params)
            print(f"best of {len(study.trials)} trials: {self.figure} {best.value:.6g} with", *values)
        else:
            run_job(lambda _: nothing_done(len(jobs)), self.defaults)


def load_study(folder: Path, direction: Literal["maximize", "minimize"], seed: int) -> "optuna.Study":
    """Returns the study in a sweep's folder, or a new one; the seed counts its trials, so it proposes new values."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=f"sqlite:///{(folder / 'search.db').resolve()}", study_name="search", direction=direction,
        load_if_exists=True,
    )  # fmt: skip
    study.sampler = optuna.samplers.TPESampler(seed=(seed + len(study.trials)) % 2**32)
    return study


def distribution(override: Override) -> "optuna.distributions.BaseDistribution":
    """Returns the distribution of `a,b`, `choice`, `range` or `interval`; `tag(log, ...)` makes it logarithmic."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep = override.value()
    log = "log" in getattr(sweep, "tags", ())
    if isinstance(sweep, IntervalSweep):
        low, high = sweep.start, sweep.end
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        assert low is not None and high is not None  # by Hydra's grammar
        return FloatDistribution(low, high, log=log)
    return CategoricalDistribution(list(override.sweep_string_iterator()))


def as_overrides(params: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in params.items()]


def figure_of(folder: Path, job: SweepJob, figure: str) -> float | None:
    """Returns the figure of a job that is done; None for another state, or where it was not measured."""
    record = record_of(folder)
    if record is None or job.state != "done":
        return None
    if figure == "final_metric":
        return record.final_metric.value if record.final_metric else None
    return getattr(record, figure)


def nothing_done(jobs: int) -> None:
    raise UserError(f"none of {jobs} jobs is done, so there is no best trial; the reasons are above")
