"""The address parsers against the programs that define the formats, where these are installed."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_address import rows

from howfar.address import libpq
from howfar.errors import UsageError


class _Option(ctypes.Structure):
    """libpq's PQconninfoOption."""

    _fields_ = (
        ("keyword", ctypes.c_char_p),
        ("envvar", ctypes.c_char_p),
        ("compiled", ctypes.c_char_p),
        ("val", ctypes.c_char_p),
        ("label", ctypes.c_char_p),
        ("dispchar", ctypes.c_char_p),
        ("dispsize", ctypes.c_int),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    name = ctypes.util.find_library("pq")
    if name is None:
        pytest.skip("libpq is not installed")
    loaded = ctypes.CDLL(name)
    loaded.PQconninfoParse.restype = ctypes.POINTER(_Option)
    loaded.PQconninfoParse.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
    loaded.PQconndefaults.restype = ctypes.POINTER(_Option)
    return loaded


def _options(found: ctypes._Pointer[_Option]) -> Iterator[_Option]:
    number = 0
    while found[number].keyword:
        yield found[number]
        number += 1


def parsed(library: ctypes.CDLL, text: str) -> dict[str, str] | str:
    """libpq's own parse of a text, without empty values, or its error message."""
    error = ctypes.c_char_p()
    found = library.PQconninfoParse(text.encode("utf-8", "surrogateescape"), ctypes.byref(error))
    if not found:
        return (error.value or b"").decode()
    return {
        option.keyword.decode(): option.val.decode("utf-8", "surrogateescape")
        for option in _options(found)
        if option.val
    }


NEWER = {"sslcertmode", "sslnegotiation", "servicefile", "require_auth", "load_balance_hosts", "oauth_client_secret",
         "sslkeylogfile", "min_protocol_version", "max_protocol_version", "gssdelegation"}  # fmt: skip
"""Parameters that older versions of libpq do not know."""


def _same(library: ctypes.CDLL, text: str, known: set[str]) -> None:
    """Assert that both parse alike or both refuse, except as docs/addresses.md lists: an @ too many, and parameters before the @."""
    theirs = parsed(library, text)
    try:
        ours = libpq.uri_pairs(text) if "://" in text else libpq.keyword_pairs(text)
    except UsageError as refused:
        deliberate = "an @ too many" in refused.message or "parameters before its @" in refused.message
        assert isinstance(theirs, str) or deliberate, (text, theirs)
        return
    if isinstance(theirs, str):
        assert set(ours) - known, (text, theirs)
    else:
        assert {name: value for name, value in ours.items() if value} == theirs


@pytest.fixture(scope="module")
def known(library: ctypes.CDLL) -> set[str]:
    return {option.keyword.decode() for option in _options(library.PQconndefaults())}


def test_every_parameter_of_libpq_is_known(known: set[str]) -> None:
    """[load-7]"""
    assert known - {"requiressl"} <= set(libpq.PARAMETERS)
    assert set(libpq.PARAMETERS) >= NEWER


OF_LIBPQ = [
    text
    for text, form, _ in rows()
    if text.startswith(("postgres:", "postgresql:", "host=")) or form == "libpq keywords"
]


@pytest.mark.parametrize("text", OF_LIBPQ)
def test_the_table_is_read_as_libpq_reads_it(library: ctypes.CDLL, known: set[str], text: str) -> None:
    """[load-4] [load-5]"""
    _same(library, text, known)


_WORDS = st.sampled_from(
    ["postgresql://", "u", ":", "@", "h", "5432", "/", "?", "&", "=", ",", "[", "]", "::1", "%41", "%4", "%00", "host", "port",
     "password", "sslmode", "require", "ssl", "true", "requiressl", "1", " ", "'", "\\", "a b", "é", "dbname"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(_WORDS, max_size=14), uri=st.booleans())
def test_any_text_is_read_as_libpq_reads_it(library: ctypes.CDLL, known: set[str], parts: list[str], uri: bool) -> None:
    """User, brackets, zone and port are split before percent-decoding; quotes and escapes follow libpq."""
    text = "".join(parts)
    _same(library, f"postgresql://{text}" if uri else text.replace("://", ""), known)
