"""Build the tokenizer that a `.gguf` file describes, with its special tokens and its chat template.

The file names the way text is cut before byte pairs are merged; a name that is not known here is an error, because
another cut gives other tokens without anyone noticing. Merges of sentencepiece vocabularies are not stored: they follow
from the pieces' scores. Control and user-defined tokens are matched whole, as the model saw them in training.
"""

from __future__ import annotations

from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from leadline.errors import UsageError, explain
from leadline.gguf_loader import GgufFile

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPACE = "▁"


def build_tokenizer(file: GgufFile) -> Any:
    """The file's tokenizer as a transformers object. A vocabulary of an unknown kind is a UsageError."""
    kind = file.field("tokenizer.ggml.model")
    tokens: list[str] = _list(file, "tokens")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_pairs(file)
    elif kind == "llama":
        tokenizer, adds_bos = _sentence_pieces(file), True
    else:
        raise _refuse(file, "tokenizer.ggml.model", kind, "gpt2 or llama")
    types: list[int] = _list(file, "token_type", len(tokens))
    for wanted, special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
        whole = [token for token, found in zip(tokens, types, strict=True) if found == wanted and token]
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special) for token in whole])
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {short: file.field(f"tokenizer.ggml.{name}_token_id") for name, short in names.items()}
    bos = ids["bos"]
    if file.field("tokenizer.ggml.add_bos_token", adds_bos) and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], pair=[tokens[bos], "$A", "$B"], special_tokens=[(tokens[bos], bos)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_max_length=int(file.need("context_length")),
        chat_template=file.field("tokenizer.chat_template"),
        **{f"{short}_token": tokens[found] for short, found in ids.items() if found is not None},
    )


def _byte_pairs(file: GgufFile) -> tuple[Tokenizer, bool]:
    """A byte-level BPE vocabulary, and whether its kind starts every text with the beginning token."""
    cut = file.field("tokenizer.ggml.pre", "default")
    groups = {"qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}", "llama3": r"\p{N}{1,3}", "llama-v3": r"\p{N}{1,3}"}
    if cut in groups:
        pattern = f"{_CONTRACTIONS}|{_WORDS}|{groups[cut]}|{_REST}"
        first = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        steps = [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    elif cut in ("smollm", "gpt-2"):
        steps = [pre_tokenizers.Digits(individual_digits=True)] if cut == "smollm" else []
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        raise _refuse(file, "tokenizer.ggml.pre", cut, ", ".join([*groups, "smollm", "gpt-2"]))
    llama3 = cut in groups and cut != "qwen2"
    vocabulary = {token: index for index, token in enumerate(_list(file, "tokens"))}
    merges = [tuple(merge.split(" ", 1)) for merge in _list(file, "merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=llama3))
    if cut == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, llama3


def _sentence_pieces(file: GgufFile) -> Tokenizer:
    """A sentencepiece BPE vocabulary: always merge the adjacent pair whose union has the highest score."""
    tokens: list[str] = _list(file, "tokens")
    scores: list[float] = _list(file, "scores", len(tokens))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = file.field("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocab=vocabulary,
        merges=merges_of(vocabulary, scores),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = bool(file.field("tokenizer.ggml.add_space_prefix", True))
    space = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), space]) if prefix else space
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def merges_of(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to make a piece from two pieces, best score of the union first, ties in the order of the vocabulary."""
    found: list[tuple[float, int, int, int, str, str]] = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], index, vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _list(file: GgufFile, name: str, length: int | None = None) -> list[Any]:
    """A list of the vocabulary, one entry per token where `length` is given; without it the file is refused."""
    found = file.field(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or len(found) != (len(found) if length is None else length):
        size = "nothing" if not isinstance(found, list) else f"{len(found)} entries"
        raise _refuse(file, f"tokenizer.ggml.{name}", size, f"{length} entries" if length is not None else "a list")
    return found


def _refuse(file: GgufFile, field: str, found: object, expected: str) -> UsageError:
    what = "cannot build the tokenizer of this GGUF file"
    do = "use the same model as a folder or hub id in Hugging Face format"
    return UsageError(explain(what, file=file.path, field=field, found=repr(found), expected=expected, do=do))
