"""The words the demo model knows, by part of speech and by task.

A word belongs to at most one task, so that the words of a prompt say which task it is.
"""

from dataclasses import dataclass
from typing import Final, Literal

TASKS: Final = ("code", "factual", "analysis", "essay", "creative")

# What may follow what, as relative log weights. A class that is not named does not follow.
FOLLOWERS: Final[dict[str, dict[str, float]]] = {
    "start": {"opener": 1.0, "keyword": 1.0},
    "stop": {"opener": 0.0, "keyword": 0.0, "eos": -2.0},
    "opener": {"noun": 0.5, "adjective": 0.0},
    "determiner": {"noun": 0.5, "adjective": 0.0},
    "pronoun": {"verb": 0.5, "auxiliary": 0.5, "adverb": -1.0},
    "noun": {
        "verb": 0.5,
        "auxiliary": 0.0,
        "preposition": 0.0,
        "conjunction": -1.0,
        "comma": -0.5,
        "stop": 0.5,
    },
    "verb": {"determiner": 0.5, "preposition": 0.0, "adjective": -0.5, "adverb": -1.0},
    "auxiliary": {"adjective": 0.5, "determiner": 0.0, "adverb": 0.0},
    "adjective": {"noun": 1.0, "comma": -1.0, "conjunction": -1.0},
    "adverb": {"verb": 0.5, "adjective": 0.5, "stop": -0.5},
    "preposition": {"determiner": 0.5, "noun": 0.5, "adjective": -0.5},
    "conjunction": {"determiner": 0.5, "pronoun": 0.5, "noun": 0.0},
    "comma": {"conjunction": 0.5, "pronoun": 0.0, "determiner": 0.0},
    "keyword": {"name": 1.0},
    "name": {"operator": 0.5, "bracket": 0.0, "closing": 0.5, "newline": 0.0},
    "operator": {"name": 1.0},
    "bracket": {"name": 1.0, "closing": -1.0},
    "closing": {"operator": 0.0, "newline": 1.0},
    "newline": {"keyword": 0.5, "name": 0.5},
    "byte": {"noun": 0.0, "verb": 0.0, "preposition": 0.0, "stop": -1.0, "name": 0.0},
    "eos": {"opener": 0.0, "keyword": 0.0},
}

# Words of every task but code, which has its own punctuation.
COMMON: Final[dict[str, str]] = {
    "opener": "The This Every Each Another Some No Our",
    "determiner": "the a each every this that its their some any no another",
    "pronoun": "it they we you she he",
    "auxiliary": "is was seems remains becomes",
    "preposition": "of in on with from by for to at into over under through between without about",
    "conjunction": "and or but because while when so although",
    "adverb": "often also never always slowly only still rarely",
}

# Written without a space in front. Those of the kind "start" are read, and hardly ever written.
MARKS: Final[dict[str, tuple[str, ...]]] = {
    "start": ("assistant:", "user:", "system:", "\n"),
    "stop": (".", "?", "!"),
    "comma": (",",),
}

CODE_MARKS: Final[dict[str, tuple[str, ...]]] = {
    "operator": (" =", " +", " ==", " !=", " <", " >", " -", " *", " %"),
    "bracket": ("(", "["),
    "closing": (")", "]", "):", "()"),
    "newline": ("\n    ", "\n        "),
}

TOPICAL: Final[dict[str, dict[str, str]]] = {
    "code": {
        "keyword": "def return import class yield assert raise lambda async await else",
        "name": (
            "function list string index cache buffer node parser token queue key value count "
            "result path file loop array graph code Python script module method variable "
            "integer dictionary iterator"
        ),
    },
    "factual": {
        "noun": (
            "water earth planet sun moon ocean river mountain continent temperature pressure "
            "oxygen carbon atom cell blood heart century kingdom empire capital population "
            "metal gravity"
        ),
        "verb": "orbits contains boils melts borders measures flows produces absorbs covers",
        "adjective": "largest northern chemical ancient solid liquid solar volcanic coastal",
    },
    "analysis": {
        "noun": (
            "cost risk trade-off market demand supply budget strategy team metric evidence "
            "assumption benefit deadline customer revenue latency option factor trend policy "
            "sample bottleneck incentive"
        ),
        "verb": "reduces increases implies outweighs depends suggests limits shifts drives delays",
        "adjective": "marginal expected likely hidden short-term long-term fixed weak strong",
    },
    "essay": {
        "noun": (
            "society freedom education memory history culture technology progress tradition "
            "identity community belief justice language work art duty truth wisdom "
            "generation virtue nature reason conscience"
        ),
        "verb": (
            "shapes reveals demands teaches questions preserves reflects deserves invites betrays"
        ),
        "adjective": "modern moral human public private lasting shared fragile honest",
    },
    "creative": {
        "noun": (
            "dragon lantern forest whisper shadow castle ghost candle sailor storm violin "
            "clockmaker moonlight raven garden mirror stranger lighthouse dream song fox "
            "winter ember tower"
        ),
        "verb": "dances sings sleeps wanders vanishes burns remembers dreams waits trembles",
        "adjective": "silver hollow velvet restless forgotten crooked golden silent wild",
    },
}


@dataclass(frozen=True, slots=True)
class Word:
    """One token of the vocabulary.

    Attributes:
        text: As the file holds it: `<0x0A>` for a byte, else the text itself.
        kind: Part of speech, a key of `FOLLOWERS`.
        task: The task the word belongs to; `None` for words of all tasks.
        form: How the tokenizer treats it. A `whole` word is found anywhere in a text, longest
            first, with no need for the pieces that merging would pass through.
    """

    text: str
    kind: str
    task: str | None = None
    form: Literal["unknown", "control", "byte", "piece", "whole"] = "whole"


UNKNOWN_ID: Final = 0
BOS_ID: Final = 1
EOS_ID: Final = 2


def vocabulary() -> tuple[Word, ...]:
    """Returns the tokens in order of their ids; with the bytes, any text can be written."""
    words = [
        Word("<unk>", "byte", form="unknown"),
        Word("<s>", "start", form="control"),
        Word("</s>", "eos", form="control"),
    ]
    words += [Word(f"<0x{byte:02X}>", "byte", form="byte") for byte in range(256)]
    words.append(Word("\N{LOWER ONE EIGHTH BLOCK}", "byte", form="piece"))  # stands for a space
    words += [Word(text, kind) for kind, texts in MARKS.items() for text in texts]
    words += [Word(f" {text}", kind) for kind, texts in COMMON.items() for text in texts.split()]
    words += [Word(text, kind, "code") for kind, texts in CODE_MARKS.items() for text in texts]
    words += [
        Word(f" {text}", kind, task)
        for task, kinds in TOPICAL.items()
        for kind, texts in kinds.items()
        for text in texts.split()
    ]
    return tuple(words)
