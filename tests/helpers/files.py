"""JSON on disk, read and written in a call."""

import json


def read_json(path):
    return json.loads(path.read_text())


def write_json(path, value):
    path.write_text(json.dumps(value))


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
