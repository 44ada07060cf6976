"""How cost grows: least-squares fits of what scripts/growth.py measured, its page and its picture."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ds_minimodel.results.render import Block, Cell, Facts, Heading, Notes, Plot, Table

STEPS = {"pretrain": "1 pretrain", "adapt-full": "2 adapt"}
BASE = {"vocabulary": 8000, "length": 128, "depth": 4, "width": 256}  # sizes where an axis does not vary
SHARD_TOKENS = 64_000_000  # of a store's shard: 256 MiB of text
SAMPLE_BATCH, BATCHES = 256, 40  # samples of a batch drawn from a store
TABLE_LENGTH = 512
USUAL_FILES = 1024  # that a process may open
APART = 0.2  # of two slopes that are said to differ


class Fit(NamedTuple):
    """Least squares: y = a + b x, the share of the variance that it explains, and the slope of log y over log x."""

    a: float
    b: float
    r2: float
    slope: float


def fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Fit of at least two points of different x."""
    b, a = np.polyfit(x, y, 1)
    spread = np.var(y)
    r2 = 1 - float(np.var(np.asarray(y) - (a + b * np.asarray(x))) / spread) if spread else 1.0
    logs = np.log(np.maximum(x, 1e-12)), np.log(np.maximum(y, 1e-12))
    return Fit(float(a), float(b), r2, float(np.polyfit(*logs, 1)[0]))


def page(record: Mapping[str, Any]) -> list[Block]:
    """The record as blocks of a page."""
    parts = record["parts"]
    facts_of = {part: {key: str(fact) for key, fact in one["facts"].items()} for part, one in parts.items()}
    common = dict(set.intersection(*(set(facts.items()) for facts in facts_of.values())))
    blocks: list[Block] = [
        Notes(["Repeat it with python scripts/growth.py TEXT…, a part of it with --parts PART."]),
        Facts(common | {part: in_words(facts, common) for part, facts in facts_of.items()}),
        Plot("growth.png", b"", "Measured points and least-squares lines"),
        Heading("Goals"),
        goals_table(parts),
    ]
    for part in (part for part in TITLES if part in parts):
        blocks += [Heading(TITLES[part]), *TABLES[part](parts)]
    if "remarks" in record:  # written by hand
        blocks += [Heading("Remarks"), Notes(record["remarks"])]
    return blocks


def in_words(facts: Mapping[str, str], common: Mapping[str, str]) -> str:
    """What a part was measured under beside what all were."""
    return "; ".join(f"{key} {value}" for key, value in facts.items() if key not in common)


TITLES = {
    "steps": "A step against vocabulary, length, depth and width",
    "loader": "Loader and masking",
    "store": "Token stores",
    "tokenise": "Tokenisation",
    "ranks": "Ranks",
    "stall": "Saves",
}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *notes: str) -> Block:
    return Table(title, columns, [[Cell(str(entry)) for entry in row] for row in rows], notes=notes)


