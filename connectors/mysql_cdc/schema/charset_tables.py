"""Differences between the servers' character sets and Python's codecs (data).

These are the conversions of each byte and each code that a column may hold, by MySQL 8.0.15 and MariaDB 10.11.5 and
11.4.5, which agree. The servers convert everything else to ``?``.
tests/connectors/mysql_cdc/schema/test_charsets.py compares with the servers again.
"""

from __future__ import annotations

__all__ = ["DOUBLE_BYTE", "SINGLE_BYTE"]

_N = "\ufffd"  # the servers themselves use it in these sets

# Character set -> the nearest codec, and runs of characters from a byte on.
SINGLE_BYTE: dict[str, tuple[str, dict[int, str]]] = {
    "armscii8": (
        "latin_1",
        {0xA1: "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"},
    ),
    "ascii": ("ascii", {}),
    "cp1250": ("cp1250", {}),
    "cp1251": ("cp1251", {}),
    "cp1256": ("cp1256", {0x8A: "?", 0x8F: "?", 0x98: "?", 0x9A: "?", 0x9F: "?", 0xAA: "?", 0xC0: "?", 0xFF: "?"}),
    "cp1257": ("cp1257", {}),
    "cp850": ("cp850", {}),
    "cp852": ("cp852", {}),
    "cp866": ("cp866", {0xFC: "ⁿ²"}),
    "dec8": (
        "latin_1",
        {0xA4: "?", 0xA6: "?", 0xA8: "¤", 0xAC: "????", 0xB4: "?", 0xB8: "?", 0xBE: "?", 0xD0: "?", 0xD7: "Œ"}
        | {0xDD: "Ÿ?", 0xF0: "?", 0xF7: "œ", 0xFD: "ÿ??"},
    ),
    "geostd8": (
        "cp1252",
        {0x83: "?", 0x88: "?", 0x8A: "?", 0x8C: "?", 0x8E: "?", 0x98: "???", 0x9C: "?", 0x9E: "??"}
        | {0xC0: "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ", 0xE6: "?" * 23, 0xFD: "№??"},
    ),
    "greek": ("iso8859_7", {0xA1: "ʽʼ", 0xA4: "??", 0xAA: "?"}),
    "hebrew": ("iso8859_8", {0xAF: "‾"}),
    "hp8": ("hp_roman8", {}),
    "keybcs2": ("cp437", {0x80: "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ"}),
    "koi8r": ("koi8_r", {}),
    "koi8u": ("koi8_u", {0x95: "•"}),
    "latin1": ("cp1252", {0x81: "\x81", 0x8D: "\x8d", 0x8F: "\x8f\x90", 0x9D: "\x9d"}),
    "latin2": ("iso8859_2", {}),
    "latin5": ("iso8859_9", {}),
    "latin7": ("iso8859_13", {}),
    "macce": ("mac_latin2", {}),
    "macroman": ("mac_roman", {}),
    "swe7": ("ascii", {0x40: "É", 0x5B: "ÄÖÅÜ", 0x60: "é", 0x7B: "äöåü?"}),
    "tis620": ("tis_620", {0xA0: _N, 0xDB: _N * 4, 0xFC: _N * 4}),
}

_EUC = rb"\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2}|[\xa1-\xfe]{2}"
_SHIFTED = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"
_GBK = rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"
# Rows F5 to FE of either plane are for private use: U+E000 and so on.
_PRIVATE = {
    (b"\x8f" if plane else b"") + bytes([row, 0xA1]): "".join(
        chr(0xE000 + ((plane * 10 + row - 0xF5) * 94) + column) for column in range(94)
    )
    for plane in (0, 1)
    for row in range(0xF5, 0xFF)
}
_NEC = (
    "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ?"
    "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡????????㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪"
)
# Compatibility ideographs by number: to many tools they are one with the common ones.
_IBM = (
    "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞"
    "\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞"
    "\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑"
)

# Character set -> the nearest codec, codes of more than one byte, and runs of characters from a code on.
DOUBLE_BYTE: dict[str, tuple[str, bytes, dict[bytes, str]]] = {
    "big5": (
        "big5",
        rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
        dict.fromkeys((b"\xa1Z", b"\xa1\xc3", b"\xa1\xc5", b"\xa1\xfe", b"\xa2@", b"\xa2\xcc", b"\xa2\xce"), _N)
        | {b"\xf9\xd6": "碁銹裏墻恒粧嫺"},
    ),
    "cp932": ("cp932", _SHIFTED, {}),
    "eucjpms": (
        "euc_jp",
        _EUC,
        {b"\xa1\xc1": "～∥", b"\xa1\xdd": "－", b"\xa1\xf1": "￠￡", b"\xa2\xcc": "￢"}
        | {b"\x8f\xa2\xb7": "～", b"\x8f\xa2\xc3": "￤", b"\x8f\xf3\xf3": "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ", b"\x8f\xf4\xa1": _IBM}
        | {b"\xad\xa1": _NEC}
        | _PRIVATE,
    ),
    "euckr": ("cp949", rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]", {}),
    "gb18030": (
        "gb18030",
        rb"[\x81-\xfe][0-9][\x81-\xfe][0-9]|" + _GBK,
        {b"\xa8\xbc": "ḿ", b"\x81\x35\xf4\x37": "\ue7c7"},
    ),
    "gb2312": ("gb2312", rb"[\xa1-\xf7][\xa1-\xfe]", {}),
    "gbk": ("gbk", _GBK, {}),
    "sjis": ("shift_jis", _SHIFTED, {b"\x81\x5f": "\\"}),
    "ujis": ("euc_jp", _EUC, {b"\xa1\xc0": "\\", **_PRIVATE}),
}
