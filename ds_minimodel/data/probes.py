"""Texts by which two tokenizers are compared: many scripts, and what a normaliser or a splitter may stumble over."""

_LINES = """
The small boat sees the great harbour, and the wind is new. I'll go; they've gone, it's 12,5 % of $3.50!
STRASSE Straße Größe ÜBERMUT — „schöne Wörter“, naïve Œuvre, Ǆ ǆ İ ı ẞ ſ ﬀ
Él dijo «sí» mañana; ¿qué? Ça va, l’été à Nîmes. São João não põe ções. Città, perché, più.
Łódź, źdźbło, chrząszcz; příliš žluťoučký kůň; árvíztűrő tükörfúrógép; ţară, şi, ț, ș; čeština, đak
Tiếng Việt có nhiều dấu thanh khác nhau; Þetta er íslenska; føroyskt, smørrebrød, Åland; İstanbul'da ığdır
Маленькая лодка видит большую гавань; ветер свежий? Ёлка, ґанок, їжак, љубав, ѫгълъ. ҚАЗАҚ тілі
Το μικρό καράβι βλέπει το μεγάλο λιμάνι, ΑΪ́Σ ᾳ ῷ ς. Փոքր նավակը տեսնում է։ პატარა ნავი ხედავს
东京和北京都是很大的城市。小船看见大港口，风很新。繁體字「引號」、龘靐𠀀𠮷
小さな船は大きな港を見る。カタカナとｶﾀｶﾅ、がぎぐ ｶﾞ か\u3099 ー々〆
작은 배가 큰 항구를 봅니다. \u1112\u1161\u11ab글 ㄱㄴ ㈜ ꥠ
القارب الصغير يرى الميناء الكبير، السَّلامُ عَلَيْكُمْ ١٢٣ پچژگ ﷺ ﻻ كتـــاب
סירה קטנה רואה נמל גדול שָׁלוֹם ״צה״ל״ יידיש אָ
छोटी नाव बड़े बंदरगाह को देखती है। क्षत्रिय १२३ ক্ষুদ্র নৌকা ਛੋਟੀ ਕਿਸ਼ਤੀ નાની હોડી ଛୋଟ ଡଙ୍ଗା
சிறிய படகு பெரிய துறைமுகத்தைக் காண்கிறது చిన్న పడవ ಸಣ್ಣ ದೋಣಿ ചെറിയ ബോട്ട് කුඩා බෝට්ටුව
เรือเล็กเห็นท่าเรือใหญ่ น้ำ เ\u0e40 ເຮືອນ້ອຍ ទូកតូចឃើញ သင်္ဘောငယ် གྲུ་ཆུང་། ᠮᠣᠩᠭᠣᠯ ትንሿ ጀልባ። ᏣᎳᎩ ᓀᐦᐃᔭᐍᐏᐣ
😀 👨‍👩‍👧 ⚠️ 🇩🇪 👍🏽 ❤️‍🔥 1️⃣ ☃ ♪ ™ © ½ ① ㎏ Ⅷ ﬁ ﬂ ª ² ₂ ‰ ℃ 𝔘𝔫𝔦 𝓬𝓸𝓭𝓮 ａｂｃ １２３ ꙮ 𐍈 𒀀 𓂀
for (int i = 0; i < 10; ++i) { x[i] += f"{a}\\t{b}"; }  // https://example.org/a?b=c&d=%20#e user@host.org
<s> </s> <pad> <unk> <mask> [CLS] [SEP] [PAD] [UNK] [MASK] <|endoftext|> ▁a▁▁b ##c Ġd @@ </w>
<html>&nbsp;&amp; {{x}} \\frac{1}{2} $$ ~~~ ``` === *** ... … -- --- – — ''' \"\"\" !!?? ¡¿ ،؛ 、。
1234567890 1 22 333 4444 1,000,000.00 3.14e-10 0x1F 2026-11-23 12:30:59 +49 (0)30 §7 №5 50% -1 −1
aaaaaaaaaaaaaaaa bbbbbbbbbb AbCdEf camelCase snake_case kebab-case SHOUTING mIxEd don't DON'T we'Ll 'tis
"""
# White space, what has no width, what controls, marks, and what Unicode composes otherwise.
_CHARACTERS = (
    "\t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\xad\u1680\u180e\u2000\u2003\u2007\u2009\u200a\u200b\u200c\u200d\u200e\u200f"
    "\u2028\u2029\u202a\u202e\u202f\u205f\u2060\u2063\u3000\ufeff\ufe0f\ufffc\ufffd\u0000\u0001\u0007\u007f\u009f"
    "\ue000\U000e0041\U0010fffd\u0301\u0308\u0323\u0345\u093c\u0e31\u1ab0\u20dd\u3099\ufe20\u00c5\u212b\u1e9b\u01c5"
    "_'\"-.,:;!?()[]{}<>/\\|@#$%^&*+=~`▁Ġ·•’“”«»、。，！"
)
_FRAMES = "{0}", "a{0}b", "a {0} b", "é{0}", "日{0}{0}本"
_OWN = [line for line in _LINES.split("\n") if line]
_DECOMPOSED = ["cafe\u0301 a\u0301\u0323 a\u0323\u0301 Tie\u0302\u0301ng Vie\u0323\u0302t", "\u1100\u1161\u11a8"]
_SPACES = ["", " ", "   ", " a", "a ", "  a  b  ", "a\n\nb", "\n", "\r\n a\r\nb", "a\t \tb", " \n \t ", "a   .   b"]

PROBES: list[str] = [
    *_OWN,
    *(word for line in _OWN for word in line.split()[:6]),
    *_DECOMPOSED,
    *_SPACES,
    *(frame.format(character) for character in _CHARACTERS for frame in _FRAMES),
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "ж" * 250,
    "中" * 250,
]
