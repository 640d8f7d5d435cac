"""What people are shown, character by character, and that it fits a terminal."""

import re
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from mtpmon.commands.matrix import viability_table
from mtpmon.commands.screen import line, screen
from mtpmon.commands.tables import UNKNOWN, definitions, positions, tables
from mtpmon.commands.terminal import printable
from mtpmon.cost import PlainSource
from mtpmon.grade import Grade, Graded
from mtpmon.model import Bounded, ForcedToken
from mtpmon.report import Report
from mtpmon.snapshot import ServerSnapshot
from mtpmon.viability import Cell, Viability
from tests.page_snapshots import ready, unseen
from tests.test_report import FAST, completion, failure, kld, made, result, sequences

WIDTH = 100


def text(*renderables: RenderableType, width: int = WIDTH) -> str:
    """As it is printed, without the spaces at the ends of lines."""
    out = StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    for renderable in renderables:
        console.print(renderable)
    return "".join(f"{row.rstrip()}\n" for row in out.getvalue().splitlines())


def evaluation() -> Report:
    """Eight sequences of which two part, and a probe that failed."""
    firsts = [None] * 6 + [60, 2]
    ours = completion(texts=["the", " cat", "\x1b[2J"]).positions
    theirs = completion(texts=["the", " cat", "\n"]).positions
    probes = [
        result(
            probe.prompt_id,
            speculating=replace(probe.speculating or completion(), positions=ours),
            target_only=replace(probe.target_only or completion(), positions=theirs),
            first=first,
            next_token=kld(0.0),
            later=[kld(0.0011)] if place < 4 else [],
            teacher_forced=[kld(0.0)] * 2,
            forced=[ForcedToken(index=9, logprob=-1.0, rank=place, regret_nats=place / 8)],
            margin=0.00312,
        )
        for place, (probe, first) in enumerate(zip(sequences(FAST, firsts), firsts, strict=True))
    ]
    return made([*probes, failure("x", "HTTP 400: \x1b[31mno such token")])


GOLDEN = """\
Probes that failed
how     why                              probes
───────────────────────────────────────────────
failed  HTTP 400: \\x1b[31mno such token       1
By task
                                acceptance  speculating  target-only
task  probes  draft acceptance      length        tok/s        tok/s            speed-up
────────────────────────────────────────────────────────────────────────────────────────
code       8  310/378 = 82.01%        2.63       325.70       210.00  1.55× [1.55, 1.55]

all        8  310/378 = 82.01%        2.63       325.70       210.00  1.55× [1.55, 1.55]
Sequence probe
             client  decode                     acceptance by      exact    token-position
server        tok/s   tok/s  draft acceptance  draft position  sequences             match
──────────────────────────────────────────────────────────────────────────────────────────
target-only  172.57  210.00                 –               –   baseline          baseline
speculating  233.81  325.70  310/378 = 82.01%     0.884 0.747        6/8  446/512 = 87.11%
First divergences: 6 of 8 sequences are exact
                                                   first  matched   margin
prompt    target-only wrote  speculating wrote  mismatch   prefix     nats
──────────────────────────────────────────────────────────────────────────
prompt-6  ''                 ''                       60       60  0.00312
prompt-7  '\\n'               '\\x1b[2J'                 2        2  0.00312
Positions with both distributions
paired  comparable  missing  diverged
─────────────────────────────────────
   512          12      436        64
KLD of distributions
at                 positions  mean nats  mean bits  p50 nats  p95 nats  max nats  top-1 match
─────────────────────────────────────────────────────────────────────────────────────────────
next token                 8          0          0         0         0         0          8/8
after speculation          4     0.0011   0.001587    0.0011    0.0011    0.0011          4/4
both                      12  0.0003667   0.000529         0    0.0011    0.0011        12/12
teacher-forced            16          0          0         0         0         0        16/16
Emitted tokens, by the target
asked about      its best  mean regret nats  p95 regret nats  max regret nats
─────────────────────────────────────────────────────────────────────────────
          8  1/8 = 12.50%            0.4375           0.8312            0.875
"""


def test_every_table() -> None:
    """The tables of an evaluation read like this in 100 columns."""
    assert text(*tables(evaluation())) == GOLDEN


@pytest.mark.parametrize("positions", [1, 3, 6, 64])
def test_tables_fit_100_columns(positions: int) -> None:
    """Long drafts and large counts wrap where nothing is lost, and cut nothing off."""
    found = evaluation()
    shares = tuple(0.987 * 0.9**i for i in range(positions))
    arms = tuple(
        replace(
            arm,
            client_tokens_per_second=12345.678,
            decode_tokens_per_second=12345.678,
            acceptance=replace(arm.acceptance, part=99999, whole=99999, ratio=1.0),
            positions=shares,
            positions_exact=False,
        )
        for arm in found.arms
    )
    tiny = tuple(
        replace(row, mean_nats=1.23456e-15, mean_bits=1.23456e-15, p50_nats=1.23456e-15)
        for row in found.kld
    )
    rows = text(*tables(replace(found, arms=arms, kld=tiny))).splitlines()
    assert max(map(len, rows)) <= WIDTH
    shown = "\n".join(rows)
    assert "…" not in shown
    assert "99999/99999 = 100.00%" in shown
    assert all(f"{share:.3f}" in shown for share in shares[:8])


def test_without_a_target_only_server() -> None:
    """One arm alone has the tables by task and by sequence, and no others."""
    shown = text(*tables(made([result()])))
    assert re.findall(r"^[A-Z].*$", shown, re.MULTILINE) == ["By task", "Sequence probe"]
    assert "baseline" not in shown


