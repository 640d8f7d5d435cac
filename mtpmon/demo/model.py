"""A small `qwen35` model file with a multi-token-prediction head, made to be worth monitoring.

It writes readable nonsense, stays with the task of its prompt, and its draft head is good at code
and poor at fiction. The weights are explained in `mtpmon.demo.weights`.
"""

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from mtpmon.demo import weights
from mtpmon.demo.lexicon import BOS_ID, EOS_ID, TASKS, UNKNOWN_ID, Word, vocabulary

try:
    import gguf
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the demo model needs gguf: pip install 'mtpmon[demo]'") from error

WRITER_VERSION: Final = 1
"""Part of a cached file's name: raise it with any change of the bytes written."""

CONTEXT_TOKENS: Final = 8192

CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_TOKEN_TYPES: Final = {
    "unknown": gguf.TokenType.UNKNOWN,
    "control": gguf.TokenType.CONTROL,
    "byte": gguf.TokenType.BYTE,
    "piece": gguf.TokenType.NORMAL,
    "whole": gguf.TokenType.USER_DEFINED,
}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What to write; equal specs give equal bytes.

    Attributes:
        seed: Chooses the bigrams and every other random weight.
        head_noise: Scales the noise of the draft head: 0 drafts nearly perfectly, 1 gives the
            acceptance by task that the tests state, 3 drafts badly.
        trunk_noise: Disturbs the trunk's and the output's weights, relative to their spread: a
            stand-in for a quantised sibling of the model with the same seed. 0.02 is mild.
        embedding: Width; a multiple of 16, at least 96.
        trunk_blocks: An even number, at least 2. All blocks after the second cost time and do
            next to nothing else.
        feed_forward: Width of the feed-forward layers, at least 160.
    """

    seed: int = 1
    head_noise: float = 1.0
    trunk_noise: float = 0.0
    embedding: int = 112
    trunk_blocks: int = 2
    feed_forward: int = 160

    def __post_init__(self) -> None:
        """Refuses shapes that the model cannot have.

        Raises:
            ValueError: Names the field.
        """
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, is {self.seed}")
        if self.head_noise < 0 or self.trunk_noise < 0:
            raise ValueError("head_noise and trunk_noise must not be negative")
        if self.embedding < 96 or self.embedding % 16:
            raise ValueError(f"embedding must be a multiple of 16 from 96 on, is {self.embedding}")
        if self.trunk_blocks < 2 or self.trunk_blocks % 2:
            raise ValueError(f"trunk_blocks must be even and positive, is {self.trunk_blocks}")
        least = weights.NOISE_UNITS * len(TASKS)
        if self.feed_forward < least:
            raise ValueError(f"feed_forward must be at least {least}, is {self.feed_forward}")


DEEP: Final = ModelSpec(trunk_blocks=24)
"""A deeper model, 10 MB, whose verification step costs two to three plain ones on a processor.

The breakeven acceptance then lies among the tasks: drafting pays for code and not for fiction.
The default model is so small that fixed costs dominate, and drafting never pays.
"""


def write_model(spec: ModelSpec, path: str | Path) -> None:
    """Writes the model to `path` as GGUF, about 2 MB for the default spec.

    Raises:
        OSError: The file cannot be written.
    """
    words = vocabulary()
    writer = gguf.GGUFWriter(Path(path), "qwen35")
    _write_shape(writer, spec)
    _write_tokenizer(writer, words)
    for name, array in weights.build(words, **asdict(spec)).items():
        # On a grid, so that a last bit that depends on the machine's arithmetic does not show.
        writer.add_tensor(name, (np.round(array * 2**16) / 2**16).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cached_model(spec: ModelSpec | None = None, directory: str | Path | None = None) -> Path:
    """Returns the file of this model, written now if it is not there yet.

    Safe when several processes ask at once: each writes a file of its own and renames it, and
    their bytes are equal.

    Args:
        spec: The model; by default `ModelSpec()`.
        directory: By default `$XDG_CACHE_HOME/mtpmon`, or else `~/.cache/mtpmon`.

    Raises:
        OSError: The directory or the file cannot be written.
    """
    spec = spec or ModelSpec()
    if directory is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(home) / "mtpmon"
    folder = Path(directory)
    path = folder / f"demo-{_digest(spec)}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=folder) as scratch:
        fresh = Path(scratch) / path.name
        write_model(spec, fresh)
        fresh.replace(path)
    return path


def _digest(spec: ModelSpec) -> str:
    text = json.dumps({"writer": WRITER_VERSION, **asdict(spec)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_shape(writer: gguf.GGUFWriter, spec: ModelSpec) -> None:
    head = spec.embedding - weights.NOT_CONTENT
    writer.add_name(f"mtpmon demo, seed {spec.seed}")
    writer.add_description(json.dumps(asdict(spec)))
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(spec.embedding)
    writer.add_block_count(spec.trunk_blocks + 1)
    writer.add_feed_forward_length(spec.feed_forward)
    writer.add_head_count(weights.HEADS)
    writer.add_head_count_kv(weights.HEADS)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(weights.ROPE_BASE)
    writer.add_rope_dimension_count(weights.ROPE)
    writer.add_rope_dimension_sections([6, 5, 5, 0])
    writer.add_uint32("qwen35.full_attention_interval", 2)
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(weights.MEMORY)
    writer.add_ssm_state_size(weights.MEMORY)
    writer.add_ssm_time_step_rank(1)
    writer.add_ssm_group_count(1)


def _write_tokenizer(writer: gguf.GGUFWriter, words: tuple[Word, ...]) -> None:
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([word.text for word in words])
    writer.add_token_scores([0.0] * len(words))
    writer.add_token_types([_TOKEN_TYPES[word.form] for word in words])
    writer.add_unk_token_id(UNKNOWN_ID)
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
