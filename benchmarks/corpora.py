"""Sentences with tags and sentences with heads: read from WikiNER and Universal Dependencies where present, else made up with
lengths and word frequencies like theirs."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

from benchmarks.trees import Tree, random_trees, read_treebank
from examples.bilstm_tagger import TaggedSentence
from examples.character_tagger import Token
from examples.common import Phrase, Sentence
from foldloom.data import ConlluReader, TaggedReader, Vocabulary

DATA = Path(os.environ.get("FOLDLOOM_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
RARE = 5
"""A word that is seen so often or less is known by its characters alone."""

MADE_UP = 10_000
"""Sentences of a made-up corpus: as many as it takes for the usual share of rare words."""

TaggedWords = list[tuple[str, str]]
HeadedWords = list[tuple[str, int, str]]


# --- tags --------------------------------------------------------------------------------------------------------


def tagged_words(folder: Path | None) -> list[TaggedWords]:
    """All sentences of the corpus in the folder, or of a made-up one."""
    if folder is None:
        return _made_tagged_words()
    read = TaggedReader(folder / "wikiner" / "train.txt")
    sentences = [list(zip(sentence.words, sentence.tags, strict=True)) for sentence in read]
    random.Random(0).shuffle(sentences)
    return sentences


def _made_tagged_words() -> list[TaggedWords]:
    source = random.Random(0)
    tags = ("O", "I-PER", "I-LOC", "I-ORG", "I-MISC")
    words = _made_words(source, 25_000, _made_lengths(source, mean=25, deviation=12))
    return [[(word, source.choice(tags)) for word in sentence] for sentence in words]


def tagging_task(sentences: list[TaggedWords]) -> tuple[list[TaggedSentence], int, int]:
    """With the numbers of words and of tags."""
    words = Vocabulary.of(word for sentence in sentences for word, _ in sentence)
    tags = Vocabulary.of(tag for sentence in sentences for _, tag in sentence)
    numbered = [TaggedSentence([words[word] for word, _ in s], [tags[tag] for _, tag in s]) for s in sentences]
    return numbered, len(words), len(tags)


def character_task(sentences: list[TaggedWords]) -> tuple[list[list[Token]], int, int, int]:
    """With the numbers of common words, of characters and of tags."""
    words = Vocabulary.of((word for sentence in sentences for word, _ in sentence), at_least=RARE + 1)
    characters = Vocabulary.of(character for sentence in sentences for word, _ in sentence for character in word)
    tags = Vocabulary.of(tag for sentence in sentences for _, tag in sentence)

    def token(word: str, tag: str) -> Token:
        return Token(words.get(word), [characters[c] for c in word], tags[tag])

    numbered = [[token(word, tag) for word, tag in sentence] for sentence in sentences]
    return numbered, max(1, len(words)), len(characters), len(tags)


# --- heads -------------------------------------------------------------------------------------------------------


def headed_words(folder: Path | None) -> list[HeadedWords]:
    """All sentences of the corpus in the folder, or of a made-up one."""
    if folder is None:
        return _made_headed_words()
    read = ConlluReader(folder / "ud_ewt" / "en_ewt-ud-train.conllu.gz")
    sentences = [list(zip(sentence.words, sentence.heads, sentence.relations, strict=True)) for sentence in read]
    random.Random(0).shuffle(sentences)
    return sentences


def _made_headed_words() -> list[HeadedWords]:
    source = random.Random(0)
    relations = [f"relation {number}" for number in range(40)]
    words = _made_words(source, 20_000, _made_lengths(source, mean=16, deviation=12))
    return [
        [
            (word, head, source.choice(relations))
            for word, head in zip(sentence, _made_heads(source, len(sentence)), strict=True)
        ]
        for sentence in words
    ]


def _made_heads(source: random.Random, words: int) -> list[int]:
    """A random tree whose arcs do not cross: any word heads a stretch, the stretches beside it have heads of their own."""
    heads = [-1] * words
    pending = [(0, words, -1)]
    while pending:
        start, end, head = pending.pop()
        if start < end:
            word = source.randrange(start, end)
            heads[word] = head
            pending += ((start, word, word), (word + 1, end, word))
    return heads


def parsing_task(sentences: list[HeadedWords]) -> tuple[list[Sentence], int, int]:
    """With the numbers of words and of relations."""
    words = Vocabulary.of(word for sentence in sentences for word, _, _ in sentence)
    relations = Vocabulary.of(relation for sentence in sentences for _, _, relation in sentence)
    numbered = [
        Sentence([words[w] for w, _, _ in s], [head for _, head, _ in s], [relations[r] for _, _, r in s])
        for s in sentences
    ]
    return numbered, len(words), len(relations)


# --- trees -------------------------------------------------------------------------------------------------------


def labelled_trees(folder: Path | None, count: int) -> tuple[list[Tree], int]:
    """All trees of the corpus in the folder, or ``count`` made-up ones; with the number of words."""
    if folder is None:
        return random_trees(count), 18_000
    trees, words = read_treebank(folder / "sst" / "train.txt")
    random.Random(0).shuffle(trees)
    return trees, words


def phrase_of(tree: Tree) -> Phrase:
    if tree.left is None:
        return Phrase(tree.label, tree.word)
    return Phrase(tree.label, parts=(phrase_of(tree.left), phrase_of(tree.right)))


# --- made-up text ------------------------------------------------------------------------------------------------


def _made_lengths(source: random.Random, mean: float, deviation: float) -> list[int]:
    return [max(2, min(80, round(source.gauss(mean, deviation)))) for _ in range(MADE_UP)]


def _made_words(source: random.Random, vocabulary: int, lengths: list[int]) -> list[list[str]]:
    """Words of three to twelve letters, each as frequent as its rank says (Zipf)."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randint(3, 12))) for _ in range(vocabulary)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, vocabulary + 1)))
    return [source.choices(words, cum_weights=weights, k=length) for length in lengths]
