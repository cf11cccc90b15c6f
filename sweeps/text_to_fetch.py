"""What a run would fetch of text and tokenizer, for a plan that is only shown. Uses no network."""

from storage.hub import build_command, cached_tokenizer, described, is_folder, is_known
from storage.settings import DataSettings
from storage.token_cache import is_built


def text_to_fetch(data: DataSettings) -> list[str]:
    """What these settings name on the Hugging Face Hub and is not here yet, a phrase each."""
    phrases = []
    if data.has_hub_tokenizer and cached_tokenizer(data.tokenizer) is None:
        phrases.append(f"the tokenizer {data.tokenizer}")
    if text_is_away(data):
        phrases.append(
            f"the text {described(data)}, into the token cache in {data.cache or 'its own folder'}; to do so ahead: "
            f"{build_command(data)}"
        )
    return phrases


def text_is_away(data: DataSettings) -> bool:
    """Whether the text would be streamed from the Hub: no shared token cache holds it."""
    if not data.dataset or is_folder(data.dataset):
        return False
    return not (data.cache and is_known(data) and is_built(data, data.cache))
