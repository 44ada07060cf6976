"""Chat templates in the forms of published models, and files of dialogues."""

from tests.helpers.files import write_json_lines
from tests.helpers.foreign_models import BEGIN, END

TURN = "{% for m in messages %}" + BEGIN
ASKS = "{% if add_generation_prompt %}" + BEGIN + "assistant\n{% endif %}"
TEMPLATES = {
    "llama 3": (  # a token that begins the text, and no white space around what is said
        "{{ bos_token }}{{ strftime_now('%d') }}{% for m in messages %}[{{ m.role }}]\n\n"
        "{{ m.content | trim }}" + END + "{% endfor %}"
    ),
    "qwen": (  # what an assistant thinks stands in the last turn alone
        TURN + "{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n"
        "{% endif %}"
        "{{ m.content.split('</think>')[-1] }}" + END + "\n{% endfor %}" + ASKS
    ),
    "gemma": (  # another role, none for a system
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not "
        "supported') }}"
        "{% endif %}{% for m in messages %}<{{ 'model' if m.role == 'assistant' else m.role }}>\n"
        "{{ m.content | trim }}" + END + "\n{% endfor %}"
    ),
    "smollm2": (  # a system that speaks where none is given
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
        + BEGIN
        + "system\nHelp."
        + END
        + "\n"
        "{% endif %}" + BEGIN + "{{ m.role }}\n{{ m.content }}" + END + "\n{% endfor %}" + ASKS
    ),
    "mistral": (  # marks around the user alone, in whose last turn the system speaks
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] "
        "{% if loop.revindex0 == 1 and messages[0].role == 'system' %}{{ messages[0].content "
        "}}\n\n{% endif %}"
        "{{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }}"
        + END
        + "{% endif %}{% endfor %}"
    ),
    "generation": (  # as later templates say it themselves, here without the end of a turn
        TURN + "{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}" + END + "{% endfor %}" + ASKS
    ),
}


def write_dialogues(path, *dialogues):
    rows = [
        {"messages": [{"role": role, "content": said} for role, said in turns]}
        for turns in dialogues
    ]
    write_json_lines(path, rows)
    return path
