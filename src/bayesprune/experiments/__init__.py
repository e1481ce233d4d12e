"""The paper's experiments: its settings as data, and the main job."""

from bayesprune.experiments.main_job import RunConfig, check_config, complete, read_config, run_main_job, with_tradeoff

__all__ = ["RunConfig", "check_config", "complete", "read_config", "run_main_job", "with_tradeoff"]
