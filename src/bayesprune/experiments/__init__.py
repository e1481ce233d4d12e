"""The paper's experiments: its settings as data, and the main job."""

from bayesprune.experiments.main_job import RunConfig, check_config, complete, read_config, run_main_job, spelled_out

__all__ = ["RunConfig", "check_config", "complete", "read_config", "run_main_job", "spelled_out"]
