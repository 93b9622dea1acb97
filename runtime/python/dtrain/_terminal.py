# SPDX-License-Identifier: Apache-2.0
"""What text from a rank may do to a terminal: the rules of launcher/output/terminal_text.h, for
texts of run() that the launcher does not see, or sends to a pipe that ends at a terminal. No I/O."""

import re

# As NeedsCare() there.
_CARE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_CARE_IN_LINES = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Plain text and UTF-8; a colour; "erase to the end of the line"; carriage returns; any other byte.
_PIECE = re.compile(
    rb"((?:[\t -~]"
    rb"|\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]"
    # U+202A to U+202E and U+2066 to U+2069 reverse the text behind them.
    rb"|(?!\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9])(?:\xe0[\xa0-\xbf]|[\xe1-\xef][\x80-\xbf])[\x80-\xbf]"
    rb"|(?:\xf0[\x90-\xbf]|[\xf1-\xf4][\x80-\xbf])[\x80-\xbf]{2})+)"
    rb"|(\x1b\[[0-9;:]*m)|(\x1b\[0?K)|(\r+)|(.)", re.DOTALL)
_NO_COLOUR = b"\x1b[0m"


def line(text, prefix=b""):
    """One line of bytes, without its newline, after `prefix`, as AppendForTerminal() makes it."""
    if not _CARE.search(text):
        return prefix + text
    shown, coloured = [prefix], False
    for piece in _PIECE.finditer(text):
        plain, colour, erase, returns, other = piece.groups()
        if returns:
            # At the end of a line nothing follows that could stand in the prefix's place.
            last = piece.end() == len(text)
            shown += [_NO_COLOUR if coloured else b"", b"\r", b"" if last else prefix]
            coloured = False
        elif other:
            shown.append(b"\\x%02x" % other[0])
        else:
            shown.append(plain or colour or erase)
            coloured = coloured or bool(colour)
    return b"".join(shown) + (_NO_COLOUR if coloured else b"")


def lines(text, tag):
    """Whole lines of bytes. `tag` matches what the launcher has put before each."""
    if not _CARE_IN_LINES.search(text):
        return text
    found = []
    for whole in text.split(b"\n"):
        prefix = tag.match(whole)[0]
        found.append(line(whole[len(prefix):], prefix))
    return b"\n".join(found)


def words(text):
    """A string that is shown by itself, such as an exception's: it may have several lines."""
    shown = b"\n".join(map(line, text.encode("utf-8", "surrogatepass").splitlines()))
    return shown.decode(errors="replace") + ("\n" if text.endswith("\n") else "")


def is_one(stream):
    """Whether what is written to this stream of Python's is shown by a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # a notebook's, or closed
        return False