def shares_of_loader(parts: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(step and sizes, share of the step that making its batch takes) of all measured steps."""
    seconds = {(row["vocabulary"], row["length"]): row["seconds"] / row["tokens"] for row in parts["loader"]["rows"]}
    return [
        (
            f"{STEPS[row['step']]}, {row['axis']} {row['x']}",
            seconds[row["vocabulary"], row["length"]] * row["tokens"] / row["fastest"],
        )
        for row in parts["steps"]["rows"]
    ]


def goals_table(parts: Mapping[str, Any]) -> Block:
    """Each goal that the parts say something of: what was measured, and whether that is within it."""
    rows: list[tuple[str, str, bool]] = []
    if "loader" in parts and "steps" in parts:
        where, worst = max(shares_of_loader(parts), key=lambda pair: pair[1])
        rows.append(("loader and masking: at most 1 % of a step", f"{worst:.2%} at most ({where})", worst <= 0.01))
    if "store" in parts:
        first, last = parts["store"]["rows"][0], parts["store"]["rows"][-1]
        times = last["sample_seconds"] / first["sample_seconds"]
        grown = last["grown_in_sampling_mib"]
        rows += [
            (
                "a sample takes the same at any size of the store",
                f"{times:.2f} times from {first['x']:g} to {last['x']:g} GB",
                times <= 1.25,
            ),
            ("sampling takes no more memory", f"{grown} MiB more after {BATCHES * SAMPLE_BATCH:,} samples", grown < 4),
            (
                "opening takes part of a millisecond for each shard",
                f"{1e3 * last['open_seconds'] / last['shards']:.2f} ms; {last['x']:g} GB: {last['open_seconds']:.2f} s",
                last["open_seconds"] < 1e-3 * last["shards"],
            ),
        ]
    if "tokenise" in parts:
        for way, share in shares_of_tokenising(parts["tokenise"]["rows"]).items():
            rows.append(("tokenisation: 90 % of SentencePiece × cores", f"{share:.1%} ({way})", share >= 0.9))
    return table(
        "Goals", ["goal", "measured", "met"], [(goal, found, "yes" if met else "no") for goal, found, met in rows]
    )


def shares_of_tokenising(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{way: share of SentencePiece's rate}, by the CPU seconds of each more MB: starts of processes are left out.

    reports: of scripts/preparation.py, of different sizes.
    """
    sizes = [report["megabytes"] for report in reports]

    def seconds_a_megabyte(way: str) -> float:
        seconds = [report["ways"][way]["cpu_seconds"] for report in reports]
        return fit(sizes, seconds).b if len(sizes) > 1 else seconds[0] / sizes[0]

    alone, *ways = reports[0]["ways"]
    return {way: seconds_a_megabyte(alone) / seconds_a_megabyte(way) for way in ways}


def line_of(name: str, unit: str, of: Fit, expected: str) -> tuple[str, ...]:
    return name, f"{of.a:.3g} + {of.b:.3g} · {unit}", f"{of.r2:.3f}", f"{of.slope:.2f}", expected


def step_tables(parts: Mapping[str, Any]) -> list[Block]:
    rows, fits, apart = parts["steps"]["rows"], [], []
    for (axis, step), points in lines_of(rows).items():
        x, unit = [row["x"] for row in points], "width²" if axis == "width" else axis
        seconds = fit([value**2 for value in x] if axis == "width" else x, [row["fastest"] for row in points])
        slope = fit(x, [row["fastest"] / row["tokens"] for row in points]).slope
        flops = fit(x, [row["flops"] / row["tokens"] for row in points]).slope
        fits.append(line_of(f"{STEPS[step]}, {axis}", unit, seconds._replace(slope=slope), f"{flops:.2f}"))
        if abs(slope - flops) > APART:
            apart.append(f"{STEPS[step]}, {axis} ({slope:.2f}, not {flops:.2f})")
    return [
        table(
            "Tokens a second",
            ["step", "axis", "value", "tokens/s", "seconds: fastest", "median", "slowest", "GiB", "GFLOP/s"],
            [
                (
                    STEPS[row["step"]],
                    row["axis"],
                    row["x"],
                    f"{row['tokens'] / row['fastest']:,.0f}",
                    f"{row['fastest']:.3f}",
                    f"{row['seconds']:.3f}",
                    f"{row['slowest']:.3f}",
                    f"{row['memory_bytes'] / 2**30:.2f}",
                    f"{row['flops'] / row['fastest'] / 1e9:,.0f}",
                )
                for row in rows
            ],
            f"Where an axis does not vary: {', '.join(f'{key} {value}' for key, value in BASE.items())}; heads of 64; "
            "about the same number of tokens a step at every point; fp32, ZeRO 1, one thread. Fits are of the "
            "fastest steps: others on a machine only add to a step.",
        ),
        table(
            "Seconds of a step, least squares",
            ["step, axis", "seconds", "R²", "log-log slope of seconds a token", "the same of executed FLOPs"],
            fits,
            "Where the slope of the seconds is below that of the FLOPs, larger products are faster ones or some of the "
            "step does not grow; where it is above, memory binds.",
            f"Not as the FLOPs say, by more than {APART} of a slope: {'; '.join(apart) or 'none'}.",
        ),
    ]


def lines_of(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """{(axis, step): rows} of curves that have two points."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row.get("axis", "ranks"), row["step"]), []).append(row)
    return {key: points for key, points in found.items() if len(points) > 1}


def rank_tables(parts: Mapping[str, Any]) -> list[Block]:
    rows = parts["ranks"]["rows"]
    alone = {row["step"]: row["tokens"] / row["seconds"] for row in reversed(rows)}  # of the fewest ranks
    return [
        table(
            "Tokens a second of all ranks",
            ["step", "ranks", "tokens/s", "times the first", "seconds: fastest", "median", "slowest"],
            [
                (
                    STEPS[row["step"]],
                    row["x"],
                    f"{row['tokens'] / row['seconds']:,.0f}",
                    f"{row['tokens'] / row['seconds'] / alone[row['step']]:.2f}",
                    f"{row['fastest']:.3f}",
                    f"{row['seconds']:.3f}",
                    f"{row['slowest']:.3f}",
                )
                for row in rows
            ],
            "Each rank has its own batch of the same size, and one thread; by the clock. More ranks than cores share "
            "them.",
        )
    ]


def loader_tables(parts: Mapping[str, Any]) -> list[Block]:
    found = [
        table(
            "Making a batch",
            ["vocabulary", "length", "milliseconds", "µs a sample", "ns a token", "1 % of a step at tokens/s"],
            [
                (
                    row["vocabulary"],
                    row["length"],
                    f"{1e3 * row['seconds']:.2f}",
                    f"{1e6 * row['seconds'] * row['length'] / row['tokens']:.0f}",
                    f"{1e9 * row['seconds'] / row['tokens']:.0f}",
                    f"{0.01 * row['tokens'] / row['seconds']:,.0f}",
                )
                for row in parts["loader"]["rows"]
            ],
            "Time that the thread ran, lower quartile of the batches: order, reading, checksums, masking, tensors; it "
            "works beside the device. A rank that trains at less than the last column has it below 1 %; at a hundred "
            "times that rate it would wait.",
        )
    ]
    if "steps" in parts:
        shares = [(where, f"{share:.2%}") for where, share in shares_of_loader(parts)]
        found.append(table("Share of the steps above", ["step", "share"], shares))
    return found


def store_tables(parts: Mapping[str, Any]) -> list[Block]:
    rows = parts["store"]["rows"]
    x = [row["x"] for row in rows]
    fits = [
        line_of(name, "GB", fit(x, [scale * row[key] for row in rows]), expected)
        for name, key, scale, expected in (
            ("open the store, s", "open_seconds", 1, "1: a part for each shard"),
            ("build the table of blocks, s", "table_seconds", 1, "1: once for a store"),
            ("open the table, s", "table_open_seconds", 1, "1, of 1/2048 of its bytes"),
            ("first samples, µs", "first_sample_seconds", 1e6, "0"),
            ("a sample, µs", "sample_seconds", 1e6, "0"),
        )
    ]
    return [
        table(
            "A store of N GB",
            [
                "GB",
                "shards",
                "open, s",
                "table, s",
                "first samples, µs",
                "a sample, µs",
                "MiB of its own",
                "MiB of files",
                "page tables, MiB",
            ],
            [
                (
                    f"{row['x']:g}",
                    f"{row['shards']:,}",
                    f"{row['open_seconds']:.3f}",
                    f"{row['table_seconds']:.2f}",
                    f"{1e6 * row['first_sample_seconds']:.0f}",
                    f"{1e6 * row['sample_seconds']:.0f}",
                    *(f"{row['grown_mib'][key]:g}" for key in ("RssAnon", "RssFile", "VmPTE")),
                )
                for row in rows
            ],
            f"Sparse files of {SHARD_TOKENS:,} ids of 16 bits a shard, with all checksums, opened by a fresh process "
            f"that may have {USUAL_FILES:,} files open; CPU time; {BATCHES} batches of {SAMPLE_BATCH} samples of "
            f"{TABLE_LENGTH} tokens, nearly each in a piece not read before: the first batch, and the median of all. "
            "Memory: what the process has more at the end. Half of that many files stay open, two of a shard: from 256 "
            "shards on they are opened again and again, which a higher limit spares. Real files of this size also wait "
            "for the disk.",
        ),
        table("Least squares", ["what", "fit", "R²", "log-log slope", "expected slope"], fits),
    ]


def tokenise_tables(parts: Mapping[str, Any]) -> list[Block]:
    return [
        table(
            "prepare beside SentencePiece alone",
            ["MB", "way", "tokens a CPU second", "share", "tokens/s", "largest process, MiB", "all, MiB"],
            [
                (
                    report["megabytes"],
                    way,
                    f"{found['tokens_per_cpu_second']:,}",
                    f"{found['share']:.1%}",
                    f"{found['tokens_per_second']:,}",
                    found["largest_process_mib"],
                    found["all_processes_mib"],
                )
                for report in parts["tokenise"]["rows"]
                for way, found in report["ways"].items()
            ],
            "SentencePiece alone reads the lines and encodes each MiB of them in one call, on one core. Share: its CPU "
            "time by the way's own, start of the processes included, in their fastest rounds: of SentencePiece × cores "
            "where nothing else runs. The store is checked, hashed and read back within it. "
            + "; ".join(
                f"{way}: {share:.1%} of SentencePiece by what each more MB takes"
                for way, share in shares_of_tokenising(parts["tokenise"]["rows"]).items()
            )
            + ".",
        )
    ]


def stall_tables(parts: Mapping[str, Any]) -> list[Block]:
    rows = parts["stall"]["rows"]
    found = [
        table(
            "How long a save keeps training waiting",
            [
                "parameters",
                "MiB",
                "written at once, s",
                "in the background, s",
                "until on disk, s",
                "a step, s",
                "a step beside, s",
            ],
            [
                (
                    f"{row['trainable_parameters']:,}",
                    f"{row['bytes'] / 2**20:.0f}",
                    *(
                        f"{row['median_seconds'][key]:.3f}"
                        for key in ("at_once", "background", "until_on_disk", "plain_step", "steps_beside")
                    ),
                )
                for row in rows
            ],
            "Medians by the clock of scripts/checkpoint_stall.py.",
        )
    ]
    if len(rows) > 1:
        sizes = [row["bytes"] / 2**20 for row in rows]
        fits = [
            line_of(key, "MiB", fit(sizes, [row["median_seconds"][key] for row in rows]), "1")
            for key in ("at_once", "background", "until_on_disk")
        ]
        found.append(table("Least squares", ["seconds", "fit", "R²", "log-log slope", "expected slope"], fits))
    return found


TABLES = {
    "steps": step_tables,
    "loader": loader_tables,
    "store": store_tables,
    "tokenise": tokenise_tables,
    "ranks": rank_tables,
    "stall": stall_tables,
}


def panels_of(parts: Mapping[str, Any]) -> list[tuple[str, str, str, list[float], list[float]]]:
    """(panel, unit of y, line, x, y) of all curves; lines of one panel follow each other."""
    found = []
    for part in ("steps", "ranks"):
        for (axis, step), rows in lines_of(parts.get(part, {"rows": []})["rows"]).items():
            key = "fastest" if part == "steps" else "seconds"
            rates = [row["tokens"] / row[key] for row in rows]
            found.append((axis, "tokens/s", STEPS[step], [row["x"] for row in rows], rates))
    for panel, key, scale, unit in (
        ("GB: opening", "open_seconds", 1, "s"),
        ("GB: a sample", "sample_seconds", 1e6, "µs"),
    ):
        rows = parts.get("store", {"rows": []})["rows"]
        if len(rows) > 1:
            found.append((panel, unit, "", [row["x"] for row in rows], [scale * row[key] for row in rows]))
    rows = parts.get("stall", {"rows": []})["rows"]
    if len(rows) > 1:
        for key, label in (("at_once", "at once"), ("background", "in the background")):
            sizes = [row["bytes"] / 2**20 for row in rows]
            found.append(("MiB: a save's stall", "s", label, sizes, [row["median_seconds"][key] for row in rows]))
    return found


def picture(parts: Mapping[str, Any]) -> bytes:
    """PNG of all curves, a panel an axis, both axes logarithmic; dashed: the line of the log-log slope."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    from ds_minimodel.results.plots import RC_PARAMS

    curves = panels_of(parts)
    names = list(dict.fromkeys(panel for panel, *_ in curves))
    with rc_context(RC_PARAMS):
        figure = Figure(figsize=(12.4, 2.9 * math.ceil(len(names) / 4)), dpi=144, layout="constrained")
        FigureCanvasAgg(figure)
        for number, name in enumerate(names):
            axes = figure.add_subplot(math.ceil(len(names) / 4), 4, number + 1, xscale="log", yscale="log", title=name)
            for _, unit, label, x, y in (curve for curve in curves if curve[0] == name):
                slope, start = np.polyfit(np.log(x), np.log(y), 1)
                (drawn,) = axes.plot(x, y, "o", label=f"{label} (slope {slope:.2f})".strip())
                axes.plot(x, np.exp(start + slope * np.log(x)), "--", color=drawn.get_color(), linewidth=1)
                axes.set_ylabel(unit)
                axes.set_xticks(x, [f"{value:.3g}" if value < 1000 else f"{value / 1000:g}k" for value in x])
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            axes.legend(frameon=False, fontsize=8)
        png = io.BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()
