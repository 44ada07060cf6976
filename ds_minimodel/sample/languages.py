"""The languages of the samples and the names that packages give them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """`package`: suffix in package names; `translation`: name of apt's Translation index;
    `script`: character class that most letters of a line must belong to, None for Latin script."""

    package: str
    translation: str
    script: str | None = None


LANGUAGES = {
    "en": Language("en", "en"),
    "de": Language("de", "de"),
    "es": Language("es", "es"),
    "tr": Language("tr", "tr"),
    "zh": Language("zh-cn", "zh_CN", "\u3400-\u9fff"),
    "fr": Language("fr", "fr"),
    "ru": Language("ru", "ru", "\u0400-\u04ff"),
    "el": Language("el", "el", "\u0370-\u03ff\u1f00-\u1fff"),
}


def language_of_locale(name):
    """Language code of a locale or folder name (`de_DE`, `zh-CN`, `es`); None where it is not one of ours.

    Only a language's main variant counts: en_GB or es_419 would repeat the text of en and es.
    """
    code = name.replace("-", "_").lower()
    main = {
        "zh_cn": "zh",
        "zh_hans": "zh",
        "de_de": "de",
        "es_es": "es",
        "tr_tr": "tr",
        "fr_fr": "fr",
        "ru_ru": "ru",
        "el_gr": "el",
        "en_us": "en",
    }
    return main.get(code) or (code if code in LANGUAGES else None)
