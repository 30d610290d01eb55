"""Text to token ids, without letting recorded text speak the chat template's control tokens.

Session text is untrusted: a tool result may hold "<|im_end|>". Before the template runs, `TokenEncoder.guard` puts a
marker character inside every look-alike of a control token; after it, `TokenEncoder.encode` takes the markers out
again and cuts the text there for tokenising, so the words the model reads are the recorded ones, spelled with
ordinary tokens. No token can span a cut, so no marked look-alike can become a control token, whatever the tokenizer.
Marks that are ordinary text to the tokenizer (a closing tag, say) have nothing to guard: they are text wherever they
stand.

Text without look-alikes gets exactly the ids of tokenising it whole. That it can be done section by section (a
section starts at a control token) is what makes a long session's prompts cheap, and is checked against the whole at
construction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from leadline.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = npt.NDArray[np.int32]

# Letters of a script that no session uses in full: printable (a template that repr()s keeps them), never whitespace.
_MARKERS = range(0xA000, 0xA48D)


class LookAlikes:
    """Finds every occurrence of any of a set of token texts, overlapping ones included, in linear time."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = frozenset(token for token in tokens if len(token) > 1)
        self._lengths = sorted({len(token) for token in self.tokens}, reverse=True)
        starts = sorted({token[:2] for token in self.tokens})
        # A lookahead, so that a start inside another start is found too.
        self._starts = re.compile("(?=" + "|".join(map(re.escape, starts)) + ")") if starts else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of the longest match at each position that has one, in order."""
        if self._starts is None:
            return
        for mark in self._starts.finditer(text):
            start = mark.start()
            for length in self._lengths:
                if text[start : start + length] in self.tokens:
                    yield start, start + length
                    break


class TokenEncoder:
    """A tokenizer as the renderer uses it.

    written: added tokens that are not flagged special but that the chat template writes itself
             (`TemplateTraits.written`): control tokens too, except in assistant turns, where a recorded model may
             rightly have written them.
    sample: a rendered conversation, on which encoding by sections is compared with encoding whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, written: frozenset[str], sample: str) -> None:
        self._tokenizer = tokenizer
        added = list(tokenizer.added_tokens_decoder.values())
        special = {str(token.content) for token in added if token.special}
        self.special, self.control = LookAlikes(special), LookAlikes(special | written)
        # Tokens that swallow whitespace before them, or match inside words or normalised text, do not start a section.
        clean = (
            token for token in added if token.special and not (token.lstrip or token.single_word or token.normalized)
        )
        self._starts = LookAlikes(str(token.content) for token in clean)
        self._anchor = min((str(t.content) for t in added if t.special and not (t.rstrip or t.normalized)), default="")
        self._sections: dict[str, Ids] = {}
        self._guarded: dict[tuple[str, bool], str] = {}
        self.bos = self._demanded_bos(sample)
        self.by_sections = self._same_by_sections(sample)

    def _demanded_bos(self, sample: str) -> int | None:
        """The BOS id to put in front: only where the tokenizer adds one itself and the template does not."""
        tokenizer = self._tokenizer
        if tokenizer.bos_token_id is None or sample.startswith(str(tokenizer.bos_token)):
            return None
        first = tokenizer("x", return_attention_mask=False)["input_ids"][:1]
        bare = tokenizer("x", add_special_tokens=False, return_attention_mask=False)["input_ids"][:1]
        return int(tokenizer.bos_token_id) if first == [tokenizer.bos_token_id] and bare != first else None

    def begin(self, texts: Sequence[str]) -> str:
        """Start a session: forget the last one's texts and choose a marker that stands nowhere in `texts`."""
        self._sections.clear()
        self._guarded.clear()
        used: set[str] = set()
        escaped = False
        for text in texts:
            used.update(text)
            escaped = escaped or "\\u" in text
        for code in _MARKERS:
            marker = chr(code)
            if marker not in used and not (escaped and any(_escape(marker) in text.lower() for text in texts)):
                return marker
        raise UsageError(
            "no character is left to mark look-alikes of control tokens with: the session uses all of them"
        )

    def guard(self, value: Any, marker: str, *, assistant: bool = False) -> Any:
        """`value` (text, or JSON-like data of texts) with `marker` inside every look-alike of a control token."""
        if isinstance(value, str):
            known = self._guarded.get((value, assistant))
            if known is None:
                cuts = [start + 1 for start, _ in (self.special if assistant else self.control).find(value)]
                known = marker.join(
                    value[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(value)], strict=True)
                )
                self._guarded[value, assistant] = known
            return known
        if isinstance(value, Mapping):
            return {
                self.guard(key, marker, assistant=assistant): self.guard(item, marker, assistant=assistant)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.guard(item, marker, assistant=assistant) for item in value]
        return value

    def reveal(self, text: str, marker: str) -> str:
        """A guarded text as it was meant: markers out, also where the template wrote them as JSON escapes."""
        return text.replace(marker, "").replace(_escape(marker), "")

    def encode(self, text: str, marker: str, *, continues: bool = False) -> Ids:
        """Ids of a guarded text `[n]`; `continues` where it stands behind other tokens: no BOS, no first space."""
        text = text.replace(_escape(marker), marker)
        ids = [] if self.bos is None or continues else [np.array([self.bos], dtype=np.int32)]
        for number, section in enumerate(self._split(text) if self.by_sections else [text]):
            ids.append(self._section(section, marker, behind=continues and number == 0))
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)

    def decode(self, ids: Ids) -> str:
        """The text of `ids` with every token spelled out, nothing tidied."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def id_of(self, token: str) -> int | None:
        """The id of a text that is one token; None where it is several."""
        ids = self._plain(token)
        return int(ids[0]) if len(ids) == 1 else None

    def _same_by_sections(self, sample: str) -> bool:
        text = sample + sample
        parts = [self._plain(part) for part in self._split(text)]
        return bool(np.array_equal(np.concatenate(parts), self._plain(text)))

    def _split(self, text: str) -> Iterator[str]:
        begin = taken = 0
        for start, end in self._starts.find(text):
            if start >= taken:
                taken = end
                if start > begin:
                    yield text[begin:start]
                    begin = start
        if begin < len(text):
            yield text[begin:]

    def _section(self, section: str, marker: str, *, behind: bool) -> Ids:
        if not behind and section in self._sections:
            return self._sections[section]
        first, *rest = section.split(marker)
        ids = np.concatenate([self._behind(first) if behind else self._plain(first), *map(self._behind, rest)])
        if not behind and self.by_sections:
            self._sections[section] = ids
        return ids

    def _behind(self, piece: str) -> Ids:
        """Ids of a text that does not start the prompt: encoded behind a control token, which is then taken off."""
        return self._plain(self._anchor + piece)[1:] if self._anchor else self._plain(piece)

    def _plain(self, text: str) -> Ids:
        ids = self._tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        return np.array(ids, dtype=np.int32)


def _escape(marker: str) -> str:
    return json.dumps(marker)[1:-1]
