"""Which tests are left to ``make thorough``: more combinations of what a test of ``make test`` shows already.

Patterns of test ids as ``fnmatch`` reads them, ``[`` and ``]`` as they are. Each must fit a test when all are collected
(conftest.py sees to it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Final

_CHAOS: Final = "tests/chaos/"
_INTEGRATION: Final = "tests/integration/"
_AT_ANY_POINT: Final = (
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_at_any_point_shows_nowhere_in_the_result"
)
_CLOSES_A_PHASE: Final = ("work.bundled", "work.logged", "finalize.draft", "record.envelope")
_ACQUIRES: Final = ("acquire.leased", "acquire.based", "acquire.done")
_GOLDEN: Final = "tests/histories/test_golden.py::test_a_flow_run_again_decides_and_records_as_the_golden_run"

PATTERNS: Final[tuple[str, ...]] = (
    # Another point of a phase in which a worker is killed.
    *(
        f"{_AT_ANY_POINT}[{point}]"
        for point in (*_CLOSES_A_PHASE, *_ACQUIRES, "work.intent", "release.record")
    ),
    f"{_CHAOS}test_worker_killed.py::test_two_workers_killed_in_a_row_*[work.committed]",
    f"{_CHAOS}test_worker_killed.py::test_two_workers_killed_in_a_row_*[record.receipt]",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_while_a_gate_runs_*[0-disk]",
    f"{_CHAOS}test_worker_killed.py::test_a_worker_killed_while_a_gate_runs_*[6-disk]",
    f"{_CHAOS}test_drain.py::test_a_worker_told_to_end_in_the_middle_of_work_*[hangs]",
    f"{_CHAOS}test_drain.py::test_a_worker_told_to_end_while_a_gate_runs_*[before the first step]",
    f"{_CHAOS}test_stale_worker.py::test_a_worker_that_sleeps_through_a_takeover_*[hangs]",
    f"{_CHAOS}test_stale_worker.py::test_a_question_outlives_the_worker_*[disk]",
    # Runs of the shipped flows whose loops and pauses are played.
    f"{_GOLDEN}[*-success]",
    f"{_GOLDEN}[*-failed]",
    # The same program of Claude over its other door, and what tests/conformance shows of each transport.
    "tests/conformance/test_conformance.py::test_a_transport_holds[*-claude-cli]",
    "tests/soak/test_agents_leaks.py::*[claude-cli]",
    "tests/soak/test_agents_leaks.py::*[gemini-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_defect_is_mended_*[claude-cli]",
    f"{_INTEGRATION}test_claude_work.py::*[claude-cli]",
    f"{_INTEGRATION}test_claude_work.py::test_a_repositorys_own_settings_*[claude-cli-*",
    f"{_INTEGRATION}test_claude_work.py::test_what_policy_denies_*[claude-cli-Write*",
    f"{_INTEGRATION}test_claude_endings.py::*[claude-cli]",
    f"{_INTEGRATION}test_claude_endings.py::test_what_the_provider_answers_*[claude-cli-*",
    f"{_INTEGRATION}test_gemini_session.py::test_a_session_goes_on_over_four_processes_*",
    f"{_INTEGRATION}test_gemini_session.py::test_what_a_server_answers_is_classified*",
    f"{_INTEGRATION}test_gemini_session.py::test_a_prompt_arrives_as_text*",
    f"{_INTEGRATION}test_gemini_session.py::test_a_command_that_ignores_signals_*[cancel*]",
    f"{_INTEGRATION}test_gemini_session.py::test_a_command_that_ignores_signals_*[close]",
    f"{_INTEGRATION}test_gemini_session.py::test_a_command_that_ignores_signals_*[kill]",
    f"{_INTEGRATION}test_handover.py::*gemini-cli-to-claude-cli*",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[gemini-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[claude-cli]",
    f"{_INTEGRATION}test_real_agents.py::test_a_plan_is_approved_*[claude-sdk]",
    # Another half of a table whose rows go the same way.
    f"{_INTEGRATION}test_developer.py::test_a_run_is_stopped_while_the_developer_model_decides[*before]",
    f"{_INTEGRATION}test_developer.py::test_a_decision_that_is_lost_with_its_worker_*[after]",
    f"{_INTEGRATION}test_answered.py::test_an_answer_in_any_form_*[*let go]",
    f"{_INTEGRATION}test_cli_dev.py::test_it_says_where_everything_is_*[1]",
    f"{_INTEGRATION}test_cli_dev.py::test_it_says_where_everything_is_*[15]",
    f"{_INTEGRATION}test_fork.py::test_flow_fix_is_forked_from_its_first_step_*",
)
_FITS: Final = {
    pattern: re.compile(translate(pattern.replace("[", "\0").replace("]", "[]]").replace("\0", "[[]")))
    for pattern in PATTERNS
}


def is_thorough(test: str) -> bool:
    """Tell whether the test with this id is left to ``make thorough``."""
    return any(fits.match(test) for fits in _FITS.values())


def unused(tests: Iterable[str]) -> list[str]:
    """Return the patterns that fit none of these ids."""
    known = list(tests)
    return [pattern for pattern, fits in _FITS.items() if not any(map(fits.match, known))]
