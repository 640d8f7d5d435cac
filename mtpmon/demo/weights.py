"""The weights of the demo model: constructed, not trained.

A next-token logit is a sum of readable parts, each with coordinates of its own in the embedding:

- *class*: which kind of word may follow this kind (after a determiner a noun, say);
- *topic*: an attention head gathers the tasks of all words in the context, so that a reply stays
  with the task its prompt was about, whatever the chat template puts last;
- *content*: random bigrams; their spread makes the distribution sharp or flat;
- *recency*: a second attention head finds the latest words and makes them unlikely, so that
  greedy text does not run in circles;
- *memory*: a recurrent block keeps a fading trace of the content.

The draft head holds a copy of the attention block and sees the same embedding, but its memory is
one token old, and older with every further draft. A feed-forward layer gated by the topic adds
noise to its content: how much, by task, is what sets the acceptance by task.
"""

import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from mtpmon.demo.lexicon import FOLLOWERS, TASKS, Word

Array = npt.NDArray[np.float64]

KINDS: Final = tuple(FOLLOWERS)
MEMORY: Final = 16
"""Coordinates of the memory; also state size of the recurrent blocks."""
HEADS: Final = 2
"""Attention heads: one for the topic, one for recency."""
ROPE: Final = 32
"""Rotated coordinates of an attention head."""
NOISE_UNITS: Final = 32
"""Feed-forward units of the draft head, per task."""
NOT_CONTENT: Final = 48
"""Coordinates in front of the content; all others are content."""

BIAS: Final = 0
TOPIC: Final = slice(1, 1 + len(TASKS))
KIND: Final = slice(TOPIC.stop, TOPIC.stop + len(KINDS))
TRACE: Final = slice(KIND.stop, KIND.stop + MEMORY)

# How long each part of a hidden state is. A norm layer leaves a state nearly as it is: it scales
# the sum of squares to the width, and its weights scale that to about the sum of these.
STATE_SQUARES: Final = 112.0
BIAS_NORM: Final = 3.0
OWN_TOPIC_NORM: Final = 1.0
TOPIC_NORM: Final = 4.0
KIND_NORM: Final = 4.0
TRACE_NORM: Final = 3.0
CONTENT_NORM: Final = 6.0

# Logits, in nats.
TOPIC_GAIN: Final = 16.0
FORBIDDEN: Final = -11.0
UNWRITTEN: Final = -8.0
RECENT: Final = 18.0
TRACE_SHARE: Final = 0.06

# Length of what a feed-forward layer of the first blocks, or a whole later block, adds.
MIXING: Final = 0.015
IDLE: Final = 0.03

# Standard deviation of the content part, by task of the word predicted.
SHARPNESS: Final = {"code": 5.0, "factual": 4.2, "analysis": 3.4, "essay": 3.4, "creative": 2.8}
COMMON_SHARPNESS: Final = 3.0

# Length of the draft head's noise relative to the content, by topic.
HEAD_NOISE: Final = {
    "code": 0.027,
    "factual": 0.105,
    "analysis": 0.19,
    "essay": 0.175,
    "creative": 0.27,
}

# The spread of attention scores: e to this power between full match and none.
MATCH: Final = 5.0
# Rotation pairs that look back over some twenty words.
SLOW_PAIRS: Final = np.arange(5, 13)
ROPE_BASE: Final = 1000.0


