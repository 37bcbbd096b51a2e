"""SASLprep (RFC 4013): usernames and passwords that look the same become the same string."""

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str, stored: bool = False) -> str:
    """Return the prepared form. Raises ``ValueError`` if RFC 4013 prohibits a character or a mix of writing directions.

    A ``stored`` string must not contain code points that Unicode 3.2 leaves unassigned; a string that is looked up
    may."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(prohibited(char) for prohibited in _PROHIBITED):
            raise ValueError(f"the character U+{ord(char):04X} is prohibited")
        if stored and stringprep.in_table_a1(char):
            raise ValueError(f"the character U+{ord(char):04X} is not assigned in Unicode 3.2")
    if any(stringprep.in_table_d1(char) for char in prepared):
        # RFC 3454 section 6: right-to-left text begins and ends with such a character, and contains no left-to-right
        # ones.
        if any(stringprep.in_table_d2(char) for char in prepared):
            raise ValueError("mixes right-to-left and left-to-right characters")
        if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
            raise ValueError("right-to-left text must begin and end with right-to-left characters")
    return prepared
