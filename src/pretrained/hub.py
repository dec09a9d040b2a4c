"""Exports on the Hugging Face Hub: uploaded, and downloaded again."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from src.errors import UserError
from src.training.checkpoints import first_line

T = TypeVar("T")
FILES = ["*.json", "*.safetensors"]  # of a repository that are downloaded: nothing that could hold code


def check_hub(name: str) -> None:
    """Raises UserError for a name that no repository can have, a missing or wrong token, or a Hub out of reach."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import validate_repo_id

    asked(f"push={name}", "expected USER/NAME", lambda: validate_repo_id(name))
    if not get_token():
        raise UserError(f"push={name} needs a token that may write; run hf auth login, or set HF_TOKEN")
    asked(f"push={name}", "check the network and the token", HfApi().whoami)


def push(folder: Path, name: str) -> str:
    """Uploads the folder as a model repository, a new one or the next commit of an old one; returns its address."""
    from huggingface_hub import HfApi

    api, advice = HfApi(), f"the folder stays, to go on: hf upload {name} {folder}"
    address = asked(f"push={name}", advice, lambda: api.create_repo(name, exist_ok=True))
    message = "Upload an export of Reprise"
    asked(f"push={name}", advice, lambda: api.upload_folder(repo_id=name, folder_path=folder, commit_message=message))
    return str(address)


def downloaded(name: str, revision: str | None = None) -> Path:
    """Returns a folder with the repository's files of weights and of settings; of the Hub's cache where it has them."""
    from huggingface_hub import snapshot_download

    advice = "give USER/NAME of the Hub, or a folder that export.py wrote"
    return Path(asked(name, advice, lambda: snapshot_download(name, revision=revision, allow_patterns=FILES)))


def asked(what: str, advice: str, ask: Callable[[], T]) -> T:
    """Returns the Hub's answer; raises UserError with its first line and the advice where there is none."""
    try:
        return ask()
    except Exception as error:  # those of its HTTP library too, which is another one in other versions
        raise UserError(f"{what}: {type(error).__name__}: {first_line(error).rstrip('.')}; {advice}") from error
