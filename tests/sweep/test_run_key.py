"""Which jobs of a sweep are the same run: the composed config decides, not how it is written."""

from omegaconf import OmegaConf

from src.sweep.launcher import run_key


def test_the_key_is_that_of_the_values_whatever_their_order() -> None:
    config = OmegaConf.create({"hp": {"lr": 0.001, "batch_size": 8}, "output_dir": "a", "sweep": {"parallel": 1}})
    same = OmegaConf.create({"output_dir": "b", "hp": {"batch_size": 8, "lr": 1e-3}, "hydra": {"x": 1}})
    other = OmegaConf.create({"hp": {"lr": 0.002, "batch_size": 8}, "output_dir": "a"})
    assert run_key("train.py", config) == run_key("train.py", same)
    assert run_key("train.py", config) not in (run_key("train.py", other), run_key("predict.py", config))
    assert run_key("train.py", config, groups=["seed"]) == run_key("train.py", other, groups=["seed"])
