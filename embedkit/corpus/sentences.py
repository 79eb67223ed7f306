"""Where the sentences of a text end, by rule: of a text one vector for each, in one pass.

    "Dr. Lee said no. 정말요? はい。"  ──►  "Dr. Lee said no." "정말요?" "はい。"

A sentence ends after ``.``, ``!``, ``?`` or ``…`` and closing quotes before white space, unless a
small letter follows; after the full stops of Chinese and Japanese anywhere; and with a line. A stop
after a single Latin letter or a usual abbreviation ends nothing. There is no model behind it: a
corpus that knows its sentences says so by ``spans=``.
"""

from __future__ import annotations

import re

from embedkit.corpus.conllu import Span

# three kinds of end: a stop with its closing marks before white space; a full stop of Chinese or
# Japanese; a line end with the space around it
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*|\s*\n\s*")
# initials ("J.", "e.g.", "U.S.") and titles, only as words of their own
_SHORT = re.compile(
    r"(?:^|[\s(\"'])(?:[a-z](?:\.[a-z])*|mrs?|ms|dr|prof|st|vs|cf|etc|vol|fig|bzw|ca|nr|vgl)\.$",
    re.IGNORECASE,
)
_VISIBLE = re.compile(r"\S(?:.*\S)?", re.DOTALL)
_NEXT = re.compile(r"\S")
_NEAR = 12  # characters before an end in which an abbreviation is looked for


def sentence_spans(text: str) -> tuple[Span, ...]:
    """Return start and end of every sentence, without the white space around it.

    >>> text = "Dr. Lee said no. Why? (He was late.) 정말요? はい。そう。"
    >>> [text[start:end] for start, end in sentence_spans(text)]
    ['Dr. Lee said no.', 'Why?', '(He was late.)', '정말요?', 'はい。', 'そう。']
    """
    # spans begin at the last end, and lose their outer white space by a search within them, so that
    # they are places in the text itself
    ends = [match.end() for match in _END.finditer(text) if not _goes_on(text, match.end())]
    parts = zip([0, *ends], [*ends, len(text)], strict=True)
    found = [_VISIBLE.search(text, start, end) for start, end in parts]
    return tuple(match.span() for match in found if match is not None)


def _goes_on(text: str, end: int) -> bool:
    """True if a sentence does not end there: before a small letter, after an abbreviation."""
    if text[end - 1].isspace():  # of a line
        return False
    following = _NEXT.search(text, end)
    if following is not None and following[0].islower():
        return True
    # a window, so that the time does not grow with the square of the text
    return _SHORT.search(text[max(0, end - _NEAR) : end]) is not None