def test_all_failed() -> None:
    """Where nothing completed, only the failures are shown."""
    shown = text(*tables(made([failure("a", "cannot connect")])))
    assert "cannot connect" in shown
    assert "By task" not in shown


def test_all_exact() -> None:
    """Without a divergence there is a sentence in place of a table."""
    shown = text(*tables(made([result(target_only=completion())])))
    assert "First divergences: 1 of 1 sequences are exact\n" in shown
    assert "margin" not in shown


def cell(
    task: str,
    temperature: float,
    *,
    thinking: bool | None = None,
    speedup: float | None = None,
    modelled: bool = False,
    graded: Graded | None = None,
) -> Cell:
    return Cell(
        task=task,
        temperature=temperature,
        thinking=thinking,
        probes=8,
        acceptance=0.823,
        breakeven=None if speedup is None else Bounded(0.552, 0.5411, 1.2),
        speedup=None if speedup is None else Bounded(speedup, speedup - 0.1, speedup + 0.1),
        modelled=modelled,
        graded=graded,
    )


MATRIX = """\
Where drafting pays; plain steps are the target-only server's
task      temp.  thinking  probes  acceptance        breakeven              speed-up           grade
────────────────────────────────────────────────────────────────────────────────────────────────────
code          0   default       8       82.3%  55.2% [54, 120]    1.31× [1.21, 1.41]     recommended
code        0.7        on       8       82.3%  55.2% [54, 120]    1.10× [1.00, 1.20]      marginal ?
code        0.7       off       8       82.3%  55.2% [54, 120]  ≈ 2.50× [2.40, 2.60]               –

creative      0   default       8       82.3%  55.2% [54, 120]    0.90× [0.80, 1.00]             not
                                                                                         recommended

factual       0   default       8       82.3%                –                     –               –
"""


def test_viability_table() -> None:
    """A row for each task and way, with a mark where the speed-up or the grade is not sure."""
    sure, unsure = Graded(Grade.RECOMMENDED, True), Graded(Grade.MARGINAL, False)
    made = Viability(
        plain=PlainSource.PAIR,
        cells=(
            cell("code", 0, speedup=1.31, graded=sure),
            cell("code", 0.7, thinking=True, speedup=1.1, graded=unsure),
            cell("code", 0.7, thinking=False, speedup=2.5, modelled=True),
            cell("creative", 0, speedup=0.9, graded=Graded(Grade.NOT_RECOMMENDED, True)),
            cell("factual", 0),
        ),
    )
    assert text(viability_table(made)) == MATRIX


def test_a_flattering_plain_step_is_named_in_the_title() -> None:
    """An upper bound of the speed-up is not to be taken for one."""
    made = Viability(plain=PlainSource.UNDRAFTED, cells=(cell("code", 0),))
    shown = " ".join(text(viability_table(made)).splitlines())
    assert "an upper bound, which flatters drafting" in shown
    unknown = Viability(cells=(cell("code", 0),))
    assert text(viability_table(unknown)).startswith("Where drafting pays\n")


def test_definitions_fit() -> None:
    """The words of the tables are explained in 100 columns."""
    shown = text(definitions())
    assert "draft tokens kept / draft tokens" in shown
    assert max(map(len, shown.splitlines())) <= WIDTH


def test_screen() -> None:
    """The demo's screen shows the main figures in 24 lines of 100 columns."""
    rows = text(screen(ready(), "one\ntwo")).splitlines()
    assert len(rows) == 24
    assert max(map(len, rows)) <= WIDTH
    shown = "\n".join(rows)
    for figure in (
        "75.1% [69.3%, 80.9%]",
        "3.25 [3.08, 3.43]",
        "0.886 0.751 0.616",
        "0.90× [0.87, 0.94]",
        "exact sequences 96.1%, token match 98.7%",
        "after speculation mean 0.00114, max 0.073",
        "1204 completed, 359 skipped, 2 failed",
    ):
        assert figure in shown


def test_screen_before_anything_is_known() -> None:
    """Nothing known is a dash, never a 0."""
    shown = text(screen(unseen(), "one\ntwo"))
    assert "live          –" in shown
    assert "exact sequences –" in shown
    assert "server       –" in shown


LINE = (
    "acceptance: live 75.1% [69.3%, 80.9%], probes –; length: live 3.25; 256 probes, 96.1% exact;"
    " code 1.32×; factual 1.16×; analysis 1.01×; essay 1.06×; creative 0.90×"
)
NOTHING_YET = "acceptance: live –, probes –; length: live –; 0 probes, – exact"


@pytest.mark.parametrize(("server", "expected"), [(ready(), LINE), (unseen(), NOTHING_YET)])
def test_line(server: ServerSnapshot, expected: str) -> None:
    """Where there is no terminal, a line has the time and the main figures."""
    clock, _, rest = line(server).partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", clock)
    assert rest == expected


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [("naïve 你好", "naïve 你好"), ("a\x1b[2Jb", r"a\x1b[2Jb"), ("a\r\nb", r"a\r\nb")],
)
def test_foreign_text_cannot_steer_the_terminal(foreign: str, shown: str) -> None:
    """Control characters of servers and models are spelt out, all other text stays."""
    assert printable(foreign) == shown


def test_of_a_long_draft_the_first_positions_are_written() -> None:
    """Up to eight in full, then how many more there are and how often the first is kept."""
    assert positions((0.9, 0.5), exact=True) == "0.900 0.500"
    assert positions((), exact=True) == UNKNOWN
    long = tuple(0.5**place for place in range(1, 65))
    assert positions(long, exact=False).endswith("0.008 0.004 and 56 more, up to 0.002")