class Weights:
    """Builds the tensors of one model; `tensors` maps their names to arrays (rows x columns)."""

    def __init__(
        self, words: tuple[Word, ...], *, seed: int, embedding: int, feed_forward: int
    ) -> None:
        self.words = words
        self.seed = seed
        self.width = embedding
        self.feed_forward = feed_forward
        self.content = slice(NOT_CONTENT, embedding)
        self.head = embedding - NOT_CONTENT
        self.tensors: dict[str, Array] = {}
        self._bigram = self._normal("bigram", self.head, self.head) / np.sqrt(self.head)

    def _normal(self, name: str, *shape: int) -> Array:
        """Standard normal numbers that depend on the seed and the name, and on no other draw."""
        bits = np.random.PCG64([self.seed, zlib.crc32(name.encode())])
        return np.random.Generator(bits).standard_normal(shape)

    def _neutral(self) -> Array:
        return np.full(self.width, np.sqrt(STATE_SQUARES / self.width))

    def vocabulary(self) -> None:
        """Embeds the words, and writes which word should follow which."""
        count, width = len(self.words), self.width
        embedding, output = np.zeros((count, width)), np.zeros((count, width))
        unit = _rows_to_unit(self._normal("content", count, self.head))
        wanted = _rows_to_unit(unit @ self._bigram.T) * np.sqrt(self.head)
        trace = self._normal("trace", count, MEMORY)
        common_topic = np.full(len(TASKS), 0.9 * TOPIC_GAIN / TOPIC_NORM)
        common_topic[TASKS.index("code")] = 0.0
        embedding[:, BIAS] = BIAS_NORM
        embedding[:, self.content] = CONTENT_NORM * unit
        for i, word in enumerate(self.words):
            embedding[i, KIND.start + KINDS.index(word.kind)] = KIND_NORM
            output[i, KIND] = [FOLLOWERS[k].get(word.kind, FORBIDDEN) / KIND_NORM for k in KINDS]
            sharpness = COMMON_SHARPNESS
            if word.task is not None:
                topic = TOPIC.start + TASKS.index(word.task)
                embedding[i, topic] = OWN_TOPIC_NORM
                output[i, topic] = TOPIC_GAIN / TOPIC_NORM
                sharpness = SHARPNESS[word.task]
            elif word.kind in ("byte", "start"):
                output[i, BIAS] = UNWRITTEN / BIAS_NORM
                sharpness = 1.0
            else:
                output[i, TOPIC] = common_topic
            output[i, self.content] = sharpness / CONTENT_NORM * wanted[i]
            output[i, TRACE] = TRACE_SHARE * sharpness / TRACE_NORM * trace[i]
        self.tensors["token_embd.weight"] = embedding
        self.tensors["output.weight"] = output
        self.tensors["output_norm.weight"] = self._neutral()

    def norms(self, block: int) -> None:
        """Neutral norms in front of a block's attention and feed-forward layer."""
        for name in ("attn_norm", "post_attention_norm"):
            self.tensors[f"blk.{block}.{name}.weight"] = self._neutral()

    def attention(self, block: int, *, idle: bool = False) -> None:
        """The attention that gathers topic and recent words; if idle, only noise."""
        width, head = self.width, self.head
        query = np.zeros((HEADS, 2, head, width))  # query and gate
        key, value = np.zeros((HEADS, head, width)), np.zeros((HEADS, head, width))
        out = np.zeros((width, HEADS, head))
        if idle:
            query += self._normal(f"query {block}", *query.shape) / np.sqrt(width)
            key += self._normal(f"key {block}", *key.shape) / np.sqrt(width)
            value[1, :, self.content] = IDLE * np.eye(head)
            out[self.content, 1] = self._normal(f"out {block}", head, head) / np.sqrt(head)
        else:
            n = len(TASKS)
            # Words of a task match; all others, which turn to another direction, do not.
            query[0, 0, head - 1, BIAS] = 1.0
            key[0, head - 1, TOPIC] = 1.0
            key[0, head - 2, BIAS] = 0.3 * OWN_TOPIC_NORM / BIAS_NORM
            value[0, :n, TOPIC] = np.eye(n)
            out[TOPIC, 0, :n] = np.eye(n) * TOPIC_NORM / OWN_TOPIC_NORM
            # Equal queries and keys: the rotation makes the match a matter of distance.
            query[1, 0, SLOW_PAIRS, BIAS] = key[1, SLOW_PAIRS, BIAS] = 1.0
            value[1, :, self.content] = np.eye(head)
            out[self.content, 1] = -RECENT / CONTENT_NORM * self._bigram
            query[:, 1, :, BIAS] = 2.0  # gates open
        scale = np.full(head, np.sqrt(MATCH / np.sqrt(head)))
        self._put(
            block,
            attn_q=query.reshape(-1, width),
            attn_k=key.reshape(-1, width),
            attn_v=value.reshape(-1, width),
            attn_output=out.reshape(width, -1),
            attn_q_norm=scale,
            attn_k_norm=scale,
        )

    def recurrent(self, block: int, *, idle: bool = False) -> None:
        """A gated delta net with one fixed key: a moving average of the content."""
        width = self.width
        mixed = np.zeros((3 * MEMORY, width))  # queries, keys, values
        mixed[: 2 * MEMORY, BIAS] = 1.0
        mixed[2 * MEMORY :, self.content] = (
            self._normal(f"value {block}", MEMORY, self.head) / CONTENT_NORM
        )
        convolution = np.tile([0.0, 0.0, 0.3, 1.0], (3 * MEMORY, 1))
        gate, rate = np.zeros((MEMORY, width)), np.zeros((1, width))
        gate[:, BIAS] = 1.0
        rate[:, BIAS] = -1.4 / BIAS_NORM  # a fifth of the trace is replaced per token
        out = np.zeros((width, MEMORY))
        silu = BIAS_NORM / (1 + np.exp(-BIAS_NORM))  # what the gate lets through
        if idle:
            size = IDLE / silu / np.sqrt(self.head * MEMORY)
            out[self.content] = size * self._normal(f"out {block}", self.head, MEMORY)
        else:
            out[TRACE] = TRACE_NORM / silu / np.sqrt(MEMORY) * np.eye(MEMORY)
        self._put(
            block,
            attn_qkv=mixed,
            attn_gate=gate,
            ssm_conv1d=convolution,
            ssm_beta=rate,
            ssm_alpha=np.zeros((1, width)),
            ssm_norm=np.ones(MEMORY),
            ssm_out=out,
        )
        self.tensors[f"blk.{block}.ssm_dt.bias"] = np.full(1, -4.0)
        self.tensors[f"blk.{block}.ssm_a"] = np.full(1, -1.0)

    def mixing(self, block: int, scale: float) -> None:
        """A random feed-forward layer that moves the content a little."""
        units, width = self.feed_forward, self.width
        down = np.zeros((width, units))
        down[self.content] = self._normal(f"down {block}", self.head, units) / np.sqrt(units)
        self._put(
            block,
            ffn_gate=self._normal(f"gate {block}", units, width) / np.sqrt(width),
            ffn_up=self._normal(f"up {block}", units, width) / np.sqrt(width),
            ffn_down=scale * down,
        )

    def draft_head(self, block: int, noise: float) -> None:
        """The multi-token-prediction block, with `noise` times the usual noise by task."""
        width = self.width
        gate, up = np.zeros((2, self.feed_forward, width))
        down = np.zeros((width, self.feed_forward))
        opened = 4.0
        silu = opened / (1 + np.exp(-opened))
        for i, task in enumerate(TASKS):
            units = slice(i * NOISE_UNITS, (i + 1) * NOISE_UNITS)
            gate[units, TOPIC.start + i] = 2 * opened / TOPIC_NORM
            gate[units, BIAS] = -opened / BIAS_NORM
            up[units, self.content] = self._normal(f"noise in {task}", NOISE_UNITS, self.head)
            size = noise * HEAD_NOISE[task] / silu / np.sqrt(NOISE_UNITS * self.head)
            down[self.content, units] = size * self._normal(
                f"noise out {task}", self.head, NOISE_UNITS
            )
        # The embedding half is copied; of the trunk's state only the memory is.
        project = np.eye(width, 2 * width)
        project[TRACE, width + TRACE.start : width + TRACE.stop] = np.eye(MEMORY)
        norms = (BIAS_NORM, OWN_TOPIC_NORM, KIND_NORM, CONTENT_NORM)
        token = np.sqrt(np.sum(np.square(norms)) / width)
        self._put(block, ffn_gate=gate, ffn_up=up, ffn_down=down)
        nextn = {
            "eh_proj": project,
            "enorm": np.full(width, token),
            "hnorm": self._neutral(),
            "shared_head_norm": self._neutral(),
        }
        self._put(block, **{f"nextn.{name}": array for name, array in nextn.items()})

    def disturb(self, noise: float, spare: int) -> None:
        """Adds noise to every matrix, relative to its spread, but for the block `spare`."""
        for name, array in self.tensors.items():
            if array.ndim == 2 and not name.startswith(f"blk.{spare}."):
                error = self._normal(f"disturb {name}", *array.shape)
                self.tensors[name] = array + noise * array.std() * error

    def _put(self, block: int, **arrays: Array) -> None:
        self.tensors.update({f"blk.{block}.{name}.weight": a for name, a in arrays.items()})


def build(
    words: tuple[Word, ...],
    *,
    seed: int,
    head_noise: float,
    trunk_noise: float,
    embedding: int,
    trunk_blocks: int,
    feed_forward: int,
) -> dict[str, Array]:
    """Returns all tensors of a model by name; arguments as in `ModelSpec`."""
    weights = Weights(words, seed=seed, embedding=embedding, feed_forward=feed_forward)
    weights.vocabulary()
    for block in range(trunk_blocks):
        weights.norms(block)
        idle = block > 1
        if block % 2:
            weights.attention(block, idle=idle)
        else:
            weights.recurrent(block, idle=idle)
        weights.mixing(block, IDLE / 10 if idle else MIXING)
    weights.norms(trunk_blocks)
    weights.attention(trunk_blocks)
    weights.draft_head(trunk_blocks, head_noise)
    if trunk_noise:
        weights.disturb(trunk_noise, spare=trunk_blocks)
    return weights.tensors


def _rows_to_unit(array: Array) -> Array:
    lengths: Array = np.linalg.norm(array, axis=1, keepdims=True)
    return array / lengths
